package logread

import (
	"fmt"
	"sync"
	"unsafe"

	"penstock/event"
	"penstock/fsm"
	"penstock/fsm/command"
)

// What a cached entry costs beside its bytes, and each of its events beside its own.
const (
	entryOverhead = 256
	eventOverhead = int64(unsafe.Sizeof(event.Event{}))
)

// Entry is one decoded log entry. It is shared and must not be changed.
type Entry struct {
	Index uint64
	// Stamp is the entry's time in Unix nanoseconds; 0 for an entry that carries no commands.
	Stamp int64
	// Commands are the raw commands, Batches those of them that commit events, in order.
	Commands [][]byte
	Batches  []*Batch
	// carries are the events of other entries whose bytes lie here; whether they still count the state machine says.
	carries []*carry

	size int64
}

// Batch is one batch of an entry, with what the state machine decided about it.
type Batch struct {
	Index        uint64
	Stamp        int64
	FirstOrdinal uint32
	// Refused: the whole batch was refused at apply and none of its events exists.
	Refused bool
	*event.Batch

	rejects *fsm.EntryRejects
	spans   []command.Span // of carried events: where they were committed
	decode  sync.Once
	events  []event.Event
	err     error
}

// Accepted tells whether the i-th event of the batch exists, that is, was not rejected at apply.
func (b *Batch) Accepted(i int) bool {
	if b.Refused {
		return false
	}
	return b.rejects == nil || !b.rejects.Event(b.FirstOrdinal+uint32(i))
}

// AcceptedCount is the number of events of the batch that exist.
func (b *Batch) AcceptedCount() int {
	if b.Refused {
		return 0
	}
	if b.rejects == nil {
		return b.Len()
	}
	n := 0
	for i := range b.Len() {
		if b.Accepted(i) {
			n++
		}
	}
	return n
}

// Position is the position of the i-th event.
func (b *Batch) Position(i int) event.Position {
	for _, x := range b.spans {
		if i < int(x.Count) {
			return event.Position{Index: x.Index, Ordinal: x.Ordinal + uint32(i)}
		}
		i -= int(x.Count)
	}
	return event.Position{Index: b.Index, Ordinal: b.FirstOrdinal + uint32(i)}
}

// StampOf is when the i-th event was committed, in Unix nanoseconds.
func (b *Batch) StampOf(i int) int64 {
	for _, x := range b.spans {
		if i < int(x.Count) {
			return x.Stamp
		}
		i -= int(x.Count)
	}
	return b.Stamp
}

// Event is the i-th event. The first call decompresses the batch; the result is shared and must not be changed.
func (b *Batch) Event(i int) (event.Event, error) {
	b.decode.Do(func() { b.events, b.err = b.Events() })
	if b.err != nil {
		return event.Event{}, fmt.Errorf("batch at %s: %w", b.Position(0), b.err)
	}
	return b.events[i], nil
}
