package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

func TestAppendEntriesIsCutAtItsByteBoundButNeverEmptied(t *testing.T) {
	tr := &transport{maxBytes: 1000}
	entries := func(sizes ...int) *raft.AppendEntriesRequest {
		req := &raft.AppendEntriesRequest{}
		for _, n := range sizes {
			req.Entries = append(req.Entries, &raft.Log{Data: make([]byte, n)})
		}
		return req
	}
	for _, c := range []struct {
		sizes []int
		want  int
	}{{nil, 0}, {[]int{10}, 1}, {[]int{5000}, 1}, {[]int{5000, 1}, 1}, {[]int{300, 300, 300}, 2}, {[]int{100, 100, 100, 100}, 4}} {
		req := entries(c.sizes...)
		tr.cut(req)
		require.Len(t, req.Entries, c.want, "%v", c.sizes)
	}
}

// A follower that was away gets a backlog far above one request, in pieces.
func TestBacklogOfLargeEntriesIsSentInPieces(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	for _, n := range nodes {
		n.cfg.AppendBytes = 64 << 10
	}
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	var away *testNode
	for _, n := range nodes {
		if n != leader {
			away = n
		}
	}
	away.stop()
	for range 40 {
		leader.propose(t, strings.Repeat("x", 50<<10))
	}
	away.start()
	awaitSame(t, leader, away)
}

func TestSnapshotsAreTakenByTheBytesOfTheLog(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, "n1")
	n.cfg.Single, n.cfg.SnapshotBytes = true, 20<<10
	n.start()
	awaitLeader(t, n)
	n.propose(t, "floor:1000000")
	for range 4 {
		// A snapshot is due after as much log as the state is large, and this state is all that was ever proposed.
		before := n.c.Status().SnapshotIndex
		eventually(t, 20*time.Second, func() bool {
			for range 30 {
				n.propose(t, strings.Repeat("x", 1000))
			}
			return n.c.Status().SnapshotIndex > before
		}, "a snapshot")
	}
	base, _ := n.log.Base()
	require.Greater(t, base, uint64(20), "the log goes behind the older of two")
	want := n.sm.commands()
	n.stop()
	n.sm = &toySM{} // the state is rebuilt from the snapshot and the log
	n.start()
	awaitLeader(t, n)
	require.Equal(t, want, n.sm.commands())
}

// outage stops a follower while the leader goes on for 6 s, and gives both. Only an outage under one leader shows anything: when leadership
// moved, on a busy machine, there is another, three times at the most.
func outage(t *testing.T, nodes []*testNode) (leader, away *testNode) {
	t.Helper()
	for range 3 {
		leader = awaitLeader(t, nodes...)
		away = nodes[0]
		if away == leader {
			away = nodes[1]
		}
		away.stop()
		for began := time.Now(); time.Since(began) < 6*time.Second && leaderOf(nodes...) == leader; time.Sleep(50 * time.Millisecond) {
			leader.propose(t, "while away")
		}
		if leaderOf(nodes...) == leader {
			return leader, away
		}
		away.start()
	}
	require.FailNow(t, "leadership moved during each of three outages")
	return nil, nil
}

// A node that was away for long is sent entries as soon as it answers: Raft alone would sit in a pause of up to 10 s (6 to 7 s after an outage of a
// minute were seen).
func TestANodeThatWasAwayIsSentEntriesAsSoonAsItIsBack(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	for _, n := range nodes {
		n.cfg.Timers = Timers{Heartbeat: 2 * time.Second, Election: 2 * time.Second, Lease: 2 * time.Second} // this machine may be busy
	}
	startAll(nodes)
	leader, away := outage(t, nodes)
	away.start()
	eventually(t, 10*time.Second, func() bool { return away.c.instance() != nil }, "Raft does not start")
	back := time.Now()
	eventually(t, 10*time.Second, func() bool { return len(away.sm.commands()) == len(leader.sm.commands()) }, "it does not catch up")
	took := time.Since(back)
	t.Logf("caught up %s after its Raft started", took.Round(time.Millisecond))
	require.Less(t, took, 2*time.Second)
}
