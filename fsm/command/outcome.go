package command

import (
	"unicode/utf8"

	"penstock/event"
	"penstock/fsm/internal/wire"
)

// OutcomeKind says what became of the deliveries of an outcome. The numbers are part of the format.
type OutcomeKind uint8

// The kinds of outcomes. Delivered, Dead, Poison and Lost resolve a delivery; what was said first stays.
const (
	Delivered OutcomeKind = 1
	// Failed: an attempt failed, the deliveries stay pending.
	Failed OutcomeKind = 2
	Dead   OutcomeKind = 3
	Poison OutcomeKind = 4
	// Lost: at-most-once only; the single attempt failed or its outcome is not known.
	Lost OutcomeKind = 5
	// Attempted: at-most-once only; committed before the single attempt.
	Attempted OutcomeKind = 6
	// Replayed: dead or poison deliveries were delivered by a replay.
	Replayed OutcomeKind = 7
	// ReplayFailed: a replay of dead or poison deliveries failed; their redelivery count rises by Attempts.
	ReplayFailed OutcomeKind = 8
	// Discarded: an operator gave up dead or poison deliveries.
	Discarded OutcomeKind = 9
)

var outcomeNames = [...]string{
	Delivered: "delivered", Failed: "failed", Dead: "dead", Poison: "poison", Lost: "lost", Attempted: "attempted",
	Replayed: "replayed", ReplayFailed: "replay-failed", Discarded: "discarded",
}

// String is the kind's name.
func (k OutcomeKind) String() string {
	if int(k) < len(outcomeNames) && outcomeNames[k] != "" {
		return outcomeNames[k]
	}
	return "unknown"
}

// Class is how a failure was judged (DESIGN section 7). The numbers are part of the format; 0 is no failure.
type Class uint8

// The classes.
const (
	ClassNone      Class = 0
	ClassTransient Class = 1
	ClassPermanent Class = 2
	ClassAuth      Class = 3
	ClassPoison    Class = 4
)

// String is the class's name; "" for none.
func (c Class) String() string {
	switch c {
	case ClassNone:
		return ""
	case ClassTransient:
		return "transient"
	case ClassPermanent:
		return "permanent"
	case ClassAuth:
		return "auth"
	case ClassPoison:
		return "poison"
	}
	return "unknown"
}

// Outcome is what became of the deliveries First..Last of one emitter.
type Outcome struct {
	First, Last uint64 // channel sequence numbers, inclusive
	Kind        OutcomeKind
	Attempts    uint32 // since the last report, this one included
	At          int64  // unix nanoseconds of the last attempt
	Class       Class
	Status      uint16 // HTTP status, 0 = none
	Reason      string // at most MaxReason bytes
	// Positions are those of the deliveries First..Last, each of them, in order. Dead and Poison only: the state machine
	// keeps no payload and finds the dead letter's event in the log by them.
	Positions []event.Position
	// Compaction is the id of the compaction that they were sent with, of which they may be a part. With Positions only: what a
	// later owner rebuilds, and replays, must carry the same id (P6).
	Compaction [16]byte
}

// appendOutcome appends one outcome.
//
//	+-------+------------+------+----------+------+-------+--------+--------+-------+---------------------------+------------+
//	| first | last-first | kind | attempts | at   | class | status | reason | count | positions, as differences | compaction |
//	+-------+------------+------+----------+------+-------+--------+--------+-------+---------------------------+------------+
//	  n       n            1      n          w      1       n        s        n       { index - previous index  n, 16, if count
//	                                                                                   ordinal  n } ...            is not 0
func appendOutcome(dst []byte, o *Outcome) []byte {
	dst = wire.AppendUint(dst, o.First)
	dst = wire.AppendUint(dst, o.Last-o.First)
	dst = wire.AppendUint(append(dst, byte(o.Kind)), uint64(o.Attempts))
	dst = append(wire.AppendWord(dst, uint64(o.At)), byte(o.Class))
	dst = wire.AppendUint(dst, uint64(o.Status))
	dst = wire.AppendString(dst, cutText(o.Reason, MaxReason))
	dst = AppendPositions(dst, o.Positions)
	if len(o.Positions) > 0 {
		dst = append(dst, o.Compaction[:]...)
	}
	return dst
}

func readOutcome(r *wire.Reader) Outcome {
	var o Outcome
	o.First = r.Uint()
	o.Last = o.First + r.Uint()
	if o.Last < o.First {
		r.Fail("outcome ends before it begins")
	}
	o.Kind = OutcomeKind(r.Byte())
	if r.Err() == nil && (o.Kind < Delivered || o.Kind > Discarded) {
		r.Fail("outcome kind %d", o.Kind)
	}
	o.Attempts = r.Uint32()
	o.At = int64(r.Word())
	if o.Class = Class(r.Byte()); o.Class > ClassPoison {
		r.Fail("outcome class %d", o.Class)
	}
	status := r.Uint32()
	if status > 1<<16-1 {
		r.Fail("outcome status %d", status)
	}
	o.Status = uint16(status)
	o.Reason = r.String(MaxReason)
	if o.Positions = ReadPositions(r); len(o.Positions) > 0 {
		copy(o.Compaction[:], r.Raw(len(o.Compaction)))
	}
	return o
}

// AppendPositions appends a list of positions in log order, each index as the difference to the one before.
func AppendPositions(dst []byte, ps []event.Position) []byte {
	dst = wire.AppendUint(dst, uint64(len(ps)))
	last := uint64(0)
	for _, p := range ps {
		dst = wire.AppendUint(wire.AppendUint(dst, p.Index-last), uint64(p.Ordinal))
		last = p.Index
	}
	return dst
}

// ReadPositions reads what AppendPositions wrote. It is exported for the rows of the state machine.
func ReadPositions(r *wire.Reader) []event.Position {
	n := r.Count(2)
	if n == 0 {
		return nil
	}
	ps := make([]event.Position, 0, n)
	last := uint64(0)
	for range n {
		last += r.Uint()
		ps = append(ps, event.Position{Index: last, Ordinal: r.Uint32()})
	}
	return ps
}

// Append implements Command.
func (c Outcomes) Append(dst []byte) []byte {
	dst = wire.AppendUint(head(dst, KindOutcomes), c.ChannelIndex)
	dst = wire.AppendUint(dst, c.EmitterIndex)
	dst = wire.AppendUint(dst, c.Epoch)
	dst = wire.AppendString(dst, c.Node)
	dst = wire.AppendUint(dst, uint64(len(c.Outcomes)))
	for i := range c.Outcomes {
		dst = appendOutcome(dst, &c.Outcomes[i])
	}
	return dst
}

func decodeOutcomes(r *wire.Reader) Command {
	c := Outcomes{ChannelIndex: r.Uint(), EmitterIndex: r.Uint(), Epoch: r.Uint(), Node: r.String(maxName)}
	const smallest = 16 // bytes of an outcome whose every varint is one byte
	n := r.Count(smallest)
	if n > 0 {
		c.Outcomes = make([]Outcome, 0, min(n, 1024))
	}
	for range n {
		c.Outcomes = append(c.Outcomes, readOutcome(r))
	}
	return c
}

// cutText shortens s to limit bytes without cutting a rune in two.
func cutText(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
