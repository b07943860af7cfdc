package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// tenure is one term of this node as leader. It takes proposals once ready is closed: a barrier has passed, so everything committed
// before is applied here and no stamp goes back, and the cluster's first command is there.
type tenure struct {
	term   uint64
	since  time.Time
	raft   *raft.Raft
	trans  *transport
	ctx    context.Context
	cancel context.CancelFunc
	ready  chan struct{}
	gather *gatherer
	grants *grants
	reads  readGroup
}

func (t *tenure) isReady() bool {
	select {
	case <-t.ready:
		return t.ctx.Err() == nil
	default:
		return false
	}
}

// watch follows one instance until it is replaced or the cluster closes.
func (c *Cluster) watch(in *raftInstance) {
	tick := time.NewTicker(100 * time.Millisecond) // observations may be dropped; this is the net below them
	defer tick.Stop()
	for {
		c.look(in)
		select {
		case <-in.events:
		case <-in.raft.LeaderCh():
		case <-tick.C:
		case <-c.ctx.Done():
			c.endTenure(in)
			return
		}
		if c.instance() != in {
			c.endTenure(in)
			return
		}
	}
}

// look compares what Raft says now with what this package acts on.
func (c *Cluster) look(in *raftInstance) {
	term := in.raft.CurrentTerm()
	state := in.raft.State()
	_, leader := in.raft.LeaderWithID()
	if in.raft.CurrentTerm() != term {
		return // in between; the next look is near
	}
	leads := state == raft.Leader
	c.st.Lock()
	t := c.st.tenure
	changed := c.st.state != state || c.st.leader != string(leader) || c.st.term != term
	if c.st.leader != string(leader) || leads && c.st.term != term {
		c.st.leaderSince = time.Now()
		if leader != "" {
			c.metrics.leaderChanges.Inc()
		}
	}
	c.st.state, c.st.leader, c.st.term = state, string(leader), term
	var ended *tenure
	if t != nil && (!leads || t.term != term || t.raft != in.raft) {
		ended, c.st.tenure, t = t, nil, nil
	}
	if leads && t == nil {
		t = c.newTenure(in, term)
		c.st.tenure = t
		c.wg.Go(func() { c.lead(t) })
	}
	before := c.st.forwardTo
	if leader != "" {
		c.st.forwardTo = string(leader)
	}
	c.st.Unlock()
	if ended != nil {
		ended.cancel()
	}
	if before != "" && leader != "" && before != string(leader) && before != c.cfg.NodeID {
		c.wg.Go(func() { c.abandonProposals(before) })
	}
	if changed {
		c.metrics.observe(leads, term)
		c.logger.Info("raft state", "state", state.String(), "term", term, "leader", string(leader))
		c.changed.fire()
	}
}

// abandonAfter is how long a deposed leader may take to answer what was forwarded to it.
const abandonAfter = 500 * time.Millisecond

// abandonProposals ends the wait for a leader that hangs: its proposals are unknown, and those who sent them repeat them to the new one. One that
// runs answers within that time by itself.
func (c *Cluster) abandonProposals(node string) {
	select {
	case <-time.After(abandonAfter):
	case <-c.ctx.Done():
		return
	}
	if c.Leader() != node {
		c.client.abandon(node, methodPropose)
	}
}

// endTenure forgets what is known through an instance that runs no more.
func (c *Cluster) endTenure(in *raftInstance) {
	c.st.Lock()
	t := c.st.tenure
	if t != nil && t.raft != in.raft {
		c.st.Unlock()
		return
	}
	c.st.tenure, c.st.leader, c.st.state = nil, "", raft.Follower
	term := c.st.term
	c.st.Unlock()
	if t != nil {
		t.cancel()
	}
	c.metrics.observe(false, term)
	c.changed.fire()
}

func (c *Cluster) newTenure(in *raftInstance, term uint64) *tenure {
	t := &tenure{term: term, since: time.Now(), raft: in.raft, trans: in.trans, ready: make(chan struct{}), grants: newGrants()}
	t.reads.wake = make(chan struct{}, 1)
	t.ctx, t.cancel = context.WithCancel(c.ctx)
	t.gather = newGatherer(c.cfg.EntryBytes, c.buildEntry, func(data []byte, timeout time.Duration) raft.ApplyFuture {
		return in.raft.Apply(data, timeout)
	})
	return t
}

func (c *Cluster) buildEntry(commands [][]byte) []byte {
	return c.cfg.AppendEntry(nil, max(c.clock.read(), c.sm.Stamp()), commands)
}

// lead runs one tenure to its end.
func (c *Cluster) lead(t *tenure) {
	why := notCommitted(ReasonNoLeader, fmt.Errorf("%w: this node leads no more", ErrNoLeader))
	if !c.prepare(t) {
		t.gather.close(why)
		return
	}
	close(t.ready)
	c.logger.Info("this node leads", "term", t.term, "after", time.Since(t.since).Round(time.Millisecond).String())
	c.changed.fire()
	c.wg.Go(func() { c.serveReads(t) })
	t.gather.run(t.ctx, why)
}

// prepare passes the barrier, sets the clock and proposes the first command of a new cluster.
func (c *Cluster) prepare(t *tenure) bool {
	var transfer transferGuard // one of an earlier term of this node
	for {
		err := await(t.ctx, t.raft.Barrier(applyEnqueue))
		if err == nil {
			break
		}
		if t.ctx.Err() != nil {
			return false
		}
		if transfer.hangs(err, time.Now()) {
			c.fatal(ExitFailed, fmt.Errorf("lead in term %d: %w", t.term, errTransferHung))
			return false
		}
		select { // not the leader any more, or busy: the watch says which
		case <-time.After(20 * time.Millisecond):
		case <-t.ctx.Done():
			return false
		}
	}
	c.startClock(t)
	return c.proposeInit(t)
}

// proposeInit proposes the first command of a new cluster until there is a first command. The barrier before it makes sure that the
// one of an earlier term is seen.
func (c *Cluster) proposeInit(t *tenure) bool {
	for c.cfg.InitCommand != nil {
		if applied, _ := c.sm.Applied(); applied != 0 {
			return true
		}
		command := c.cfg.InitCommand(c.clusterID(), c.cfg.Name)
		err := await(t.ctx, t.raft.Apply(c.buildEntry([][]byte{command}), applyEnqueue))
		if err == nil {
			continue
		}
		c.logger.Info("the first command was not committed", "term", t.term, "error", err)
		select {
		case <-time.After(20 * time.Millisecond):
		case <-t.ctx.Done():
			return false
		}
	}
	return true
}
