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
	methodMember   = "cluster.member"
	memberTimeout  = 10 * time.Second
	promoteMaxLag  = 1024 // entries a node may be behind the leader when it becomes a voter
	reachableAfter = 2 * time.Second
)

// Member is one node of Raft's newest configuration as this node knows it.
type Member struct {
	ID              string
	Suffrage        string // voter or nonvoter
	RaftAddr        string
	GossipAddr      string
	HTTPAddr        string
	Leader          bool
	Reachable       bool
	LastContact     time.Duration // since its last report; negative when there was none
	LastIndex       uint64
	Applied         uint64
	Incarnation     uint64
	PayloadComplete bool
	Extra           json.RawMessage
}

// Members gives the members in the order of the configuration.
func (c *Cluster) Members() []Member {
	in := c.instance()
	conf, _ := c.book.configuration()
	if in != nil {
		conf = in.raft.GetConfiguration().Configuration()
	}
	leader := c.Leader()
	now := time.Now()
	out := make([]Member, 0, len(conf.Servers))
	for _, s := range conf.Servers {
		m := Member{ID: string(s.ID), Suffrage: suffrage(s.Suffrage), Leader: string(s.ID) == leader, LastContact: -1}
		info, known := c.book.get(m.ID)
		if m.ID == c.cfg.NodeID {
			c.idMu.Lock()
			info, known = c.selfLocked(), true
			c.idMu.Unlock()
		}
		if known {
			m.RaftAddr, m.GossipAddr, m.HTTPAddr, m.Incarnation, m.LastIndex = info.Raft, info.Gossip, info.HTTP, info.Incarnation, info.LastIndex
		}
		if r, ok := c.table.get(m.ID); ok {
			m.LastContact = now.Sub(r.heard)
			m.LastIndex, m.Applied, m.Incarnation = r.Self.LastIndex, r.Applied, r.Self.Incarnation
			m.PayloadComplete, m.Extra = r.PayloadComplete, r.Extra
			m.Reachable = m.LastContact < reachableAfter+reportPause
		}
		m.Reachable = m.Reachable || m.ID == c.cfg.NodeID
		out = append(out, m)
	}
	return out
}

func suffrage(s raft.ServerSuffrage) string {
	if s == raft.Voter {
		return "voter"
	}
	return "nonvoter"
}

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
}

// ErrRefused: a membership change was refused; nothing was changed.
var ErrRefused = errors.New("refused")

// AddNonvoter makes a node, which must have said hello, a member without a vote. It is sent state and log from then on.
func (c *Cluster) AddNonvoter(ctx context.Context, id string) error {
	return c.change(ctx, memberChange{opNonvoter, id})
}

// Promote gives a member its vote. It is refused until the node holds every payload that may be needed and has caught up.
func (c *Cluster) Promote(ctx context.Context, id string) error {
	return c.change(ctx, memberChange{opPromote, id})
}

// Demote takes a member's vote.
func (c *Cluster) Demote(ctx context.Context, id string) error {
	return c.change(ctx, memberChange{opDemote, id})
}

// Remove removes a member, also a dead one. A leader hands over first and is removed by its successor.
func (c *Cluster) Remove(ctx context.Context, id string) error {
	return c.change(ctx, memberChange{opRemove, id})
}

// Transfer hands leadership to the voter that has most of the log.
func (c *Cluster) Transfer(ctx context.Context) error {
	return c.change(ctx, memberChange{opTransfer, ""})
}

// TransferTo hands leadership to one voter.
func (c *Cluster) TransferTo(ctx context.Context, id string) error {
	return c.change(ctx, memberChange{opTransfer, id})
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
		case leader == c.cfg.NodeID && m.Op == opRemove && m.ID == leader:
			if err := c.changeHere(ctx, memberChange{Op: opTransfer}); err != nil {
				return fmt.Errorf("hand over before the leader is removed: %w", err)
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

func (c *Cluster) serveMember(ctx context.Context, from string, body []byte) ([]byte, error) {
	var m memberChange
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, fmt.Errorf("decode member change: %w", err)
	}
	if m.Op == opRemove && m.ID == c.cfg.NodeID {
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

// changeHere carries a change out on this node, the leader.
func (c *Cluster) changeHere(ctx context.Context, m memberChange) error {
	t := c.tenure()
	if t == nil || !t.isReady() {
		return ErrNoLeader
	}
	c.changing.Lock()
	defer c.changing.Unlock()
	_, prev := c.book.configuration()
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
		f = transfer(t.raft, id, addr)
	default:
		return fmt.Errorf("%w: unknown member change %q", ErrRefused, m.Op)
	}
	err := await(ctx, f)
	if errors.Is(err, raft.ErrNotLeader) {
		return ErrNoLeader
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", m.Op, m.ID, err)
	}
	c.logger.Info("members changed", "change", string(m.Op), "peer", m.ID)
	c.changed.fire()
	return nil
}

func transfer(r *raft.Raft, id raft.ServerID, addr raft.ServerAddress) raft.Future {
	if id == "" {
		return r.LeadershipTransfer()
	}
	return r.LeadershipTransferToServer(id, addr)
}

// allowed refuses what Raft would do and should not.
func (c *Cluster) allowed(t *tenure, m memberChange) error {
	var found *raft.Server
	for _, s := range t.raft.GetConfiguration().Configuration().Servers {
		if string(s.ID) == m.ID {
			found = &s
		}
	}
	switch {
	case m.Op == opTransfer && m.ID == "":
		return nil
	case m.Op == opNonvoter:
		if err := checkNodeID(m.ID); err != nil {
			return fmt.Errorf("%w: %w", ErrRefused, err)
		}
		if found != nil {
			return fmt.Errorf("%w: %s is a member already", ErrRefused, m.ID)
		}
		if p, ok := c.book.get(m.ID); !ok || p.Raft == "" {
			return fmt.Errorf("%w: node %s has not said hello yet; start it with this cluster's seeds", ErrRefused, m.ID)
		}
		return nil
	case found == nil:
		return fmt.Errorf("%w: %s is not a member", ErrRefused, m.ID)
	case m.Op == opPromote:
		return c.promotable(t, m.ID)
	}
	return nil
}

func (c *Cluster) promotable(t *tenure, id string) error {
	r, ok := c.table.get(id)
	switch {
	case !ok || time.Since(r.heard) > reportFresh:
		return fmt.Errorf("%w: no report from node %s in the last seconds", ErrRefused, id)
	case !r.PayloadComplete:
		return fmt.Errorf("%w: node %s does not hold every needed entry yet (log ends at %d, applied %d)", ErrRefused, id, r.Self.LastIndex, r.Applied)
	case r.Self.LastIndex+promoteMaxLag < t.raft.LastIndex():
		return fmt.Errorf("%w: node %s is at %d of %d", ErrRefused, id, r.Self.LastIndex, t.raft.LastIndex())
	}
	return nil
}
