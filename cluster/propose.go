package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	methodPropose  = "cluster.propose"
	maxCommand     = 8 << 20
	defaultPropose = 10 * time.Second
)

// Propose commits one command and returns the state machine's result for it, from any node. It waits no longer than ctx, or 10 s when
// ctx has no deadline, and no longer than Config.LeaderWait for a leader. Every error is a *ProposeError.
//
// The command is kept until it is through: the caller must not change it, also after an error.
func (c *Cluster) Propose(ctx context.Context, command []byte) ([]byte, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultPropose)
		defer cancel()
	}
	result, err := c.propose(ctx, command)
	c.metrics.proposal(err)
	if err != nil {
		return nil, err
	}
	return result, nil
}

func (c *Cluster) propose(ctx context.Context, command []byte) ([]byte, *ProposeError) {
	if len(command) > maxCommand {
		return nil, notCommitted(ReasonTooLarge, fmt.Errorf("command of %d bytes, the most is %d", len(command), maxCommand))
	}
	giveUp := time.Now().Add(c.cfg.LeaderWait)
	for {
		if c.draining.Load() || c.ctx.Err() != nil {
			return nil, notCommitted(ReasonShutdown, ErrClosed)
		}
		changed := c.changed.wait()
		result, err := c.proposeOnce(ctx, command)
		if err == nil || !err.again() {
			return result, err
		}
		if time.Now().After(giveUp) {
			return nil, err
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		case <-c.ctx.Done():
			return nil, notCommitted(ReasonShutdown, ErrClosed)
		}
	}
}

// proposeOnce hands the command to whoever leads now.
func (c *Cluster) proposeOnce(ctx context.Context, command []byte) ([]byte, *ProposeError) {
	if err := ctx.Err(); err != nil {
		return nil, notCommitted(ReasonDeadline, err)
	}
	if t := c.tenure(); t != nil {
		if err := c.admit(ctx); err != nil {
			return nil, notCommitted(ReasonForbidden, err)
		}
		return c.proposeHere(ctx, t, command)
	}
	leader := c.Leader()
	if leader == "" || leader == c.cfg.NodeID {
		return nil, notCommitted(ReasonNoLeader, ErrNoLeader)
	}
	cost := int64(len(command) + commandExtra)
	if !c.inFlight.enter(cost) {
		return nil, notCommitted(ReasonOverloaded, errOverloaded)
	}
	defer c.inFlight.leave(cost)
	b, err := c.client.call(ctx, laneBulk, leader, methodPropose, command)
	if err != nil {
		return nil, classifyCall(err)
	}
	return decodeOutcome(b)
}

var errOverloaded = errors.New("too many bytes in flight")

// proposeHere proposes on this node, the leader.
func (c *Cluster) proposeHere(ctx context.Context, t *tenure, command []byte) ([]byte, *ProposeError) {
	if !t.isReady() {
		return nil, notCommitted(ReasonNoLeader, fmt.Errorf("%w: this node is about to lead", ErrNoLeader))
	}
	cost := int64(len(command) + commandExtra)
	if !c.inFlight.enter(cost) {
		return nil, notCommitted(ReasonOverloaded, errOverloaded)
	}
	return t.gather.propose(ctx, command, func() { c.inFlight.leave(cost) })
}

func (c *Cluster) servePropose(ctx context.Context, _ string, command []byte) ([]byte, error) {
	t := c.tenure()
	switch {
	case c.draining.Load():
		return encodeOutcome(nil, notCommitted(ReasonNoLeader, ErrClosed)), nil
	case t == nil:
		return encodeOutcome(nil, notCommitted(ReasonNoLeader, ErrNoLeader)), nil
	}
	return encodeOutcome(c.proposeHere(ctx, t, command)), nil
}
