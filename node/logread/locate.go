package logread

import (
	"context"

	"penstock/event"
)

// Numbered is an event with its sequence number in its channel.
type Numbered struct {
	Item
	Seq uint64
}

// Walk calls fn for each accepted event of the channel with its sequence number, from an entry that begins with sequence
// number seq, up to and including the entry at to, until fn returns false.
func (r *Reader) Walk(ctx context.Context, channelIndex, index, seq, to uint64, fn func(Numbered) bool) error {
	_, err := r.scanLog(ctx, channelIndex, event.Position{Index: index}, to, func(it Item) bool {
		more := fn(Numbered{Item: it, Seq: seq})
		seq++
		return more
	})
	return err
}
