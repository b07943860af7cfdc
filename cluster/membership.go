package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

const (
	methodMember  = "cluster.member"
	memberTimeout = 10 * time.Second
)

type memberOp string

const (
	opNonvoter memberOp = "nonvoter"
	opPromote  memberOp = "promote"
	opDemote   memberOp = "demote"
	opRemove   memberOp = "remove"
	opTransfer memberOp = "transfer"
)

type memberChange struct {
	Op memberOp `json:"op"`
	ID string   `json:"id"`
	// Force takes the change although it leaves no voter to spare.
	Force bool `json:"force,omitempty"`
}

// fromVoter tells whether the change takes a vote: the leader's own is taken by its successor.
func (m memberChange) fromVoter() bool { return m.Op == opRemove || m.Op == opDemote }

// ErrRefused: a membership change was refused; nothing was changed.
var ErrRefused = errors.New("refused")

// AddNonvoter makes a node, which must have said hello, a member without a vote. It is sent state and log from then on.
func (c *Cluster) AddNonvoter(ctx context.Context, id string) error {
	return c.change(ctx, memberChange{Op: opNonvoter, ID: id})
}

// Promote gives a member its vote. It is refused until the node holds every payload that may be needed and has caught up.
func (c *Cluster) Promote(ctx context.Context, id string) error {
	return c.change(ctx, memberChange{Op: opPromote, ID: id})
}

// Demote takes a member's vote. A leader hands over first. force takes it although no voter is left to spare.
func (c *Cluster) Demote(ctx context.Context, id string, force bool) error {
	return c.change(ctx, memberChange{opDemote, id, force})
}

// Remove removes a member, also a dead one. A leader hands over first and is removed by its successor. force as for Demote.
func (c *Cluster) Remove(ctx context.Context, id string, force bool) error {
	return c.change(ctx, memberChange{opRemove, id, force})
}

// Transfer hands leadership to the live voter that has most of the log.
func (c *Cluster) Transfer(ctx context.Context) error {
	return c.change(ctx, memberChange{Op: opTransfer})
}

// TransferTo hands leadership to one voter. To the one that leads it is done.
func (c *Cluster) TransferTo(ctx context.Context, id string) error {
	return c.change(ctx, memberChange{Op: opTransfer, ID: id})
}

// change carries a membership change to the leader. Changes go one at a time, each against the configuration it was made for.
func (c *Cluster) change(ctx context.Context, m memberChange) error {
	ctx, cancel := context.WithTimeout(ctx, min(memberTimeout, defaultCallTimeout(ctx)))
	defer cancel()
	for {
		changed := c.changed.wait()
		leader := c.Leader()
		switch {
		case leader == c.cfg.NodeID && c.admit(ctx) != nil:
			return c.admit(ctx)
		case leader == c.cfg.NodeID && m.fromVoter() && m.ID == leader:
			if err := c.stepAside(ctx, m); err != nil {
				return err
			}
		case leader == c.cfg.NodeID:
			if err := c.changeHere(ctx, m); !errors.Is(err, ErrNoLeader) {
				return err
			}
		case leader != "":
			body, err := json.Marshal(m)
			if err != nil {
				return fmt.Errorf("encode member change: %w", err)
			}
			b, err := c.client.call(ctx, laneControl, leader, methodMember, body)
			if err == nil {
				err = decodeChange(b)
			}
			if !errors.Is(err, ErrNoLeader) && (err == nil || c.Leader() == leader) {
				return err
			}
		}
		select {
		case <-changed:
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s %s: %w", m.Op, m.ID, ctx.Err())
		case <-c.ctx.Done():
			return ErrClosed
		}
	}
}

// stepAside hands leadership over before this node, the leader, loses its vote: what would refuse the change refuses it before that.
func (c *Cluster) stepAside(ctx context.Context, m memberChange) error {
	if t := c.tenure(); t != nil && t.isReady() {
		if err := c.allowed(t, m); err != nil {
			return err
		}
	}
	if err := c.changeHere(ctx, memberChange{Op: opTransfer}); err != nil && !errors.Is(err, ErrNoLeader) {
		return fmt.Errorf("hand over before the leader loses its vote: %w", err)
	}
	return nil
}

func (c *Cluster) serveMember(ctx context.Context, from string, body []byte) ([]byte, error) {
	var m memberChange
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, fmt.Errorf("decode member change: %w", err)
	}
	if m.fromVoter() && m.ID == c.cfg.NodeID {
		return encodeChange(c.change(ctx, m)), nil
	}
	return encodeChange(c.changeHere(ctx, m)), nil
}

// The answer to a membership change is one byte, for what the asker must tell apart, and the text of the error.
var changeErrors = []error{1: ErrRefused, 2: ErrNoLeader, 3: errors.New("failed")}

func encodeChange(err error) []byte {
	switch {
	case err == nil:
		return []byte{0}
	case errors.Is(err, ErrRefused):
		return append([]byte{1}, err.Error()...)
	case errors.Is(err, ErrNoLeader):
		return append([]byte{2}, err.Error()...)
	default:
		return append([]byte{3}, err.Error()...)
	}
}

func decodeChange(b []byte) error {
	switch {
	case len(b) == 0 || int(b[0]) >= len(changeErrors):
		return fmt.Errorf("%w: answer to a member change of %d bytes", errFrame, len(b))
	case b[0] == 0:
		return nil
	}
	kind := changeErrors[b[0]]
	return fmt.Errorf("%w: %s", kind, strings.TrimPrefix(string(b[1:]), kind.Error()+": "))
}

// changeHere carries a change out on this node, the leader. A second one meanwhile is refused, not queued: whoever asked for it did not
// know of the first.
func (c *Cluster) changeHere(ctx context.Context, m memberChange) error {
	t := c.tenure()
	if t == nil || !t.isReady() {
		return ErrNoLeader
	}
	if !c.changing.TryLock() {
		return fmt.Errorf("%w: another change of the members is under way", ErrRefused)
	}
	defer c.changing.Unlock()
	_, prev := c.book.configuration()
	if m.Op == opTransfer {
		if m.ID == c.cfg.NodeID {
			return nil
		}
		if m.ID == "" {
			m.ID = c.successor(t)
		}
	}
	if err := c.allowed(t, m); err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	wait := max(time.Until(deadline), time.Millisecond)
	id, addr := raft.ServerID(m.ID), raft.ServerAddress(m.ID)
	var f raft.Future
	switch m.Op {
	case opNonvoter:
		f = t.raft.AddNonvoter(id, addr, prev, wait)
	case opPromote:
		f = t.raft.AddVoter(id, addr, prev, wait)
	case opDemote:
		f = t.raft.DemoteVoter(id, prev, wait)
	case opRemove:
		f = t.raft.RemoveServer(id, prev, wait)
	case opTransfer:
		f = t.raft.LeadershipTransferToServer(id, addr)
	default:
		return fmt.Errorf("%w: unknown member change %q", ErrRefused, m.Op)
	}
	err := await(ctx, f)
	if m.Op == opTransfer {
		c.wg.Go(func() { c.guardTransfer(t) })
	}
	if err != nil {
		return changeError(m, err)
	}
	c.logger.Info("members changed", "change", string(m.Op), "peer", m.ID, "forced", m.Force)
	c.changed.fire()
	return nil
}

// changeError tells what was certainly not begun, or came to nothing, from what may still happen.
func changeError(m memberChange, err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return ErrNoLeader
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return fmt.Errorf("%w: the change before is not committed yet", ErrRefused)
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("%w: leadership is being handed over", ErrRefused)
	case m.Op == opTransfer: // it is over, and this node leads on
		return fmt.Errorf("%w: leadership was not handed to %s: %w", ErrRefused, m.ID, err)
	case strings.Contains(err.Error(), "configuration changed since"): // the library has no error for it
		return fmt.Errorf("%w: the members have just been changed by another: %w", ErrRefused, err)
	}
	return fmt.Errorf("%s %s: %w", m.Op, m.ID, err)
}
