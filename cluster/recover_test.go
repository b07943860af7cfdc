package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// With two of three disks gone the third leads alone, with all it had, and two new nodes join it. What is left of the old cluster is
// refused.
func TestRecoveredNodeKeepsAllItHasAndIsJoined(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	for i := range 40 {
		leader.propose(t, fmt.Sprintf("a%d", i))
	}
	leader.propose(t, "floor:25")
	takeSnapshots(t, nodes...)
	leader.propose(t, "last")
	awaitSame(t, nodes...)
	survivor, old := nodes[0], nodes[1]
	before := survivor.sm.commands()
	id := survivor.c.Status().ClusterID
	for _, n := range nodes {
		n.stop()
	}
	last, _ := survivor.log.LastIndex()
	base, _ := survivor.log.Base()

	cfg := RecoverConfig{NodeID: survivor.id, Name: "test", DataDir: survivor.dir}
	plan, err := PlanRecover(cfg, survivor.log, survivor.sm)
	require.NoError(t, err)
	require.Equal(t, []string{"n1", "n2", "n3"}, plan.Voters)
	require.Len(t, plan.Others, 2)
	require.Equal(t, last, plan.LastIndex)
	require.Empty(t, plan.NewClusterID, "looking changes nothing")
	require.Contains(t, strings.Join(plan.MayLose(), "\n"), "lost for good")
	done, err := Recover(cfg, survivor.log, survivor.sm)
	require.NoError(t, err)
	require.Equal(t, last+1, done.ConfigIndex)
	require.NotEqual(t, id, done.NewClusterID)
	require.Equal(t, id, done.OldClusterID)

	survivor.cfg.Seeds = []string{survivor.cfg.GossipAddr}
	survivor.start()
	awaitLeader(t, survivor).propose(t, "alone")
	require.Equal(t, before, survivor.sm.commands()[:len(before)])
	now, _ := survivor.log.Base()
	require.Equal(t, base, now, "the log keeps what it had")
	n4, n5 := newTestNode(t, "n4"), newTestNode(t, "n5")
	joinNode(t, n4, survivor)
	joinNode(t, n5, survivor)
	survivor.propose(t, "three again")
	awaitSame(t, survivor, n4, n5)
	requireSameLog(t, survivor.log, n4.log, 25)

	// A node of before is not taken for one of this cluster.
	old.cfg.Seeds = []string{survivor.cfg.GossipAddr}
	old.start()
	old.requireFatal(10*time.Second, ExitForeign)
	require.ErrorContains(t, old.c.failure(), "was recovered as")
}

func TestRecoverRefusesWhatItCannotKeep(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	commit(t, "x", nodes...)
	awaitSame(t, nodes...)
	n := nodes[0]
	cfg := RecoverConfig{NodeID: n.id, Name: "test", DataDir: n.dir}
	for _, node := range nodes {
		node.stop()
	}
	_, err := PlanRecover(RecoverConfig{NodeID: "n2", Name: "test", DataDir: n.dir}, n.log, n.sm)
	require.ErrorIs(t, err, ErrForeign)
	_, err = PlanRecover(cfg, &memLog{}, n.sm)
	require.ErrorContains(t, err, "nothing to recover")
	short := &memLog{entries: n.log.entries[:2]}
	_, err = Recover(cfg, short, n.sm)
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "recover another node")

	// An end that nobody can read is cut, and said to be lost; the state covers what lies below it.
	applied, _ := n.sm.Applied()
	cfg.Lost = []LostEntries{{First: applied + 1}, {First: 2, Last: 2}}
	plan, err := PlanRecover(cfg, n.log, n.sm)
	require.NoError(t, err)
	require.Equal(t, applied+1, plan.CutAt)
	require.Equal(t, []LostEntries{{2, 2}}, plan.Holes)
	require.Contains(t, strings.Join(plan.MayLose(), "\n"), "Entries 2 to 2")
}
