package retention

import (
	"context"
	"errors"
	"fmt"

	"penstock/event"
	"penstock/fsm"
	"penstock/fsm/command"
	"penstock/node/logread"
)

const (
	carryList   = 64      // runs asked for at a time
	carryBytes  = 1 << 20 // of events in one command, before compression; one event may be larger
	carryEvents = 4096    // in one command
)

// carry goes on with a pass, as far as the budget allows.
func (k *Keeper) carry(ctx context.Context) error {
	for k.budget > 0 && k.Cluster.IsLeader() {
		list := k.Machine.NeededBelow(k.pass, carryList)
		if len(list) == 0 {
			k.Logger.Info("carried what held the log", "to", k.pass, "floor", k.Machine.Floor())
			k.pass = 0
			return nil
		}
		moved := uint64(0)
		for _, x := range list {
			n, err := k.carryRun(ctx, x)
			if moved += n; err != nil {
				return err
			}
			if k.budget <= 0 || ctx.Err() != nil {
				return ctx.Err()
			}
		}
		if moved == 0 { // resolved meanwhile, or nothing more may be carried
			k.pass = 0
			return nil
		}
	}
	return nil
}

// carryRun carries one run in commands of a bounded size and gives the number of events that went.
func (k *Keeper) carryRun(ctx context.Context, x fsm.Needed) (moved uint64, err error) {
	p := piece{keeper: k, ctx: ctx, next: x}
	applied, _ := k.Machine.Applied()
	err = k.Reader.Numbered(ctx, x.ChannelIndex, x.First, applied, nil, func(n logread.Numbered) bool {
		return p.add(n) && n.Seq < x.Last
	})
	var gone *logread.GoneError
	switch {
	case errors.As(err, &gone) || errors.Is(err, logread.ErrMoved): // resolved, or carried by another leader, while it was read
		return p.moved, nil
	case err == nil:
		err = p.err
	}
	if err == nil {
		err = p.flush()
	}
	if err != nil {
		err = fmt.Errorf("carry %d to %d of channel %d: %w", x.First, x.Last, x.ChannelIndex, err)
	}
	return p.moved, err
}

// piece gathers the events of one carry command.
type piece struct {
	keeper *Keeper
	ctx    context.Context
	next   fsm.Needed // First is that of the command being gathered
	joiner event.Joiner
	spans  []command.Span
	moved  uint64
	err    error
}

// add takes the next event of the run, and tells whether another may follow.
func (p *piece) add(n logread.Numbered) bool {
	size := int(n.Batch.Envelope(n.I).Length)
	if p.joiner.Len() > 0 && (p.joiner.Len() >= carryEvents || p.joiner.Bytes()+size > carryBytes) {
		if p.err = p.flush(); p.err != nil || p.keeper.budget <= 0 {
			return false
		}
	}
	if p.err = p.joiner.Add(n.Batch.Batch, n.I); p.err != nil {
		return false
	}
	at, stamp := n.Position(), n.Batch.StampOf(n.I)
	if i := len(p.spans) - 1; i >= 0 && p.spans[i].Index == at.Index && p.spans[i].Ordinal+p.spans[i].Count == at.Ordinal {
		p.spans[i].Count++
	} else {
		p.spans = append(p.spans, command.Span{Position: at, Count: 1, Stamp: stamp})
	}
	return true
}

// flush proposes what was gathered.
func (p *piece) flush() error {
	n := uint64(p.joiner.Len())
	if n == 0 {
		return nil
	}
	status, err := p.keeper.propose(p.ctx, command.Carry{
		ChannelIndex: p.next.ChannelIndex, First: p.next.First, Old: p.next.Location, Spans: p.spans, Body: p.joiner.Encode(p.next.ChannelIndex),
	})
	if err != nil {
		return err
	}
	if status == command.OK {
		p.moved += n
		if m := p.keeper.metrics; m != nil {
			m.carried.Add(float64(n))
			m.carriedBytes.Add(float64(p.joiner.Bytes()))
		}
	}
	p.keeper.budget -= int64(p.joiner.Bytes()) + 256
	p.next.First += n
	p.joiner.Reset()
	p.spans = nil
	return nil
}
