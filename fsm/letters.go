package fsm

import (
	"slices"
	"sort"

	"penstock/event"
	"penstock/fsm/command"
)

// deadRun is a stretch of deliveries without gaps that became dead letters, or poison, by one outcome.
type deadRun struct {
	first    uint64
	letters  []letter
	poison   bool
	class    command.Class
	status   uint16
	attempts uint32
	reason   string
	at       int64  // of the last attempt, as the owner said
	stamp    int64  // of the entry that told
	node     string // the owner that holds the record
	epoch    uint64
	// compaction is the id of the compaction that they were sent with; other letters, and deliveries, may be of it too.
	compaction [16]byte
	row        string
}

// letter is one of them; open until it was replayed or discarded.
type letter struct {
	position event.Position
	replays  uint32
	closed   bool
}

// bury makes dead letters, or poison, of what is unresolved among the outcome's deliveries.
func (s *state) bury(e *emitter, o *command.Outcome) {
	attempts := e.attemptsOf(o)
	proto := deadRun{
		poison: o.Kind == command.Poison, class: o.Class, status: o.Status, attempts: attempts, reason: o.Reason, at: o.At,
		stamp: s.stamp, node: e.owner, epoch: e.epoch, compaction: o.Compaction,
	}
	var d *deadRun
	n := s.resolveRange(e, o, func(seq uint64) {
		if d == nil || d.first+uint64(len(d.letters)) != seq {
			next := proto
			d = &next
			d.first, d.row = seq, rowKey(tableDead, e.ch.index, e.index, seq)
			e.insertLetters(d)
			s.mark(d.row)
		}
		d.letters = append(d.letters, letter{position: positionOf(o, seq)})
		s.open[letterID(e.ch.index, e.index, positionOf(o, seq))] = letterRef{e, seq}
	})
	if proto.poison {
		e.poison += n
	} else {
		e.dead += n
	}
}

func (e *emitter) lettersAt(seq uint64) int {
	return sort.Search(len(e.letters), func(i int) bool { return e.letters[i].first > seq })
}

func (e *emitter) insertLetters(d *deadRun) {
	e.letters = slices.Insert(e.letters, e.lettersAt(d.first), d)
}

// exhume takes the report of a replay, or a discard, of dead letters. What is not an open dead letter is passed over.
func (s *state) exhume(e *emitter, o *command.Outcome) {
	for i := max(e.lettersAt(o.First)-1, 0); i < len(e.letters) && e.letters[i].first <= o.Last; {
		d, open := e.letters[i], false
		for j := range d.letters {
			l := &d.letters[j]
			if seq := d.first + uint64(j); !l.closed && o.First <= seq && seq <= o.Last {
				s.exhumeOne(e, d, l, seq, o)
			}
			open = open || !l.closed
		}
		if open {
			i++
		} else {
			s.mark(d.row)
			e.removeLetters(i)
		}
	}
}

// exhumeOne ends the claim of a letter and, unless the replay failed, the letter. A failure counts only while the letter is
// claimed: a report that comes twice, after an unknown outcome, counts once.
func (s *state) exhumeOne(e *emitter, d *deadRun, l *letter, seq uint64, o *command.Outcome) {
	claimed := e.claims[seq] != nil
	s.unclaim(e, seq)
	if o.Kind == command.ReplayFailed {
		if claimed {
			l.replays += o.Attempts
			s.mark(d.row)
		}
		return
	}
	s.mark(d.row)
	l.closed = true
	delete(s.open, letterID(e.ch.index, e.index, l.position))
	s.keepSettled(settledLetter{
		channel: e.ch.index, emitter: e.index, seq: seq, position: l.position, kind: o.Kind, stamp: s.stamp,
	})
	if d.poison {
		e.poison--
	} else {
		e.dead--
	}
	if o.Kind == command.Replayed {
		e.delivered++
	} else {
		e.discarded++
	}
}

// indexLetters makes the open letters of a stretch findable by id.
func (s *state) indexLetters(e *emitter, d *deadRun) {
	for i := range d.letters {
		if !d.letters[i].closed {
			s.open[letterID(e.ch.index, e.index, d.letters[i].position)] = letterRef{e, d.first + uint64(i)}
		}
	}
}

// removeLetters drops the i-th stretch. Dead letters mostly go from the front, which must not move all the others.
func (e *emitter) removeLetters(i int) {
	if i == 0 {
		e.letters[0] = nil
		e.letters = e.letters[1:]
		return
	}
	e.letters = slices.Delete(e.letters, i, i+1)
}

// oldestLetter is the index of the lowest open dead letter or poison whose event was not carried, or noIndex. Positions rise
// with sequence numbers.
func (e *emitter) oldestLetter() uint64 {
	for _, d := range e.letters {
		for i := range d.letters {
			if l := &d.letters[i]; !l.closed && e.ch.carried.covers(d.first+uint64(i)) == nil {
				return l.position.Index
			}
		}
	}
	return noIndex
}
