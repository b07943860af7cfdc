package logread

import (
	"context"
	"errors"
	"fmt"

	"penstock/event"
	"penstock/fsm"
	"penstock/fsm/command"
)

// carry is one carry command of an entry.
type carry struct {
	channelIndex, first uint64 // sequence number of its first event
	*Batch
}

func (e *Entry) addCarry(raw []byte, index uint64) error {
	c, err := command.Decode(raw)
	if errors.Is(err, command.ErrMalformed) {
		return nil // the state machine answered it so
	}
	if err != nil {
		return err
	}
	x := c.(command.Carry)
	b, err := event.DecodeBatch(x.Body)
	if err != nil || uint64(b.Len()) != command.CountSpans(x.Spans) {
		return nil
	}
	e.carries = append(e.carries, &carry{x.ChannelIndex, x.First, &Batch{Index: index, Batch: b, spans: x.Spans}})
	e.size += 2*int64(b.PayloadBytes()) + int64(b.Len())*eventOverhead
	return nil
}

// carriedTries bounds how often a run is looked up again that was carried elsewhere while it was read.
const carriedTries = 5

// ErrMoved is carried events that were carried elsewhere, again and again, while they were read.
var ErrMoved = errors.New("carried events moved while they were read")

// carriedItems calls fn for the events lo..hi of a carried run until it returns false.
func (r *Reader) carriedItems(channelIndex uint64, run fsm.CarriedRun, lo, hi uint64, fn func(Numbered) bool) (more bool, err error) {
	e, err := r.Entry(run.Location)
	var gone *GoneError
	if errors.As(err, &gone) {
		return false, ErrMoved
	}
	if err != nil {
		return false, err
	}
	for _, c := range e.carries {
		last := c.first + uint64(c.Len()) - 1
		if c.channelIndex != channelIndex || c.first > run.First || last < run.Last || c.Position(int(lo-c.first)) != run.Position(lo) {
			continue
		}
		for seq := lo; seq <= hi; seq++ {
			if !fn(Numbered{Item: Item{Batch: c.Batch, I: int(seq - c.first)}, Seq: seq}) {
				return false, nil
			}
		}
		return true, nil
	}
	return false, fmt.Errorf("read log: entry %d does not hold the carried events %d to %d", run.Location, run.First, run.Last)
}

// At reads one event by its position, wherever its bytes lie now. GoneError: nowhere.
func (r *Reader) At(channelIndex uint64, p event.Position) (Item, error) {
	var out Item
	for range carriedTries {
		e, err := r.Entry(p.Index)
		if err == nil {
			for _, b := range e.Batches {
				if i := int(p.Ordinal) - int(b.FirstOrdinal); i >= 0 && i < b.Len() && b.Accepted(i) {
					return Item{Batch: b, I: i}, nil
				}
			}
			return Item{}, fmt.Errorf("no event at %s", p)
		}
		var gone *GoneError
		if !errors.As(err, &gone) {
			return Item{}, err
		}
		run, ok := r.state.CarriedAt(channelIndex, p)
		if !ok {
			return Item{}, err
		}
		seq, _ := run.SeqAt(p)
		if run.Position(seq) != p {
			return Item{}, err
		}
		if _, err = r.carriedItems(channelIndex, run, seq, seq, func(n Numbered) bool { out = n.Item; return true }); !errors.Is(err, ErrMoved) {
			return out, err
		}
	}
	return Item{}, fmt.Errorf("event at %s: %w", p, ErrMoved)
}

// Numbered calls fn for each accepted event of the channel from a sequence number on, with its number, up to and including the
// entry at to, until fn returns false. It begins at hint when that is nearer than what the state machine knows, and leaves
// there where it found the first event in the log, so that who reads on from there reads each entry once. hint may be nil.
func (r *Reader) Numbered(ctx context.Context, channelIndex, seq, to uint64, hint *fsm.Point, fn func(Numbered) bool) error {
	if hint == nil {
		hint = new(fsm.Point)
	}
	moved := 0
	for {
		run, ok := r.state.Carried(channelIndex, seq)
		if ok && run.First <= seq {
			more, err := r.carriedItems(channelIndex, run, seq, run.Last, func(n Numbered) bool {
				seq = n.Seq + 1
				return fn(n)
			})
			if errors.Is(err, ErrMoved) && moved < carriedTries {
				moved++
				continue
			}
			if err != nil || !more {
				return err
			}
			continue
		}
		until := uint64(0) // the first event that is to be had from a carry again
		if ok {
			until = run.First
		}
		p, found := r.state.Point(channelIndex, seq)
		if !found {
			return fmt.Errorf("no point of the log at or before sequence number %d", seq)
		}
		if hint.Index != 0 && hint.Seq <= seq && hint.Seq >= p.Seq {
			p = *hint
		}
		again, begin := false, seq
		*hint = p
		err := r.Walk(ctx, channelIndex, p.Index, p.Seq, to, func(n Numbered) bool {
			if at := n.Position().Index; at != hint.Index && n.Seq <= begin {
				*hint = fsm.Point{Index: at, Seq: n.Seq}
			}
			if n.Seq < seq {
				return true
			}
			if again = n.Seq == until; again {
				return false
			}
			seq = n.Seq + 1
			return fn(n)
		})
		var gone *GoneError
		if errors.As(err, &gone) && moved < carriedTries { // carried meanwhile, perhaps
			if now, ok := r.state.Carried(channelIndex, seq); ok && now.First <= seq {
				moved++
				continue
			}
		}
		if err != nil || !again {
			return err
		}
	}
}

// Resume is Scan that does not mind what is gone: it goes on with the next event there is. The zero position is the
// beginning: the oldest event that is needed, or the first readable entry.
func (r *Reader) Resume(ctx context.Context, channelIndex uint64, from event.Position, to uint64, fn func(Item) bool) (event.Position, error) {
	for {
		first, err := r.First()
		if err != nil {
			return from, err
		}
		next, more, err := r.scanCarried(ctx, channelIndex, from, first, fn)
		if err != nil || !more {
			return next, err
		}
		next, err = r.scanLog(ctx, channelIndex, next, to, fn)
		var gone *GoneError
		if !errors.As(err, &gone) {
			return next, err
		}
		from = next // the log was cut meanwhile
	}
}

// Scan calls fn for each accepted event of the channel (by creation index) from a position up to and including the entry
// at to, in order, until fn returns false. It returns the position to go on from, never one below from; when ctx ends that
// is where it had come to. A position that is gone gives GoneError: below the first readable index only the positions of
// events that were carried can be asked for, and from those on only such events are left.
func (r *Reader) Scan(ctx context.Context, channelIndex uint64, from event.Position, to uint64, fn func(Item) bool) (event.Position, error) {
	first, err := r.First()
	if err != nil {
		return from, err
	}
	if from.Index < first {
		if run, ok := r.state.CarriedAt(channelIndex, from); ok {
			if seq, ok := run.SeqAt(from); ok && run.Position(seq) == from {
				next, more, err := r.scanCarried(ctx, channelIndex, from, first, fn)
				if err != nil || !more {
					return next, err
				}
				from = next
			}
		}
	}
	return r.scanLog(ctx, channelIndex, from, to, fn)
}

// scanCarried shows the carried events at or after from that were committed below first. next is where to go on: the position
// of a carried event, or first.
func (r *Reader) scanCarried(ctx context.Context, channelIndex uint64, from event.Position, first uint64, fn func(Item) bool) (next event.Position, more bool, err error) {
	more = true
	for moved := 0; from.Index < first; {
		if err := ctx.Err(); err != nil {
			return from, false, err
		}
		run, ok := r.state.CarriedAt(channelIndex, from)
		seq, in := run.SeqAt(from)
		if !ok || !in {
			break
		}
		if from = run.Position(seq); from.Index >= first {
			break
		}
		if !more {
			return from, false, nil
		}
		_, err = r.carriedItems(channelIndex, run, seq, run.Last, func(n Numbered) bool {
			p := n.Position()
			if from = p; p.Index >= first {
				return false
			}
			from.Ordinal++
			more = fn(n.Item)
			return more
		})
		if errors.Is(err, ErrMoved) && moved < carriedTries {
			moved++
			continue
		}
		if err != nil {
			return from, false, err
		}
	}
	if from.Index < first {
		from = event.Position{Index: first}
	}
	return from, more, nil
}
