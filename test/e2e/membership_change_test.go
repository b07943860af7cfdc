package e2e

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

const exitRemoved = 15

// TestMembersChangeUnderLoad: 3 → 5 → 3 voters, the leader among the removed, a dead node replaced, leadership handed over again and
// again. Nothing acknowledged is lost, writes go on, removed nodes that are kept running disturb nobody, each act is in the trail.
func TestMembersChangeUnderLoad(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "moving", channelSpec("moving", "", fileEmitter("files", "out", "")), client.PutOptions{})
	require.NoError(t, err)
	// The load goes through two nodes that stay until the end: a producer of a node that hangs waits for its own timeout.
	w := startWriters(t, "moving", g.addresses()[:2], 3, 3)
	gaps := watchGaps(w)

	for _, id := range []string{"n4", "n5"} {
		p := g.add(id)
		p.start()
		gaps.during("join "+id, func() { g.nodes[0].cli("join", id, "--voter") })
		p.waitReady(30 * time.Second)
	}
	require.Equal(t, []string{"n1", "n2", "n3", "n4", "n5"}, g.nodes[0].voters())

	// The leader goes, asked on another node; then one that is paused and does not see it.
	leader := g.byID("n3")
	gaps.during("transfer to n3", func() { g.nodes[0].cli("transfer", "n3") })
	gaps.during("remove the leader", func() { g.nodes[0].cli("remove", "n3", "--reason", "old machine") })
	g.leave(leader)
	require.Equal(t, exitRemoved, leader.exit(30*time.Second), "it drains and ends")
	gaps.during("transfer to n1", func() { g.nodes[0].cli("transfer", "n1") })
	paused := g.byID("n4")
	paused.signal(syscall.SIGSTOP)
	g.leave(paused)
	gaps.during("remove a node that hangs", func() { g.nodes[0].cli("remove", paused.id) })
	paused.signal(syscall.SIGCONT)
	require.Equal(t, exitRemoved, paused.exit(30*time.Second), "it learns of it when it comes back")
	require.Len(t, g.nodes[0].voters(), 3)

	// A supervisor that starts them again and again disturbs nobody.
	term := clusterOf(t, g.leader()).Term
	gaps.during("removed nodes started again", func() {
		for _, p := range []*proc{leader, paused} {
			p.start()
			require.Equal(t, exitRemoved, p.exit(30*time.Second))
		}
	})
	t.Logf("terms: %d before, %d after", term, clusterOf(t, g.leader()).Term)

	// A dead node is replaced.
	dead := g.byID("n5")
	gaps.during("a node dies", dead.kill)
	g.leave(dead)
	n6 := g.add("n6")
	n6.start()
	gaps.during("replace the dead", func() { g.nodes[0].cli("replace", dead.id, "n6") })
	n6.waitReady(30 * time.Second)
	require.NotContains(t, g.leader().voters(), dead.id)
	require.Len(t, g.leader().voters(), 3)

	for i := range scale(t, 10, 4) {
		gaps.during(fmt.Sprintf("transfer %d", i+1), func() { g.follower().cli("transfer") })
	}
	acked := w.halt()
	require.NotEmpty(t, acked)
	c = g.client()
	waitDelivered(t, c, "moving", 60*time.Second)
	checkStored(t, g, "moving", acked)
	for _, p := range g.nodes {
		l, err := p.client().Ledger(context.Background(), "moving")
		require.NoError(t, err)
		checkBalanced(t, l)
	}
	removed := audited(t, c, "cluster.remove")
	require.GreaterOrEqual(t, len(removed), 3)
	for _, action := range []string{"cluster.join", "cluster.promote", "cluster.transfer"} {
		audited(t, c, action)
	}
}

func clusterOf(t *testing.T, p *proc) client.Cluster {
	t.Helper()
	s, err := p.client().Cluster(context.Background())
	require.NoError(t, err)
	return s
}

// TestB40RemovedLeaderHandsOverFirst: asked on the leader itself and on a follower; the removed one refuses and emits nothing any more, and
// comes back as a member.
func TestB40RemovedLeaderHandsOverFirst(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{nodes: 4})
	hook := startReceiver(t)
	hook.answer(200)
	c := g.client()
	_, err := c.PutChannel(context.Background(), "b40", channelSpec("b40", "", webhookEmitter("hook", hook.url(), "")), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "b40", g.addresses(), 3, 2)
	gaps := watchGaps(w)
	for _, self := range []bool{true, false} {
		leader := g.leader()
		asked := leader
		if !self {
			asked = g.follower()
		}
		gaps.during(fmt.Sprintf("remove the leader, asked on itself: %v", self), func() { asked.cli("remove", leader.id, "--force") })
		require.Equal(t, exitRemoved, leader.exit(30*time.Second))
		rest := g.nodes
		g.leave(leader)
		require.NotContains(t, g.leader().voters(), leader.id)
		eventually(t, 30*time.Second, "its emitters have an owner", func() error {
			l, err := g.leader().client().Ledger(context.Background(), "b40")
			if err != nil {
				return err
			}
			for _, e := range l.Emitters {
				if e.Owner == leader.id || e.Owner == "" {
					return fmt.Errorf("owner %q", e.Owner)
				}
			}
			return nil
		})
		// It is taken in again: joined first, since a node that is no member does not stay up.
		g.leader().cli("join", leader.id)
		leader.start()
		g.leader().cli("promote", leader.id, "--wait", "60s")
		leader.waitReady(30 * time.Second)
		g.nodes = rest
	}
	acked := w.halt()
	l := waitDelivered(t, c, "b40", 60*time.Second)
	checkStored(t, g, "b40", acked)
	require.Zero(t, l.Emitters[0].Dead)
}
