package cluster

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestThreeNodesCommitFromAnyNode(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	awaitLeader(t, nodes...)
	for i, n := range nodes {
		n.propose(t, fmt.Sprintf("c%d", i))
	}
	awaitSame(t, nodes...)
	require.Equal(t, []string{"init test", "c0", "c1", "c2"}, nodes[0].sm.commands())
}

func TestSingleNodeCommits(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, "n1")
	n.cfg.Single, n.cfg.GossipAddr, n.cfg.Seeds = true, "", nil
	n.start()
	awaitLeader(t, n)
	n.propose(t, "a")
	n.stop()
	n.start()
	awaitLeader(t, n)
	n.propose(t, "b")
	require.Equal(t, []string{"init test", "a", "b"}, n.sm.commands())
}
