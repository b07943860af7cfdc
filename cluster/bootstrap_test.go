package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (n *testNode) requireFatal(within time.Duration, code int) {
	n.t.Helper()
	select {
	case got := <-n.fatals:
		require.Equal(n.t, code, got)
	case <-time.After(within):
		require.FailNow(n.t, "no fatal end", "node %s: %+v", n.id, n.c.Status())
	}
}

func TestSeedsMayStartInAnyOrderAndAgain(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	nodes[2].start()
	eventually(t, 5*time.Second, func() bool {
		return strings.Contains(nodes[2].c.Status().Waiting, nodes[0].cfg.GossipAddr)
	}, "the missing seed is named")
	nodes[1].start()
	time.Sleep(2 * joinPause)
	require.Empty(t, nodes[1].c.Status().ClusterID, "nobody makes a cluster while a seed is silent")
	nodes[2].stop() // and again
	nodes[2].start()
	nodes[0].start()
	awaitLeader(t, nodes...)
	nodes[2].propose(t, "x")
	awaitSame(t, nodes...)
	for _, n := range nodes[1:] {
		require.Equal(t, nodes[0].c.Status().ClusterID, n.c.Status().ClusterID)
	}
}

func TestOtherSeedsMakeNoCluster(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 2)
	nodes[1].cfg.Seeds = append([]string{"127.0.0.1:1"}, nodes[1].cfg.Seeds...)
	startAll(nodes)
	eventually(t, 5*time.Second, func() bool {
		return strings.Contains(nodes[0].c.Status().Waiting, "was given other seeds")
	}, "the difference is named")
	require.Empty(t, nodes[0].c.Status().ClusterID)
}

func TestBootstrapGoesOnAfterACrashBeforeTheFirstEntry(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	// n1 wrote the identity of the new cluster and died.
	require.NoError(t, os.MkdirAll(nodes[0].dir, 0o700))
	id, err := openIdentity(nodes[0].dir, "n1", "test")
	require.NoError(t, err)
	id.ClusterID, id.Bootstrap = newID16(), []string{"n1", "n2", "n3"}
	stable, err := openStable(nodes[0].dir, true, func(int, error) {})
	require.NoError(t, err)
	require.NoError(t, stable.Close())
	_, err = openBook(nodes[0].dir, "n1", true, nil, nil)
	require.NoError(t, err)
	require.NoError(t, id.save())
	startAll(nodes)
	awaitLeader(t, nodes...)
	nodes[1].propose(t, "x")
	require.Equal(t, id.ClusterID.String(), nodes[1].c.Status().ClusterID)
}

// Show 9 of the first issue.
func TestWipedMajorityNeverFormsASecondCluster(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	leader.propose(t, "precious")
	awaitSame(t, nodes...)
	id := nodes[2].c.Status().ClusterID
	for _, n := range nodes {
		n.stop()
	}
	nodes[0].wipe()
	nodes[1].wipe()

	// Alone with each other they wait for the third, naming it.
	nodes[0].start()
	nodes[1].start()
	eventually(t, 5*time.Second, func() bool {
		return strings.Contains(nodes[0].c.Status().Waiting, nodes[2].cfg.GossipAddr)
	}, "the third seed is named")
	require.Empty(t, nodes[0].c.Status().ClusterID)

	// With it they are refused, and it does not lead alone.
	nodes[2].start()
	nodes[0].requireFatal(10*time.Second, ExitForeign)
	nodes[1].requireFatal(10*time.Second, ExitForeign)
	require.ErrorIs(t, nodes[0].c.failure(), ErrWiped)
	require.Nil(t, leaderOf(nodes...))
	require.Equal(t, id, nodes[2].c.Status().ClusterID)
	require.Contains(t, nodes[2].sm.commands(), "precious")
}

// B39: a node that lost its disk and came back under its id.
func TestB39WipedNodeIsRefusedWithTheRemedy(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	leader.propose(t, "a")
	awaitSame(t, nodes...)
	for _, victim := range []*testNode{leader, nil} {
		if victim == nil { // then a follower, with only two nodes up
			break
		}
		victim.stop()
		victim.wipe()
		victim.start()
		victim.requireFatal(10*time.Second, ExitForeign)
		require.ErrorContains(t, victim.c.failure(), "under a new id")
		require.Nil(t, victim.c.instance(), "it never votes")
		victim.stop()
	}
	var up []*testNode
	for _, n := range nodes {
		if n != leader {
			up = append(up, n)
		}
	}
	awaitLeader(t, up...).propose(t, "b")
}

// An older copy of the directory: the incarnation is behind what the others know.
func TestRestoredDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	awaitLeader(t, nodes...).propose(t, "a")
	awaitSame(t, nodes...)
	victim := nodes[1]
	victim.stop()
	copied := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, os.CopyFS(copied, os.DirFS(victim.dir)))
	for range 2 { // incarnations the others learn of
		victim.start()
		awaitLeader(t, nodes...)
		eventually(t, 5*time.Second, func() bool { return victim.c.Leader() != "" }, "back")
		victim.stop()
	}
	require.NoError(t, os.RemoveAll(victim.dir))
	require.NoError(t, os.CopyFS(victim.dir, os.DirFS(copied)))
	victim.start()
	victim.requireFatal(10*time.Second, ExitForeign)
	require.ErrorIs(t, victim.c.failure(), ErrWiped)
}

func TestForeignDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, "n1")
	n.cfg.Single = true
	n.start()
	awaitLeader(t, n)
	n.stop()
	check := func(change func(*Config), want error, code int) {
		t.Helper()
		cfg := n.cfg
		change(&cfg)
		_, err := Open(cfg, n.log, n.sm)
		require.ErrorIs(t, err, want)
		var coded *ExitError
		require.ErrorAs(t, err, &coded)
		require.Equal(t, code, coded.ExitCode())
	}
	check(func(c *Config) { c.NodeID = "n2" }, ErrForeign, ExitForeign)
	check(func(c *Config) { c.Name = "other" }, ErrForeign, ExitForeign)
	require.NoError(t, os.Rename(filepath.Join(n.dir, "stable.db"), filepath.Join(n.dir, "away")))
	check(func(*Config) {}, ErrDamaged, ExitDisk)
	require.NoError(t, os.Rename(filepath.Join(n.dir, "away"), filepath.Join(n.dir, "stable.db")))
	require.NoError(t, os.Remove(filepath.Join(n.dir, "identity")))
	check(func(*Config) {}, ErrDamaged, ExitDisk)
}

// S05: a second process on the directory is refused; a left-over lock file, with whatever in it, is not in the way.
func TestS05SecondProcessIsRefusedAndALeftOverLockIsNot(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, "n1")
	n.cfg.Single = true
	require.NoError(t, os.MkdirAll(n.dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "lock"), []byte(fmt.Sprint(os.Getpid())), 0o600))
	n.start()
	awaitLeader(t, n)
	_, err := Open(n.cfg, &memLog{}, &toySM{})
	require.ErrorIs(t, err, ErrInUse)
	require.Equal(t, ExitInUse, exitCodeOf(err, 0))
	if flock, err := exec.LookPath("flock"); err == nil { // another process sees it as well
		err := exec.Command(flock, "-n", filepath.Join(n.dir, "lock"), "true").Run()
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit), "flock of a held directory: %v", err)
	}
}

// B45: after a power-off any two that come back lead on, and the third joins; the terms do not run away.
func TestB45RestartInEveryOrder(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	awaitLeader(t, nodes...).propose(t, "first")
	for round, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		leader := awaitLeader(t, nodes...)
		before := leader.c.Status().Term
		leader.propose(t, fmt.Sprint("round ", round))
		nodes[order[2]].stop() // its log stays behind
		awaitLeader(t, nodes[order[0]], nodes[order[1]]).propose(t, fmt.Sprint("without ", nodes[order[2]].id))
		nodes[order[0]].stop()
		nodes[order[1]].stop()
		nodes[order[0]].start()
		nodes[order[1]].start()
		began := time.Now()
		leader = awaitLeader(t, nodes[order[0]], nodes[order[1]])
		require.Less(t, time.Since(began), 15*time.Second)
		nodes[order[2]].start()
		awaitSame(t, nodes...)
		require.LessOrEqual(t, leader.c.Status().Term, before+5)
	}
	require.Len(t, nodes[0].sm.commands(), 2+6*2)
}

func TestNodesThatSwapAddressesFindEachOther(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	awaitLeader(t, nodes...).propose(t, "a")
	for _, n := range nodes {
		n.stop()
	}
	a, b := &nodes[1].cfg, &nodes[2].cfg
	a.RaftAddr, b.RaftAddr = b.RaftAddr, a.RaftAddr
	a.GossipAddr, b.GossipAddr = b.GossipAddr, a.GossipAddr
	nodes[0].cfg.RaftAddr = freeAddr(t) // the gossip address is what the seeds name
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	leader.propose(t, "b")
	awaitSame(t, nodes...)
	leaders := 0
	for _, n := range nodes {
		if n.c.IsLeader() {
			leaders++
		}
	}
	require.Equal(t, 1, leaders)
}

func TestNoVoteBeforeAMajorityAnswered(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	awaitLeader(t, nodes...)
	for _, n := range nodes {
		n.stop()
	}
	nodes[0].start()
	eventually(t, 3*time.Second, func() bool { return strings.Contains(nodes[0].c.Status().Waiting, "majority of the voters") }, "it waits")
	require.Nil(t, nodes[0].c.instance())
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	_, err := nodes[0].c.Propose(ctx, []byte("x"))
	var pe *ProposeError
	require.ErrorAs(t, err, &pe)
	require.Equal(t, NotCommitted, pe.Outcome)
}
