package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

const (
	joinPause  = 250 * time.Millisecond // between rounds before Raft runs
	helloPause = 5 * time.Second        // between rounds after that, with a leader
	alonePause = time.Second            // and without one
)

// join brings this node from its start to the point where Raft may run, and then keeps the address book fresh.
//
//	no state: ask all seeds ── any has state ──> take its cluster id ──┐
//	             │ all empty, same seeds, we are the smallest          │
//	             └──> write a new cluster id and the first entry ──────┤
//	state: ────────────────────────────────────────────────────────────┴─> a majority of the voters, itself included,
//	                                                                       has answered and none knows us better ──> Raft
//
// A node without state never votes or bootstraps on the word of some: a wiped majority waits for the rest, for ever if need be.
func (c *Cluster) join(ctx context.Context) {
	for ctx.Err() == nil {
		pause := joinPause
		if c.instance() != nil {
			if pause = helloPause; c.Leader() == "" {
				pause = alonePause
			}
		}
		if err := c.joinRound(ctx); err != nil {
			c.fatal(exitCodeOf(err, ExitFailed), err)
			return
		}
		select {
		case <-time.After(pause):
		case <-c.gossipWake:
		case <-ctx.Done():
		}
	}
}

func (c *Cluster) joinRound(ctx context.Context) error {
	answers := c.askAll(ctx)
	if ctx.Err() != nil {
		return nil
	}
	ours := c.ourHello()
	answers, err := c.sift(ours, answers)
	if err != nil {
		return err
	}
	if index, ok := removedAt(ours, answers); ok {
		c.removed(index)
		return nil
	}
	c.gossipRound(answers)
	if c.instance() != nil {
		return nil
	}
	if ours.ClusterID.IsZero() {
		if err := c.enter(ours, answers); err != nil {
			return err
		}
		if ours = c.ourHello(); ours.ClusterID.IsZero() {
			return nil
		}
	}
	if missing := quorumMissing(ours, answers); missing != "" {
		c.waitingFor(missing)
		return nil
	}
	if c.ailing.Load() {
		if ready, err := c.repairRound(ctx, answers); err != nil || !ready {
			return err
		}
	}
	if c.needsState.Load() {
		if err := c.fetchSnapshot(ctx, answers); err != nil {
			c.waitingFor(err.Error())
			return nil
		}
		if c.needsState.Load() {
			return nil // what was fetched does not reach far enough either
		}
	}
	if err := c.checkTerm(); err != nil {
		return err
	}
	c.waitingFor("")
	return c.startRaft()
}

// sift drops what does not belong to this cluster, learns from the rest, and finds out whether somebody knows this node better.
func (c *Cluster) sift(ours *hello, answers []helloAnswer) ([]helloAnswer, error) {
	for i := range answers {
		a := &answers[i]
		if a.err != nil {
			continue
		}
		switch {
		case a.ClusterName != ours.ClusterName:
			a.err = fmt.Errorf("belongs to cluster %q", a.ClusterName)
		case slices.Contains(a.Supersedes, ours.ClusterID) && !ours.ClusterID.IsZero():
			return nil, foreign("this directory is of cluster %s, which was recovered as %s (node %s); bring the node back under a new id",
				ours.ClusterID, a.ClusterID, a.Self.ID)
		case !a.ClusterID.IsZero() && !ours.ClusterID.IsZero() && a.ClusterID != ours.ClusterID:
			c.refuse("foreign", a.Self.ID, fmt.Sprintf("node %s at %s belongs to another cluster by the name %q", a.Self.ID, a.addr, a.ClusterName))
			a.err = fmt.Errorf("belongs to another cluster, %s, by the name %q", a.ClusterID, a.ClusterName)
		case a.Self.ID == ours.Self.ID && a.Boot != c.boot:
			if a.err = c.sameID(ours, a); c.instance() == nil {
				return nil, a.err
			}
		case a.You != nil && a.Self.ID != ours.Self.ID:
			if err := a.You.knows(ours.Self); err != nil {
				return nil, fmt.Errorf("refused by node %s: %w; bring the node back under a new id", a.Self.ID, err)
			}
			if err := c.compareEnd(a.Self.ID, a.You.LastIndex); err != nil {
				return nil, err
			}
		}
		if a.err == nil && a.Self.ID != ours.Self.ID {
			c.heard(a.hello)
		}
	}
	return answers, nil
}

// sameID is another process that goes by this node's id: on a copy of its directory, or on one of its own.
func (c *Cluster) sameID(ours *hello, a *helloAnswer) error {
	c.refuse("conflict", a.Self.ID, fmt.Sprintf("another process goes by the id %s at %s", a.Self.ID, a.addr))
	if a.Self.Directory == ours.Self.Directory {
		return exitError(ExitInUse, ErrInUse, "node %s runs at %s on a copy of this directory", a.Self.ID, a.addr)
	}
	return foreign("the id %s is that of a node that runs at %s; give this one another node.id", a.Self.ID, a.addr)
}

// removedAt tells whether the cluster goes on without this node, and since which index: more than half of the voters of the newest
// committed configuration say so, and this node was a member before.
func removedAt(ours *hello, answers []helloAnswer) (index uint64, removed bool) {
	var newest *hello
	was := slices.Contains(ours.Members, ours.Self.ID)
	for _, a := range answers {
		if a.err != nil || a.Self.ID == ours.Self.ID {
			continue
		}
		if newest == nil || a.ConfigIndex > newest.ConfigIndex {
			newest = a.hello
		}
		was = was || a.You != nil
	}
	if newest == nil || !was || newest.ConfigIndex < ours.ConfigIndex || len(newest.Voters) == 0 || slices.Contains(newest.Members, ours.Self.ID) {
		return 0, false
	}
	agree := 0
	for _, a := range answers {
		if a.err == nil && a.ConfigIndex == newest.ConfigIndex && slices.Contains(newest.Voters, a.Self.ID) {
			agree++
		}
	}
	return newest.ConfigIndex, agree > len(newest.Voters)/2
}

// removed ends this node's part. It may be told again: until the process ends the cluster is asked on.
func (c *Cluster) removed(index uint64) {
	if !c.wasRemoved.CompareAndSwap(false, true) {
		return
	}
	err := exitError(ExitRemoved, ErrRemoved, "the members as of index %d are without %s; `penstock cluster join %s` takes it in again",
		index, c.cfg.NodeID, c.cfg.NodeID)
	c.logger.Warn("this node is no member any more", "index", index)
	if c.cfg.Removed == nil {
		c.fatal(ExitRemoved, err)
		return
	}
	c.cfg.Removed(err)
}

// compareEnd looks, before Raft runs, whether a peer knows this node's log to have been longer: then entries are lost that this node
// acknowledged (an older copy of the log was put back, say), though nothing here shows it.
func (c *Cluster) compareEnd(peer string, known uint64) error {
	if c.instance() != nil || c.ailing.Load() {
		return nil
	}
	last, err := c.log.LastIndex()
	if err != nil || known <= last {
		return err
	}
	return c.beInDoubt(known, fmt.Sprintf("the log ends at %d, and node %s knows that it reached %d", last, peer, known))
}

// enter gives a node without state its cluster: that of whoever has one, or a new one.
func (c *Cluster) enter(ours *hello, answers []helloAnswer) error {
	if c.cfg.Single {
		return c.foundCluster([]string{ours.Self.ID})
	}
	var found ID16
	for _, a := range answers {
		if a.err != nil || a.ClusterID.IsZero() {
			continue
		}
		if !found.IsZero() && found != a.ClusterID {
			c.waitingFor(fmt.Sprintf("one answer: the seeds belong to two clusters, %s and %s", found, a.ClusterID))
			return nil
		}
		found = a.ClusterID
	}
	if !found.IsZero() {
		c.logger.Info("joining a cluster", "cluster_id", found.String())
		return c.setClusterID(found, nil)
	}
	members, missing := bootstrapMembers(c.cfg.Seeds, ours, answers)
	if missing != "" {
		c.waitingFor(missing)
		return nil
	}
	if members[0] != ours.Self.ID {
		c.waitingFor(fmt.Sprintf("node %s to make the cluster", members[0]))
		return nil
	}
	return c.foundCluster(members)
}

// bootstrapMembers gives the sorted ids of all seeds when every one of them answered, is empty, and was given the same seeds; or says
// who is missing.
func bootstrapMembers(seeds []string, ours *hello, answers []helloAnswer) (members []string, missing string) {
	byAddr := map[string]helloAnswer{}
	for _, a := range answers {
		byAddr[a.addr] = a
	}
	var absent []string
	for _, seed := range slices.Compact(slices.Sorted(slices.Values(seeds))) {
		a := byAddr[seed]
		switch {
		case a.err != nil:
			absent = append(absent, fmt.Sprintf("seed %s: %v", seed, a.err))
		case a.hello == nil:
			absent = append(absent, fmt.Sprintf("seed %s: not asked", seed))
		case a.SeedsHash != ours.SeedsHash:
			absent = append(absent, fmt.Sprintf("seed %s (%s): was given other seeds", seed, a.Self.ID))
		case slices.Contains(members, a.Self.ID):
			absent = append(absent, fmt.Sprintf("seed %s: is node %s, as another seed is", seed, a.Self.ID))
		default:
			members = append(members, a.Self.ID)
		}
	}
	if len(absent) == 0 && !slices.Contains(members, ours.Self.ID) {
		absent = append(absent, "a seed with state: this node is not among the seeds and does not make a cluster")
	}
	if len(absent) > 0 {
		return nil, strings.Join(absent, "; ")
	}
	slices.Sort(members)
	return members, ""
}

// quorumMissing says who must still answer before this node may vote.
func quorumMissing(ours *hello, answers []helloAnswer) string {
	voters, index := ours.Voters, ours.ConfigIndex
	present := map[string]bool{ours.Self.ID: true}
	var silent []string
	for _, a := range answers {
		if a.err != nil {
			silent = append(silent, fmt.Sprintf("%s: %v", a.addr, a.err))
			continue
		}
		present[a.Self.ID] = true
		if a.ConfigIndex > index || voters == nil {
			voters, index = a.Voters, a.ConfigIndex
		}
	}
	if len(voters) == 0 {
		return "a node that knows the members: " + strings.Join(silent, "; ")
	}
	have := 0
	for _, v := range voters {
		if present[v] {
			have++
		}
	}
	if have >= len(voters)/2+1 {
		return ""
	}
	return fmt.Sprintf("a majority of the voters %v, %d answered: %s", voters, have, strings.Join(silent, "; "))
}

// foundCluster makes a new cluster of members. The identity is durable before the first entry, which may be written again after a crash.
func (c *Cluster) foundCluster(members []string) error {
	id := newID16()
	c.logger.Info("making a new cluster", "cluster_id", id.String(), "members", members)
	if err := c.setClusterID(id, members); err != nil {
		return err
	}
	return c.writeBootstrap()
}

func (c *Cluster) setClusterID(id ID16, bootstrap []string) error {
	c.idMu.Lock()
	defer c.idMu.Unlock()
	c.id.ClusterID, c.id.Bootstrap = id, bootstrap
	return c.id.save()
}

// writeBootstrap writes the first entry of the cluster this node is making, and does nothing when there is one already.
func (c *Cluster) writeBootstrap() error {
	c.idMu.Lock()
	members := c.id.Bootstrap
	c.idMu.Unlock()
	if len(members) == 0 {
		return nil
	}
	var conf raft.Configuration
	for _, id := range members {
		conf.Servers = append(conf.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(id), Address: raft.ServerAddress(id)})
	}
	last, err := c.log.LastIndex()
	if err != nil {
		return fmt.Errorf("read the end of the log: %w", err)
	}
	if last == 0 {
		if err := c.stable.SetUint64([]byte("CurrentTerm"), 1); err != nil {
			return err
		}
		entry := &raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(conf)}
		if err := c.log.StoreLog(entry); err != nil {
			return fmt.Errorf("write the first entry: %w", err)
		}
	}
	if err := c.book.configure(conf, 1); err != nil {
		return err
	}
	return c.bootstrapDone()
}

func (c *Cluster) bootstrapDone() error {
	c.idMu.Lock()
	defer c.idMu.Unlock()
	c.id.Bootstrap = nil
	return c.id.save()
}
