package cluster

import (
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

// Status is this node as it sees itself.
type Status struct {
	NodeID, ClusterName string
	ClusterID           string // hex; empty before there is a cluster
	// State is starting, follower, candidate, leader or closed.
	State string
	// Waiting says what a starting node waits for, naming who is missing.
	Waiting string
	// Ready: this node applied, once since its start, everything committed until then, and knows a leader.
	Ready       bool
	Leader      string
	LeaderSince time.Time
	Term        uint64

	CommitIndex, AppliedIndex        uint64
	FirstIndex, LastIndex, BaseIndex uint64
	Floor, Horizon                   uint64
	SnapshotIndex                    uint64
	Lease                            bool
	Incarnation                      uint64
	PayloadComplete                  bool
	CatchingUp                       uint64 // the index an installation must still reach; 0 for none
	InDoubt                          bool   // it may lack entries that it acknowledged, and neither votes nor leads
	DamagedEntries                   uint64 // of the log, not repaired yet
	Installs                         uint64 // snapshots received and installed since this process started
	RaftAddr, GossipAddr             string
	InFlightBytes                    int64
}

// Status gives the status as of now.
func (c *Cluster) Status() Status {
	s := Status{
		NodeID: c.cfg.NodeID, ClusterName: c.cfg.Name, RaftAddr: c.raftAddr, GossipAddr: c.gossipAddr,
		Floor: c.sm.Floor(), Horizon: c.sm.Horizon(), Lease: c.lease.Valid(), Ready: c.caughtUp.Load(), InFlightBytes: c.inFlight.used.Load(),
		Installs: c.installs.Load(),
	}
	c.idMu.Lock()
	s.Incarnation = c.id.Incarnation
	if !c.id.ClusterID.IsZero() {
		s.ClusterID = c.id.ClusterID.String()
	}
	c.idMu.Unlock()
	c.st.Lock()
	s.State, s.Leader, s.LeaderSince, s.Term, s.Waiting = strings.ToLower(c.st.state.String()), c.st.leader, c.st.leaderSince, c.st.term, c.st.waiting
	c.st.Unlock()
	s.Ready = s.Ready && s.Leader != ""
	s.AppliedIndex, _ = c.sm.Applied()
	s.FirstIndex, _ = c.log.FirstIndex()
	s.LastIndex, _ = c.log.LastIndex()
	s.BaseIndex, _ = c.log.Base()
	if m := c.snaps.newest(); m != nil {
		s.SnapshotIndex = m.StateIndex
	}
	s.PayloadComplete, _ = c.payloadComplete()
	s.InDoubt, s.DamagedEntries = c.muzzled(), c.lostEntries()
	if m := c.snaps.pending(); m != nil {
		s.CatchingUp = m.Until
	}
	switch in := c.instance(); {
	case c.ctx.Err() != nil:
		s.State = "closed"
	case in == nil:
		s.State = "starting"
	default:
		s.CommitIndex = in.raft.CommitIndex()
		s.AppliedIndex = c.appliedThrough(s.AppliedIndex, s.CommitIndex)
	}
	return s
}

// ownEntries is how many entries behind the last command are looked at for being Raft's own.
const ownEntries = 64

// appliedThrough is the applied index as a user means it: no-ops and configurations never reach the state machine, so with
// nothing else behind the last command it counts as caught up.
func (c *Cluster) appliedThrough(applied, commit uint64) uint64 {
	if commit <= applied || commit-applied > ownEntries {
		return applied
	}
	for i := applied + 1; i <= commit; i++ {
		var l raft.Log
		if err := c.log.GetLog(i, &l); err != nil || l.Type == raft.LogCommand {
			return applied
		}
	}
	return commit
}

// Leader gives the id of the node that leads as far as this one knows, or "".
func (c *Cluster) Leader() string {
	c.st.Lock()
	defer c.st.Unlock()
	return c.st.leader
}

// LeaderSince gives when this node first knew of the present leader in its term.
func (c *Cluster) LeaderSince() time.Time {
	c.st.Lock()
	defer c.st.Unlock()
	return c.st.leaderSince
}

// IsLeader tells whether this node leads and takes proposals.
func (c *Cluster) IsLeader() bool {
	t := c.tenure()
	return t != nil && t.isReady()
}

// Changed gives a channel that is closed when leadership, members or the lease change. Take it, look, then wait; ask again after.
func (c *Cluster) Changed() <-chan struct{} { return c.changed.wait() }

// RaftAddr and GossipAddr are the addresses the others are told.
func (c *Cluster) RaftAddr() string   { return c.raftAddr }
func (c *Cluster) GossipAddr() string { return c.gossipAddr }

// ClusterID gives the cluster's id once there is one.
func (c *Cluster) ClusterID() (id [16]byte, ok bool) {
	id = c.clusterID()
	return id, id != [16]byte{}
}

func (c *Cluster) clusterID() [16]byte {
	c.idMu.Lock()
	defer c.idMu.Unlock()
	return c.id.ClusterID
}

func (c *Cluster) tenure() *tenure {
	c.st.Lock()
	defer c.st.Unlock()
	return c.st.tenure
}

func (c *Cluster) term() uint64 {
	c.st.Lock()
	defer c.st.Unlock()
	return c.st.term
}

// waitingFor notes what the start waits for; a line is logged when it changes.
func (c *Cluster) waitingFor(what string) {
	c.st.Lock()
	same := c.st.waiting == what
	c.st.waiting = what
	c.st.Unlock()
	if !same && what != "" {
		c.logger.Info("waiting", "for", what)
	}
}

type clusterState struct {
	state       raft.RaftState
	leader      string
	leaderSince time.Time
	term        uint64
	tenure      *tenure
	waiting     string
	forwardTo   string // the last leader known that is not this node: proposals may be on their way to it
}
