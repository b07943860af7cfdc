// Package logread reads committed events back out of this node's log: it is the one place where log entry, command,
// batch and reject bitmap come together again, for tail, explain and the emitters alike.
//
// It owns a byte-bounded cache of decoded entries. It promises to show an event exactly when the state machine accepted
// it, once, at the position where it was first committed, whether its bytes lie there or were carried since (DESIGN 4.8), and
// never to read above what the state machine has applied.
// It writes nothing and knows nothing of channels' specs or of who asks.
package logread

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"penstock/event"
	"penstock/fsm"
	"penstock/fsm/command"
)

// Log is what this package needs of the log.
type Log interface {
	GetLog(index uint64, out *raft.Log) error
	FirstIndex() (uint64, error)
}

// State is what this package needs of the state machine.
type State interface {
	Applied() (index, term uint64)
	Horizon() uint64
	Rejects(index uint64) (fsm.EntryRejects, bool)
	// Point is the greatest known point of the log at or below a sequence number of the channel.
	Point(channelIndex, seq uint64) (fsm.Point, bool)
	// Carried and CarriedAt are the first carried run that ends at or after a sequence number, or a position.
	Carried(channelIndex, seq uint64) (fsm.CarriedRun, bool)
	CarriedAt(channelIndex uint64, p event.Position) (fsm.CarriedRun, bool)
}

// GoneError says that the log no longer reaches down to the index that was asked for.
type GoneError struct {
	// Index was asked for; First is the lowest index that can be read.
	Index, First uint64
}

func (e *GoneError) Error() string {
	return fmt.Sprintf("index %d is gone: the first readable index is %d", e.Index, e.First)
}

// Reader reads entries. It is safe for concurrent use.
type Reader struct {
	log   Log
	state State
	cache *cache
}

// New makes a Reader whose cache holds about cacheBytes of decoded events.
func New(log Log, state State, cacheBytes int64) *Reader {
	return &Reader{log: log, state: state, cache: newCache(cacheBytes)}
}

// First is the lowest index whose events can be read on this node.
func (r *Reader) First() (uint64, error) {
	first, err := r.log.FirstIndex()
	if err != nil {
		return 0, fmt.Errorf("read log: first index: %w", err)
	}
	return max(first, r.state.Horizon(), 1), nil
}

// Entry returns the decoded entry at index, which must not be above the applied index. An entry without batches (a no-op,
// a configuration, other commands) has none.
func (r *Reader) Entry(index uint64) (*Entry, error) {
	if e, ok := r.cache.get(index); ok {
		return r.visible(e)
	}
	if applied, _ := r.state.Applied(); index > applied {
		return nil, fmt.Errorf("read log: index %d is above the applied index %d", index, applied)
	}
	var raw raft.Log
	if err := r.log.GetLog(index, &raw); err != nil {
		return nil, r.readError(index, err)
	}
	e, err := r.decode(&raw)
	if err != nil {
		return nil, fmt.Errorf("read log: entry %d: %w", index, err)
	}
	r.cache.put(e)
	return r.visible(e)
}

// visible refuses an entry below the horizon, whose reject bitmap may be gone already. It is asked after the bitmap was
// read: the horizon only rises, so an entry that is visible now had its bitmap then.
func (r *Reader) visible(e *Entry) (*Entry, error) {
	if horizon := r.state.Horizon(); e.Index < horizon {
		return nil, &GoneError{Index: e.Index, First: horizon}
	}
	return e, nil
}

func (r *Reader) readError(index uint64, err error) error {
	if !errors.Is(err, raft.ErrLogNotFound) {
		return fmt.Errorf("read log: %w", err)
	}
	first, ferr := r.First()
	if ferr == nil && index < first {
		return &GoneError{Index: index, First: first}
	}
	return fmt.Errorf("read log: index %d: %w", index, err)
}

func (r *Reader) decode(raw *raft.Log) (*Entry, error) {
	e := &Entry{Index: raw.Index, size: entryOverhead + int64(len(raw.Data))}
	if raw.Type != raft.LogCommand || len(raw.Data) == 0 {
		return e, nil
	}
	frame, err := command.DecodeEntry(raw.Data)
	if err != nil {
		return nil, err
	}
	e.Stamp = frame.Stamp
	e.Commands = frame.Commands
	rejects, rejected := r.state.Rejects(raw.Index)
	ordinal, batches := uint32(0), 0
	for i, c := range frame.Commands {
		kind, body, err := command.Split(c)
		if err != nil {
			return nil, fmt.Errorf("command %d: %w", i, err)
		}
		if kind == command.KindCarry {
			if err := e.addCarry(c, raw.Index); err != nil {
				return nil, fmt.Errorf("command %d: %w", i, err)
			}
		}
		if kind != command.KindBatch {
			continue
		}
		b, err := event.DecodeBatch(body)
		if err != nil {
			return nil, fmt.Errorf("command %d: %w", i, err)
		}
		s := &Batch{Index: raw.Index, Stamp: frame.Stamp, FirstOrdinal: ordinal, Batch: b}
		if rejected {
			s.Refused = rejects.Batch(batches)
			s.rejects = &rejects
		}
		e.Batches = append(e.Batches, s)
		// Once decoded the events hold the payload, a copy of their attributes, and themselves.
		e.size += 2*int64(b.PayloadBytes()) + int64(b.Len())*eventOverhead
		ordinal += uint32(b.Len())
		batches++
	}
	return e, nil
}
