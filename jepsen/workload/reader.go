package workload

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"penstock/jepsen/client"
	"penstock/jepsen/history"
)

const pageSize = 1000

// Reader follows one channel at one node.
type Reader struct {
	rec     *recorder
	node    *client.Client
	channel string
}

// NewReader opens its history.
func NewReader(env *Env, name string, node *client.Client, channel string) (*Reader, error) {
	rec, err := env.recorder(name)
	if err != nil {
		return nil, err
	}
	return &Reader{rec: rec, node: node, channel: channel}, nil
}

// Follow tails until stop is done.
func (r *Reader) Follow(stop context.Context) error {
	from := "1"
	for stop.Err() == nil {
		next, n, ok := r.page(stop, history.Tail, from, time.Second)
		from = next
		switch {
		case !ok:
			pause(stop, time.Duration(100+r.rec.random.IntN(300))*time.Millisecond)
		case n < pageSize:
			pause(stop, 100*time.Millisecond) // let a page fill: one line of history per event would drown the run
		}
	}
	return r.rec.out.Close()
}

// Whole reads the channel from its first readable index to index `to`, and reports an error when the node does not show it
// before ctx ends.
func (r *Reader) Whole(ctx context.Context, to uint64) error {
	from := "1"
	for {
		next, n, ok := r.page(ctx, history.FinalTail, from, 0)
		if !ok {
			if ctx.Err() != nil {
				return errors.Join(fmt.Errorf("read all of %s at %s: %w", r.channel, r.node.Node, ctx.Err()), r.rec.out.Close())
			}
			pause(ctx, 200*time.Millisecond)
		}
		if n == 0 && ok && indexOf(next) >= to {
			return r.rec.out.Close()
		}
		if n == 0 && ok && next == from {
			return r.rec.out.Close() // nothing follows and the node names no further index
		}
		from = next
	}
}

func (r *Reader) page(ctx context.Context, f, from string, wait time.Duration) (next string, n int, ok bool) {
	op := r.rec.invoke(history.Op{F: f, Node: r.node.Node, Channel: r.channel, From: from})
	page, a := r.node.Tail(ctx, r.channel, from, pageSize, wait)
	op.Seen, op.Next = page.Events, page.Next
	r.rec.complete(op, a)
	if a.Outcome != client.Done {
		if page.First > 0 {
			return strconv.FormatUint(page.First, 10), 0, false // 410: what was before is gone by the channel's retention
		}
		return from, 0, false
	}
	if page.Next == "" {
		return from, len(page.Events), true
	}
	return page.Next, len(page.Events), true
}

func indexOf(position string) uint64 {
	for i := range position {
		if position[i] == '.' {
			position = position[:i]
			break
		}
	}
	n, _ := strconv.ParseUint(position, 10, 64)
	return n
}
