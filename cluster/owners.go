package cluster

import (
	"cmp"
	"context"
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
		if leader := c.Leader(); leader != "" {
			asked := time.Now()
			if err := c.askLease(ctx, leader); err != nil {
				c.logger.Debug("lease not renewed", "leader", leader, "error", err)
			} else if c.lease.extend(asked.Add(c.cfg.LeaseTTL)) {
				c.changed.fire()
			}
		}
		select {
		case <-time.After(c.cfg.LeaseTTL / 4):
		case <-ctx.Done():
			return
		}
	}
}

func (c *Cluster) askLease(ctx context.Context, leader string) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.LeaseTTL/2)
	defer cancel()
	if leader == c.cfg.NodeID {
		_, err := c.serveLease(ctx, leader, nil)
		return err
	}
	_, err := c.client.call(ctx, laneControl, leader, methodLease, nil)
	return err
}

var errSilentLeader = errors.New("the leader is silent: a write to its log is outstanding")

// serveLease renews the lease of a node, after this node has heard from a quorum by requests it sent later than the question came: it
// leads now, not only then. The grant is noted before the answer goes out and counts from the note.
func (c *Cluster) serveLease(ctx context.Context, from string, _ []byte) ([]byte, error) {
	came := time.Now()
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
	t.grants.grant(from, time.Now(), c.cfg.LeaseTTL)
	return nil, nil
}

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
	// Live tells that the node may still think it holds its lease: nothing of it may be given away.
	Live bool
	// Silent is how long ago it last got a lease, from this leader's election on.
	Silent time.Duration
	// Eligible: a payload-complete voter with a lease.
	Eligible bool
}

// Owners gives the members as a leader sees them. ok is false on any other node, and on a new leader until a full lease has passed
// since its election: until then somebody may hold one that it does not know of.
func (c *Cluster) Owners() (nodes []OwnerNode, ok bool) {
	t := c.tenure()
	now := time.Now()
	if t == nil || !t.isReady() || now.Sub(t.since) < c.cfg.LeaseTTL+leaseMargin {
		return nil, false
	}
	for _, s := range t.raft.GetConfiguration().Configuration().Servers {
		id := string(s.ID)
		n := OwnerNode{ID: id}
		n.Live, n.Silent = t.grants.state(id, now, t.since)
		r, known := c.table.get(id)
		n.Eligible = n.Live && s.Suffrage == raft.Voter && known && r.PayloadComplete && now.Sub(r.heard) < reportFresh
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b OwnerNode) int { return cmp.Compare(a.ID, b.ID) })
	return nodes, true
}

// Lease gives this node's lease.
func (c *Cluster) Lease() Lease { return c.lease }
