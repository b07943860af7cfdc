package cluster

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// leaseMargin is what a new leader waits beyond a full lease, for monotonic clocks that do not run alike.
const leaseMargin = 200 * time.Millisecond

// renewals keeps this node's lease: every quarter of it the leader is asked, and what it grants counts from before the question.
func (c *Cluster) renewals(ctx context.Context) {
	for {
		pause := c.cfg.LeaseTTL / 4
		if leader := c.Leader(); leader != "" && !c.renew(ctx, leader) {
			pause = catchUpPoll
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// catchUpPoll is how soon a node that is behind looks again whether it may take its lease.
const catchUpPoll = 50 * time.Millisecond

// renew asks the leader once; false while this node is behind and should ask again soon.
func (c *Cluster) renew(ctx context.Context, leader string) bool {
	asked := time.Now()
	granted, err := c.askLease(ctx, leader)
	switch {
	case err != nil:
		c.logger.Debug("lease not renewed", "leader", leader, "error", err)
		return true
	case !granted:
		return false
	}
	if c.lease.extend(asked.Add(c.cfg.LeaseTTL)) {
		c.changed.fire()
	}
	return true
}

// askLease asks with what this node knows: whether it holds the lease, and its applied index.
//
//	question  | held u8 | applied u64 |     answer  | granted u8 |     integers are little-endian
func (c *Cluster) askLease(ctx context.Context, leader string) (granted bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.LeaseTTL/2)
	defer cancel()
	applied, _ := c.sm.Applied()
	question := binary.LittleEndian.AppendUint64([]byte{0}, applied)
	if c.lease.Valid() {
		question[0] = 1
	}
	var answer []byte
	if leader == c.cfg.NodeID {
		answer, err = c.serveLease(ctx, leader, question)
	} else {
		answer, err = c.client.call(ctx, laneControl, leader, methodLease, question)
	}
	if err != nil {
		return false, err
	}
	return len(answer) == 1 && answer[0] == 1, nil
}

var errSilentLeader = errors.New("the leader is silent: a write to its log is outstanding")

// serveLease renews the lease of a node, after this node has heard from a quorum by requests it sent later than the question came: it
// leads now, not only then. The grant is noted before the answer goes out and counts from the note.
//
// A lease that is held goes on. One that lapsed, or was never held by that process, is granted only to a node that knows of
// every move: its emitters may have got another owner meanwhile, and from its old state it would send as theirs.
func (c *Cluster) serveLease(ctx context.Context, from string, question []byte) ([]byte, error) {
	came := time.Now()
	if len(question) != 9 {
		return nil, fmt.Errorf("lease question of %d bytes, want 9", len(question))
	}
	t := c.tenure()
	if t == nil {
		return nil, ErrNoLeader
	}
	for !c.heardQuorum(t, came) {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-t.ctx.Done():
			return nil, ErrNoLeader
		case <-ctx.Done():
			return nil, fmt.Errorf("no contact with a quorum: %w", ctx.Err())
		}
	}
	if c.log.silent() {
		return nil, errSilentLeader
	}
	if t.ctx.Err() != nil {
		return nil, ErrNoLeader
	}
	member, votes := suffrageOf(t.raft, from)
	if !member {
		return nil, fmt.Errorf("%w: %s is no member", ErrRefused, from)
	}
	if !votes && !t.grants.withoutVote(from, time.Now()) {
		return []byte{0}, nil
	}
	knows := binary.LittleEndian.Uint64(question[1:]) >= c.sm.OwnersIndex()
	if question[0] != 1 && !(t.grants.comesBack(from, time.Now()) && knows) {
		return []byte{0}, nil
	}
	t.grants.grant(from, votes, time.Now(), c.cfg.LeaseTTL)
	return []byte{1}, nil
}

func suffrageOf(r *raft.Raft, id string) (member, votes bool) {
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if string(s.ID) == id {
			return true, s.Suffrage == raft.Voter
		}
	}
	return false, false
}

// forEver is a silence after which every emitter moves.
const forEver = time.Hour

// heardQuorum tells whether a majority of the voters, this node included, accepted a request of this term that was sent after since.
func (c *Cluster) heardQuorum(t *tenure, since time.Time) bool {
	have, voters := 0, 0
	for _, s := range t.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if string(s.ID) == c.cfg.NodeID || t.trans.contacts.at(string(s.ID), t.term).After(since) {
			have++
		}
	}
	return have >= voters/2+1
}

// OwnerNode is a node that emitters may be given to, or taken from.
type OwnerNode struct {
	ID string
	// Live tells that the node may still think it holds its lease, and has reported lately: it keeps what it has, unless it is not
	// eligible and so has given it up.
	Live bool
	// Silent is how long ago it last got a lease, from this leader's election on.
	Silent time.Duration
	// Eligible: a live, payload-complete voter.
	Eligible bool
}

// Owners gives the members as a leader sees them. ok is false on any other node, and on a new leader until a full lease has passed
// since its election: until then somebody may hold one that it does not know of.
//
// One caller at a time, and only when the moves it decided on from the call before are committed or given up: a node that
// comes back gets its lease between two calls.
func (c *Cluster) Owners() (nodes []OwnerNode, ok bool) {
	t := c.tenure()
	now := time.Now()
	if t == nil || !t.isReady() || now.Sub(t.since) < c.cfg.LeaseTTL+leaseMargin {
		return nil, false
	}
	t.grants.look(now)
	servers := t.raft.GetConfiguration().Configuration().Servers
	voters := map[string]bool{}
	for _, s := range servers {
		voters[string(s.ID)] = s.Suffrage == raft.Voter
	}
	// Who lost its vote, or its membership, is held as one that has just fallen silent until its lease is out.
	held := t.grants.outlasts(voters, now)
	for _, id := range held {
		nodes = append(nodes, OwnerNode{ID: id})
	}
	for _, s := range servers {
		id := string(s.ID)
		if slices.Contains(held, id) {
			continue
		}
		n := OwnerNode{ID: id}
		n.Live, n.Silent = t.grants.state(id, now, t.since)
		if !n.Live && s.Suffrage != raft.Voter {
			n.Silent = forEver // what it had as a voter is out: whatever it owns goes at once, before it gets another lease
		}
		// Without a fresh report nobody can say that a node has given up what it had: one that just came back holds a lease before it
		// reports. It counts as silent since its lease, so it gets nothing and keeps what it has until it is silent for long.
		r, known := c.table.get(id)
		n.Live = n.Live && known && now.Sub(r.heard) < reportFresh
		n.Eligible = n.Live && s.Suffrage == raft.Voter && r.PayloadComplete
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b OwnerNode) int { return cmp.Compare(a.ID, b.ID) })
	return nodes, true
}

// Lease gives this node's lease.
func (c *Cluster) Lease() Lease { return c.lease }
