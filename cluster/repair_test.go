package cluster

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"penstock/internal/vfs"
	"penstock/wal"
)

// Two of three damaged, at different places, and the third away: each has what the other lost, before Raft runs on either.
func TestTwoDamagedNodesHelpOneAnother(t *testing.T) {
	t.Parallel()
	nodes, plain := filledNodes(t, 120)
	want := nodes[0].sm.commands()
	nodes[0].flip(20)
	nodes[0].flip(90)
	nodes[1].flip(21)
	nodes[1].flip(60)
	nodes[0].sm, nodes[1].sm = &toySM{}, &toySM{} // all of it is applied again
	for _, n := range nodes[:2] {
		n.start()
	}
	awaitLeader(t, plain[:2]...)
	for _, n := range nodes[:2] {
		require.False(t, n.c.muzzled(), "nothing is in doubt: all of it came back")
		require.Empty(t, n.wal.Damage())
	}
	requireCommands(t, want, nodes[:2]...)
}

// The same entry on both, and the third away: they wait, and nobody leads with less. With the third there, all is there.
func TestTwoNodesDamagedAtTheSamePlaceWaitForTheThird(t *testing.T) {
	t.Parallel()
	nodes, plain := filledNodes(t, 120)
	want := nodes[0].sm.commands()
	for _, n := range nodes[:2] {
		n.flip(70)
	}
	for _, n := range nodes[:2] {
		n.start()
	}
	eventually(t, 10*time.Second, func() bool {
		return nodes[0].c.instance() != nil && nodes[1].c.instance() != nil
	}, "patience ends, and Raft starts muzzled")
	for _, n := range nodes[:2] {
		require.True(t, n.c.muzzled())
		last, _ := n.wal.LastIndex()
		require.Less(t, last, uint64(70), "what was cut is not guessed")
	}
	never(t, 2*time.Second, func() bool { return leaderOf(plain[:2]...) != nil }, "two nodes in doubt elected one of them")
	nodes[2].start()
	require.Equal(t, nodes[2].id, awaitLeader(t, plain...).id, "only the whole one may lead")
	requireCommands(t, want, nodes...)
	for _, n := range nodes {
		eventually(t, 10*time.Second, func() bool { return !n.c.muzzled() }, "%s stays in doubt", n.id)
	}
	fill(t, plain, "after", 1)
}

// The same entry lost on all three is lost for good: all being there the longest log leads, with an alarm.
func TestWhatNoNodeHasIsGivenUpOnlyWithAllThereAndWithAnAlarm(t *testing.T) {
	t.Parallel()
	nodes, plain := filledNodes(t, 60)
	told := make(chan string, 16)
	for _, n := range nodes {
		n.cfg.Audit = func(action, _ string) { told <- action }
		n.flip(40)
		n.sm = &toySM{}
	}
	for _, n := range nodes {
		n.start()
	}
	awaitLeader(t, plain...)
	forced := 0.0
	for _, n := range nodes {
		eventually(t, 10*time.Second, func() bool { return !n.c.muzzled() }, "%s stays in doubt", n.id)
		forced += testutil.ToFloat64(n.c.metrics.doubtElections)
	}
	require.Positive(t, forced)
	require.Equal(t, "cluster.elect-in-doubt", <-told)
	fill(t, plain, "after", 3)
	awaitSame(t, plain...)
}

// Entries at the tail that were never committed, with damage among them: the node is in doubt, votes for nobody, and comes to what the others have.
func TestDamagedTailOfUncommittedEntriesIsADoubt(t *testing.T) {
	t.Parallel()
	nodes, plain := filledNodes(t, 50)
	want := nodes[0].sm.commands()
	n := nodes[0]
	n.start() // alone: what it appends is nobody else's
	n.stop()
	l, err := wal.Open(n.walDir(), wal.Config{SegmentBytes: walSegment, MarkInterval: time.Millisecond, Logger: testLogger("")})
	require.NoError(t, err)
	last, err := l.LastIndex()
	require.NoError(t, err)
	var e raft.Log
	require.NoError(t, l.GetLog(last, &e))
	for i := last + 1; i <= last+5; i++ {
		require.NoError(t, l.StoreLog(&raft.Log{Index: i, Term: e.Term, Type: raft.LogCommand, Data: toyAppendEntry(nil, 1<<62, [][]byte{fmt.Appendf(nil, "never %0400d", i)})}))
	}
	require.NoError(t, l.Close())
	n.flip(last + 4) // its header too, as likely as not
	n.start()
	never(t, time.Second, func() bool { return leaderOf(plain[0]) != nil }, "it leads")
	nodes[1].start()
	nodes[2].start()
	awaitLeader(t, plain...)
	eventually(t, 10*time.Second, func() bool { return !n.c.muzzled() }, "it stays in doubt")
	fill(t, plain, "after", 2)
	awaitSame(t, plain...)
	now := nodes[1].sm.commands()
	require.Equal(t, want, now[:len(want)])
	for _, c := range now {
		require.NotContains(t, c, "never")
	}
	requireCommands(t, now, nodes...)
}

// A crash at each step of a repair that can repair nothing, and of one that can: the next start goes on, and a log that got shorter is always one
// of a node in doubt.
func TestRepairInterruptedAtEachStepGoesOn(t *testing.T) {
	t.Parallel()
	for _, thirdAway := range []bool{false, true} {
		for _, before := range []bool{false, true} {
			t.Run(fmt.Sprintf("third away %v, before the step %v", thirdAway, before), func(t *testing.T) {
				t.Parallel()
				nodes, plain := filledNodes(t, 80)
				want := nodes[0].sm.commands()
				full, err := walLast(nodes[0])
				require.NoError(t, err)
				nodes[0].flip(30)
				nodes[0].flip(60)
				if thirdAway { // and the second has not got them either
					nodes[1].flip(30)
					nodes[1].flip(60)
				}
				nodes[1].start()
				if !thirdAway {
					nodes[2].start()
				}
				crashes := 0
				for step := 1; ; step++ {
					n := nodes[0]
					n.crash, n.before = step, before
					err := n.open()
					if err == nil {
						eventually(t, 10*time.Second, func() bool { return n.c.instance() != nil || n.log.dead.Load() }, "neither repaired nor crashed")
						if !n.log.dead.Load() {
							break
						}
					}
					n.stop()
					crashes++
					last, err := walLast(n)
					require.NoError(t, err)
					if last < full {
						require.FileExists(t, filepath.Join(n.dir, doubtName), "step %d: the log is shorter and nothing says so", step)
					}
					require.Less(t, step, 50)
				}
				require.GreaterOrEqual(t, crashes, 2)
				if thirdAway {
					require.True(t, nodes[0].c.muzzled())
					nodes[2].start()
				}
				awaitLeader(t, plain...)
				requireCommands(t, want, nodes...)
			})
		}
	}
}

// Whatever bits of the logs of two nodes are flipped, in whatever order the three start: all that was committed is there again.
func TestAnyDamageOfAMinorityAndItsNeighbourIsRepaired(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	nodes, plain := filledNodes(t, 100)
	want := nodes[0].sm.commands()
	for round := range 6 {
		whole := random.IntN(3)
		for i, n := range nodes {
			if i == whole {
				continue
			}
			paths, err := filepath.Glob(filepath.Join(n.walDir(), "wal-*.seg"))
			require.NoError(t, err)
			slices.Sort(paths)
			for range 1 + random.IntN(3) {
				path := paths[random.IntN(len(paths))]
				info, err := os.Stat(path)
				require.NoError(t, err)
				n.flipAt(path, random.Int64N(info.Size()))
			}
			if random.IntN(2) == 0 {
				n.sm = &toySM{}
			}
			if random.IntN(4) == 0 {
				require.NoError(t, os.Remove(filepath.Join(n.walDir(), "mark")))
			}
		}
		order := random.Perm(3)
		refused := -1
		for _, i := range order {
			if err := nodes[i].open(); err != nil { // two neighbouring headers, or one and the mark: nobody can say what lives
				require.True(t, isDamage(err), "%v", err)
				require.NotEqual(t, whole, i)
				refused = i
			}
		}
		if refused >= 0 {
			t.Logf("round %d: node %d is refused", round, refused)
			break
		}
		awaitLeader(t, plain...)
		requireCommands(t, want, nodes...)
		for _, n := range nodes {
			eventually(t, 10*time.Second, func() bool { return !n.c.muzzled() }, "round %d: %s stays in doubt", round, n.id)
		}
		stopAll(nodes)
	}
}

// An older copy of the log is put back (DESIGN 4.7), and the node started with one that was away: together they would be a majority that lacks what was
// committed.
func TestAnOlderLogPutBackNeverMakesAMajority(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"state kept", "state lost too"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			nodes, plain := filledNodes(t, 40)
			old := filepath.Join(t.TempDir(), "wal")
			require.NoError(t, os.CopyFS(old, os.DirFS(nodes[0].walDir())))
			nodes[0].start()
			nodes[1].start()
			fill(t, plain[:2], "more", 40)
			awaitSame(t, plain[:2]...)
			want := nodes[0].sm.commands()
			// The other remembers how far this one was: it is told each second.
			last, err := nodes[0].wal.LastIndex()
			require.NoError(t, err)
			eventually(t, 10*time.Second, func() bool {
				p, ok := nodes[1].c.book.get("n1")
				return ok && p.LastIndex >= last
			}, "never told")
			nodes[2].start() // the third hears it too, and gets no entry of it
			nodes[2].stop()
			stopAll(nodes)
			require.NoError(t, os.RemoveAll(nodes[0].walDir()))
			require.NoError(t, os.Rename(old, nodes[0].walDir()))
			if what == "state lost too" {
				nodes[0].sm = &toySM{}
			}
			nodes[0].start()
			if what == "state kept" {
				require.True(t, nodes[0].c.muzzled(), "its own state knows better")
				nodes[2].start()
				never(t, 2*time.Second, func() bool { return leaderOf(plain...) != nil && len(leaderOf(plain...).sm.commands()) < len(want) }, "a majority without what was committed")
			}
			nodes[1].start()
			if what == "state lost too" {
				eventually(t, 10*time.Second, func() bool { return nodes[0].c.instance() != nil }, "it does not start")
				nodes[2].start()
			}
			awaitLeader(t, plain...)
			requireCommands(t, want, nodes...)
			eventually(t, 10*time.Second, func() bool { return !nodes[0].c.muzzled() }, "it stays in doubt")
		})
	}
}

// What is damaged under a running node comes back when Raft, or anybody, meets it; the log is never cut for it.
func TestDamageUnderARunningNodeIsRepairedInPlace(t *testing.T) {
	t.Parallel()
	nodes, plain := filledNodes(t, 60)
	want := nodes[0].sm.commands()
	for _, n := range nodes {
		n.start()
	}
	leader := awaitLeader(t, plain...)
	for _, n := range nodes {
		last, err := n.wal.LastIndex()
		require.NoError(t, err)
		n.flip(30)
		if n.testNode == leader {
			n.flip(last - 5) // in the newest segment
		}
		var e raft.Log
		require.Eventually(t, func() bool { return n.c.log.GetLog(30, &e) == nil }, 10*time.Second, 10*time.Millisecond, "Raft reads it once it is repaired")
		require.NoError(t, n.c.log.GetLog(last-5, &e))
		now, err := n.wal.LastIndex()
		require.NoError(t, err)
		require.GreaterOrEqual(t, now, last)
		require.False(t, n.c.muzzled())
	}
	requireCommands(t, want, nodes...)
}

func walLast(n *walNode) (uint64, error) {
	in, err := wal.Inspect(vfs.OS, n.walDir())
	last := in.Last
	for _, d := range in.Damage {
		last = max(last, d.Last)
	}
	return last, err
}

// never watches for something that must not happen.
func never(t *testing.T, during time.Duration, cond func() bool, msg string) {
	t.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		require.False(t, cond(), msg)
	}
}
