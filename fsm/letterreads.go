package fsm

import (
	"encoding/hex"

	"penstock/event"
	"penstock/fsm/command"
)

// LetterFound is what is known of a dead letter by its id. None of Open and Settled set: it is unknown, or was resolved longer
// ago than is remembered.
type LetterFound struct {
	Open    bool
	Letter  DeadLetter // while open
	Settled bool
	Result  command.OutcomeKind // when settled: Replayed or Discarded
	At      int64               // when settled: the stamp
	// Where it was, when settled.
	ChannelIndex, EmitterIndex, Seq uint64
	Position                        event.Position
}

// FindLetter looks a dead letter up by its id, which resolves an unknown outcome of a replay.
func (m *Machine) FindLetter(id string) LetterFound {
	var key [16]byte
	if n, err := hex.Decode(key[:], []byte(id)); err != nil || n != len(key) || len(id) != 2*len(key) {
		return LetterFound{}
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if ref, ok := m.mu.open[key]; ok {
		l, ok := m.mu.deadLetterOf(ref.e, ref.seq)
		return LetterFound{Open: ok, Letter: l}
	}
	if l := m.mu.settled.byID[key]; l != nil {
		return LetterFound{
			Settled: true, Result: l.kind, At: l.stamp, ChannelIndex: l.channel, EmitterIndex: l.emitter, Seq: l.seq,
			Position: l.position,
		}
	}
	return LetterFound{}
}

// LetterCursor is a place among the dead letters, which are ordered by channel, emitter (by creation) and sequence number.
type LetterCursor struct{ ChannelIndex, EmitterIndex, Seq uint64 }

// LetterQuery chooses open dead letters. "" and 0 take all.
type LetterQuery struct {
	Channel, Emitter, State string
	After                   LetterCursor
	Limit                   int // 0 = 100
	// Replayable takes only what a scheduled replay may take: dead, unclaimed, below max_retries.
	Replayable bool
}

// DeadLetterPage is at most Limit open dead letters behind the cursor, and where to go on; more is false at the end. A page
// costs what it holds, and not what lies before it.
func (m *Machine) DeadLetterPage(q LetterQuery) (page []DeadLetter, next LetterCursor, more bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if q.Limit <= 0 {
		q.Limit = 100
	}
	next = q.After
	for _, c := range m.mu.order { // by creation index
		if (q.Channel != "" && c.spec.Name != q.Channel) || c.index < q.After.ChannelIndex {
			continue
		}
		for _, e := range c.byIndex() {
			if q.Emitter != "" && e.name != q.Emitter {
				continue
			}
			var after uint64
			if c.index == q.After.ChannelIndex {
				if e.index < q.After.EmitterIndex {
					continue
				}
				if e.index == q.After.EmitterIndex {
					after = q.After.Seq
				}
			}
			for l := range e.openLetters(q, after) {
				if len(page) == q.Limit {
					return page, next, true
				}
				page = append(page, l)
				next = LetterCursor{c.index, e.index, l.Seq}
			}
		}
	}
	return page, next, false
}

// openLetters are the open letters of an emitter above a sequence number that the query wants.
func (e *emitter) openLetters(q LetterQuery, after uint64) func(func(DeadLetter) bool) {
	return func(yield func(DeadLetter) bool) {
		for _, d := range e.letters[max(e.lettersAt(after)-1, 0):] {
			if (q.State != "" && q.State != d.state()) || (q.Replayable && d.poison) {
				continue
			}
			for i := range d.letters {
				seq := d.first + uint64(i)
				if d.letters[i].closed || seq <= after {
					continue
				}
				if q.Replayable && (e.claims[seq] != nil || d.letters[i].replays >= uint32(max(e.spec.DeadLetter.MaxRetries, 0))) {
					continue
				}
				if !yield(e.deadLetter(d, i)) {
					return
				}
			}
		}
	}
}

// LetterTotals are the open dead letters of one emitter.
type LetterTotals struct {
	Channel, Emitter           string
	ChannelIndex, EmitterIndex uint64
	Dead, Poison               uint64
	Claimed                    int   // replays under way
	OldestDead, OldestPoison   int64 // stamps; 0 without one
}

// LetterTotals are the totals of every emitter that has open dead letters or poison.
func (m *Machine) LetterTotals() []LetterTotals {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var all []LetterTotals
	for _, c := range m.mu.order {
		for _, e := range c.emitters {
			if e.dead+e.poison == 0 {
				continue
			}
			t := LetterTotals{
				Channel: c.spec.Name, Emitter: e.name, ChannelIndex: c.index, EmitterIndex: e.index, Dead: e.dead, Poison: e.poison,
				Claimed: len(e.claims),
			}
			for _, d := range e.letters {
				oldest := &t.OldestDead
				if d.poison {
					oldest = &t.OldestPoison
				}
				if *oldest == 0 || d.stamp < *oldest {
					*oldest = d.stamp
				}
			}
			all = append(all, t)
		}
	}
	return all
}
