package owner

import (
	"context"
	"log/slog"
	"time"

	"penstock/emit"
	"penstock/fsm"
	"penstock/fsm/command"
)

// placementInterval is how often a leader looks whether an emitter needs another owner.
const placementInterval = 200 * time.Millisecond

// Members tells a leader whom emitters may be given to; ok is false on a node that must not assign: a follower, or a
// leader that has not yet waited out the leases its predecessor granted.
type Members func() (nodes []emit.Node, ok bool)

// Placer gives every emitter an owner while this node leads.
type Placer struct {
	Machine *fsm.Machine
	Cluster Cluster
	Members Members
	Logger  *slog.Logger

	failing bool // owned by Run: the last proposal failed, which is logged once
}

// Run looks every placementInterval until ctx ends.
func (p *Placer) Run(ctx context.Context) {
	tick := time.NewTicker(placementInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if assignments := p.plan(); len(assignments) > 0 {
			p.propose(ctx, assignments)
		}
	}
}

func (p *Placer) plan() []emit.Assignment {
	nodes, ok := p.Members()
	if !ok {
		return nil
	}
	emitters := p.Machine.Emitters()
	if len(emitters) == 0 {
		return nil
	}
	placed := make([]emit.Placement, len(emitters))
	for i, e := range emitters {
		placed[i] = emit.Placement{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Owner: e.Owner, Epoch: e.Epoch}
	}
	return emit.Place(placed, nodes)
}

// propose commits the assignments. Losing the race against a change of state is normal: each carries the epoch it was
// planned on, the state machine refuses a stale one, and the next look plans anew.
func (p *Placer) propose(ctx context.Context, assignments []emit.Assignment) {
	cmd := command.Assign{Items: make([]command.Assignment, len(assignments))}
	for i, a := range assignments {
		cmd.Items[i] = command.Assignment{
			ChannelIndex: a.ChannelIndex, EmitterIndex: a.EmitterIndex, Node: a.Node, IfEpoch: a.IfEpoch,
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := p.Cluster.Propose(ctx, command.Encode(cmd))
	if err != nil && !p.failing && ctx.Err() == nil {
		p.Logger.Warn("owners not assigned", "emitters", len(assignments), "error", err)
	}
	p.failing = err != nil
}
