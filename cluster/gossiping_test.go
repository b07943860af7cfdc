package cluster

import (
	"bytes"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"penstock/cluster/gossip"
)

func (n *testNode) health(of string) Health {
	for _, m := range n.c.Members() {
		if m.ID == of {
			return m.Health
		}
	}
	return ""
}

func (n *testNode) refused(reason string) int {
	return int(testutil.ToFloat64(n.c.metrics.refused.WithLabelValues(reason)))
}

func TestGossipShowsWhoIsThereAndSuspectsTheDead(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	for i, n := range nodes {
		n.cfg.NodeTold = NodeTold{Version: "v9", Zone: string(rune('a' + i)), FeatureMin: 1, FeatureMax: 3}
	}
	startAll(nodes)
	awaitLeader(t, nodes...)
	for _, n := range nodes {
		for _, of := range nodes {
			eventually(t, 20*time.Second, func() bool { return n.health(of.id) == HealthAlive }, "%s sees %s alive", n.id, of.id)
		}
	}
	eventually(t, 20*time.Second, func() bool { return nodes[0].c.Members()[1].NodeTold == nodes[1].cfg.NodeTold }, "what it tells of itself")

	// A node that was given one seed, and is no member, is shown to all of them through gossip.
	n4 := newTestNode(t, "n4")
	n4.cfg.Seeds = []string{nodes[0].cfg.GossipAddr}
	n4.start()
	for _, n := range nodes {
		eventually(t, 20*time.Second, func() bool {
			out := n.c.Outsiders()
			return len(out) == 1 && out[0].ID == "n4" && !out[0].Was && out[0].Health == HealthAlive
		}, "%s knows n4", n.id)
		eventually(t, 20*time.Second, func() bool { p, ok := n.c.book.get("n4"); return ok && p.Raft == n4.c.RaftAddr() }, "first hand")
	}
	nodes[2].stop() // it says goodbye
	eventually(t, 20*time.Second, func() bool { return nodes[0].health("n3") == HealthLeft }, "left, %s", nodes[0].health("n3"))
	nodes[2].start()
	eventually(t, 20*time.Second, func() bool { return nodes[0].health("n3") == HealthAlive }, "back")
}

// B41: a node that comes back under its id and a new address is taken at once, however it went; a second live node with an id that is
// taken is refused, and the first is not disturbed.
func TestB41SameIDUnderANewAddressIsTakenAndAnIDTwiceIsNot(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	var moved *testNode
	for _, n := range nodes {
		if n != leader {
			moved = n
		}
	}
	eventually(t, 20*time.Second, func() bool { return leader.health(moved.id) == HealthAlive }, "alive")
	for range 2 { // clean, then once more at once
		moved.stop()
		moved.cfg.RaftAddr, moved.cfg.GossipAddr = freeAddr(t), freeAddr(t)
		began := time.Now()
		moved.start()
		commit(t, "moved", nodes...)
		awaitSame(t, nodes...)
		leader = awaitLeader(t, nodes...)
		eventually(t, 15*time.Second, func() bool { return leader.health(moved.id) == HealthAlive }, "alive at its new address")
		require.Less(t, time.Since(began), 15*time.Second)
	}

	// An empty directory under a taken id, and a copy of the directory while its owner runs.
	twin := newTestNode(t, moved.id)
	twin.cfg.Seeds = []string{leader.cfg.GossipAddr}
	twin.start()
	twin.requireFatal(15*time.Second, ExitForeign)
	require.ErrorContains(t, twin.c.failure(), "under a new id")
	eventually(t, 10*time.Second, func() bool {
		return slices.ContainsFunc(nodes, func(n *testNode) bool { return n.refused("conflict") > 0 })
	}, "the conflict is counted")
	commit(t, "undisturbed", nodes...)
	awaitSame(t, nodes...)
}

func TestACopyOfADirectoryIsRefusedWhileItsOwnerRuns(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	commit(t, "x", nodes...)
	awaitSame(t, nodes...)
	twin := newTestNode(t, "n2")
	twin.cfg.Seeds = append([]string{}, nodes[0].cfg.Seeds...)
	nodes[1].stop()
	copyDir(t, nodes[1].dir, twin.dir)
	twin.log, twin.sm = &memLog{entries: nodes[1].log.entries}, &toySM{}
	nodes[1].start()
	awaitLeader(t, nodes...)
	eventually(t, 10*time.Second, func() bool { return nodes[1].c.Leader() != "" }, "the owner is back")
	twin.start()
	twin.requireFatal(15*time.Second, ExitInUse)
	require.ErrorContains(t, twin.c.failure(), "copy of this directory")
	commit(t, "y", nodes...)
	awaitSame(t, nodes...)
}

func TestGossipKeysSealThePortAndAreRotated(t *testing.T) {
	t.Parallel()
	first, second := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 16)
	nodes := newTestNodes(t, 3)
	for _, n := range nodes {
		n.cfg.GossipKeys = [][]byte{first}
	}
	startAll(nodes)
	leader := awaitLeader(t, nodes...)

	stranger := newTestNode(t, "n4") // with no key it learns nothing
	stranger.cfg.Seeds = []string{leader.cfg.GossipAddr}
	stranger.start()
	eventually(t, 10*time.Second, func() bool { return strings.Contains(stranger.c.Status().Waiting, "gossip key") }, "it is told why: %s", stranger.c.Status().Waiting)
	eventually(t, 10*time.Second, func() bool { return leader.refused("key") > 0 }, "counted")
	require.Empty(t, stranger.c.Status().ClusterID)
	stranger.stop()

	for _, step := range [][][]byte{{first, second}, {second, first}, {second}} {
		for _, n := range nodes {
			require.NoError(t, n.c.SetGossipKeys(step))
		}
	}
	require.Error(t, leader.c.SetGossipKeys(nil), "sealing does not end while the node runs")
	require.Error(t, leader.c.SetGossipKeys([][]byte{{1}}))
	stranger.cfg.GossipKeys = [][]byte{second}
	joinNode(t, stranger, leader)
	eventually(t, 20*time.Second, func() bool { return leader.health("n4") == HealthAlive }, "gossip goes on under the new key")
}

func TestRemovalIsTheWordOfAMajorityOfTheNewestMembers(t *testing.T) {
	t.Parallel()
	ours := &hello{Self: peerInfo{ID: "n3"}, Members: []string{"n1", "n2", "n3"}, ConfigIndex: 5}
	says := func(id string, index uint64, members ...string) helloAnswer {
		return helloAnswer{hello: &hello{Self: peerInfo{ID: id}, Members: members, Voters: members, ConfigIndex: index}}
	}
	removed := func(answers ...helloAnswer) bool { _, ok := removedAt(ours, answers); return ok }
	require.False(t, removed())
	require.False(t, removed(says("n1", 9, "n1", "n2")), "one of two")
	require.True(t, removed(says("n1", 9, "n1", "n2"), says("n2", 9, "n1", "n2")))
	require.False(t, removed(says("n1", 4, "n1", "n2"), says("n2", 4, "n1", "n2")), "older than what this node knows")
	require.False(t, removed(says("n1", 9, "n1", "n2"), says("n2", 12, "n1", "n2", "n3")), "it is a member again")
	ours.Members = nil
	require.False(t, removed(says("n1", 9, "n1", "n2"), says("n2", 9, "n1", "n2")), "it never was one")
}

func TestHealthWeighsReportsAndGossip(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reports, reported bool
		state             gossip.State
		gossiped          bool
		want              Health
	}{
		{true, true, gossip.Alive, true, HealthAlive},
		{true, true, "", false, HealthAlive},
		{true, true, gossip.Dead, true, HealthSuspect},
		{false, true, gossip.Alive, true, HealthSuspect},
		{false, true, gossip.Dead, true, HealthDead},
		{false, true, gossip.Left, true, HealthLeft},
		{false, true, "", false, HealthSuspect},
		{false, false, "", false, HealthUnknown},
		{false, false, gossip.Dead, true, HealthDead},
	} {
		require.Equal(t, c.want, healthOf(c.reports, c.reported, c.state, c.gossiped), "%+v", c)
	}
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.CopyFS(to, os.DirFS(from)))
}

// Nodes that know each other by a DNS name over IPv4 and by IPv6 addresses are one cluster.
func TestIPv6AddressesAndNamesWork(t *testing.T) {
	t.Parallel()
	if ln, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skipf("no IPv6 here: %v", err)
	} else {
		ln.Close()
	}
	nodes := newTestNodes(t, 3)
	six := func(addr string) string { _, port, _ := net.SplitHostPort(addr); return net.JoinHostPort("::1", port) }
	named := func(addr string) string {
		_, port, _ := net.SplitHostPort(addr)
		return net.JoinHostPort("localhost", port)
	}
	for _, n := range nodes[1:] {
		n.cfg.RaftAddr, n.cfg.GossipAddr = six(n.cfg.RaftAddr), six(n.cfg.GossipAddr)
	}
	nodes[0].cfg.RaftAdvertise, nodes[0].cfg.GossipAdvertise = named(nodes[0].cfg.RaftAddr), named(nodes[0].cfg.GossipAddr)
	// The third listens on every interface of both families, as in a container.
	_, port, _ := net.SplitHostPort(nodes[2].cfg.GossipAddr)
	nodes[2].cfg.GossipAddr, nodes[2].cfg.GossipAdvertise = net.JoinHostPort("::", port), six(nodes[2].cfg.GossipAddr)
	seeds := []string{nodes[0].cfg.GossipAdvertise, nodes[1].cfg.GossipAddr, nodes[2].cfg.GossipAdvertise}
	for _, n := range nodes {
		n.cfg.Seeds = seeds
	}
	startAll(nodes)
	commit(t, "x", nodes...)
	awaitSame(t, nodes...)
	// The first listens on IPv4 only, so packets of the others, which listen on IPv6 only, do not reach it: streams and reports do.
	eventually(t, 20*time.Second, func() bool { return nodes[1].health("n3") == HealthAlive && nodes[2].health("n2") == HealthAlive }, "alive over IPv6")
	for _, n := range nodes {
		require.NotEqual(t, HealthUnknown, n.health("n1"))
	}
	for _, addr := range []string{"0.0.0.0:7071", "[::]:7071", ":7071"} {
		cfg := newTestNode(t, "n9").cfg
		cfg.RaftAdvertise, cfg.Seeds = addr, seeds
		_, err := Open(cfg, &memLog{}, &toySM{})
		require.ErrorContains(t, err, "nobody can dial it")
	}
}
