package logread

import (
	"context"

	"penstock/event"
)

// Item is one accepted event of a scan.
type Item struct {
	Batch *Batch
	// I is the event's place in Batch.
	I int
}

// Position is where the event was first committed.
func (it Item) Position() event.Position { return it.Batch.Position(it.I) }

// scanLog is Scan over what lies where it was committed.
func (r *Reader) scanLog(ctx context.Context, channelIndex uint64, from event.Position, to uint64, fn func(Item) bool) (event.Position, error) {
	for index := from.Index; index <= to; index++ {
		here := event.Position{Index: index}
		if index == from.Index {
			here = from
		}
		if err := ctx.Err(); err != nil {
			return here, err
		}
		e, err := r.Entry(index)
		if err != nil {
			return here, err
		}
		for _, b := range e.Batches {
			if b.Header().ChannelIndex != channelIndex {
				continue
			}
			for i := range b.Len() {
				p := b.Position(i)
				if p.Compare(from) < 0 || !b.Accepted(i) {
					continue
				}
				if !fn(Item{Batch: b, I: i}) {
					return event.Position{Index: index, Ordinal: p.Ordinal + 1}, nil
				}
			}
		}
	}
	if from.Index > to {
		return from, nil
	}
	return event.Position{Index: to + 1}, nil
}
