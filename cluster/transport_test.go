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
		before := n.c.Status().SnapshotIndex
		for range 30 {
			n.propose(t, strings.Repeat("x", 1000))
		}
		eventually(t, 5*time.Second, func() bool { return n.c.Status().SnapshotIndex > before }, "a snapshot")
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
