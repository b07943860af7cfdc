package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// requireSameLog checks that b holds every entry of a from index on, byte for byte (I2).
func requireSameLog(t *testing.T, a, b *memLog, from uint64) {
	t.Helper()
	last, _ := a.LastIndex()
	// The state machines being equal says nothing of a configuration or a no-op behind the last command.
	eventually(t, 5*time.Second, func() bool { l, _ := b.LastIndex(); return l >= last }, "the log reaches %d", last)
	for i := from; i <= last; i++ {
		var ea, eb raft.Log
		require.NoError(t, a.GetLog(i, &ea))
		require.NoError(t, b.GetLog(i, &eb), "entry %d", i)
		require.Equal(t, ea.Term, eb.Term, "entry %d", i)
		require.Equal(t, string(ea.Data), string(eb.Data), "entry %d", i)
	}
}

// joinNode starts node with the seeds of the others and makes it a voter once it may be one.
func joinNode(t *testing.T, node, via *testNode) {
	t.Helper()
	node.cfg.Seeds = via.cfg.Seeds
	node.start()
	eventually(t, 10*time.Second, func() bool {
		err := via.c.AddNonvoter(within(t, 3*time.Second), node.id)
		return err == nil
	}, "add %s", node.id)
	eventually(t, 15*time.Second, func() bool {
		return via.c.Promote(within(t, 3*time.Second), node.id) == nil
	}, "promote %s", node.id)
}

// Show 5 of the first issue: a fourth node joins while entries are pending and older log is gone, leads, takes snapshots; a fifth joins
// from it. Each gets exactly one installation and every entry from the floor on.
func TestJoinedNodeGetsEveryNeededEntryAndPassesItOn(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	for i := range 40 {
		leader.propose(t, fmt.Sprintf("a%d", i))
	}
	const floor = 25
	leader.propose(t, fmt.Sprintf("floor:%d", floor))
	takeSnapshots(t, nodes...)
	eventually(t, 5*time.Second, func() bool { b, _ := leader.log.Base(); return b == floor-2 }, "the log is cut behind the floor")
	for i := range 20 {
		leader.propose(t, fmt.Sprintf("b%d", i))
	}

	n4 := newTestNode(t, "n4")
	joinNode(t, n4, leader)
	awaitSame(t, leader, n4)
	require.Equal(t, 1, n4.log.resets, "exactly one installation")
	base, _ := n4.log.Base()
	require.Equal(t, uint64(floor-1), base)
	requireSameLog(t, leader.log, n4.log, floor)

	require.NoError(t, leader.c.TransferTo(within(t, 5*time.Second), "n4"))
	eventually(t, 10*time.Second, n4.c.IsLeader, "n4 leads")
	for i := range 20 {
		n4.propose(t, fmt.Sprintf("c%d", i))
	}
	n4.propose(t, "floor:35")
	takeSnapshots(t, n4)
	n4.propose(t, "d")
	eventually(t, 5*time.Second, func() bool { b, _ := n4.log.Base(); return b == 33 }, "the log of n4 is cut behind the floor")

	n5 := newTestNode(t, "n5")
	joinNode(t, n5, n4)
	awaitSame(t, n4, n5, leader)
	require.Equal(t, 1, n5.log.resets, "exactly one installation")
	requireSameLog(t, n4.log, n5.log, 35)
	eventually(t, 5*time.Second, func() bool { return n4.c.floor.pinned() == 0 }, "the transfer lets the floor go")

	// A joined node starts again from its base, its snapshot and its log.
	n5.stop()
	n4.propose(t, "while n5 is away")
	n5.start()
	awaitSame(t, n4, n5)
	require.Equal(t, 1, n5.log.resets)
}

// takeSnapshots takes two snapshots on each node, with something between them.
func takeSnapshots(t *testing.T, nodes ...*testNode) {
	t.Helper()
	for range keepSnapshots {
		leader := awaitLeader(t, nodes...)
		leader.propose(t, "between snapshots")
		awaitSame(t, nodes...)
		for _, n := range nodes {
			require.NoError(t, n.c.TakeSnapshot())
		}
	}
}

func TestStateOfADeletedStoreIsRebuilt(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	for i := range 30 {
		leader.propose(t, fmt.Sprintf("a%d", i))
	}
	leader.propose(t, "floor:20")
	takeSnapshots(t, nodes...)
	leader.propose(t, "after")
	victim := nodes[0]
	victim.stop()
	victim.sm = &toySM{}
	victim.start()
	awaitSame(t, nodes[1], victim)
}

// raft#697: the log of a follower ends above the label of the snapshot it is sent, with other entries.
func TestInstallBelowTheEndOfAnotherLogStartsRaftAnew(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	var victim *testNode
	for _, n := range nodes {
		if n != leader {
			victim = n
		}
	}
	victim.stop()
	for i := range 30 {
		leader.propose(t, fmt.Sprintf("a%d", i))
	}
	leader.propose(t, "floor:20")
	var up []*testNode
	for _, n := range nodes {
		if n != victim {
			up = append(up, n)
		}
	}
	takeSnapshots(t, up...)
	eventually(t, 5*time.Second, func() bool { b, _ := leader.log.Base(); return b == 18 }, "the log is cut behind the floor")
	// What the victim holds was never committed, and reaches far above the label.
	victim.log.entries = victim.log.entries[:2]
	victim.sm.state = toyState{}
	for i := uint64(3); i < 60; i++ {
		require.NoError(t, victim.log.StoreLog(&raft.Log{Index: i, Term: 1, Type: raft.LogNoop}))
	}
	victim.start()
	awaitSame(t, leader, victim)
	leader.propose(t, "on it goes")
	awaitSame(t, leader, victim)
	require.Equal(t, 1, victim.log.resets)
	requireSameLog(t, leader.log, victim.log, 20)
}

// DESIGN 4.4: with every snapshot and the state lost, and the log's front gone, one is fetched before Raft starts.
func TestLostSnapshotsAndStateAreFetchedFromAPeer(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	for i := range 30 {
		leader.propose(t, fmt.Sprintf("a%d", i))
	}
	leader.propose(t, "floor:20")
	takeSnapshots(t, nodes...)
	leader.propose(t, "after")
	awaitSame(t, nodes...)
	victim := nodes[1]
	eventually(t, 5*time.Second, func() bool { b, _ := victim.log.Base(); return b == 18 }, "the log is cut behind the floor")
	victim.stop()
	require.NoError(t, os.RemoveAll(filepath.Join(victim.dir, "snapshots")))
	victim.sm = &toySM{}
	victim.start()
	awaitSame(t, nodes[0], victim)
	awaitLeader(t, nodes...).propose(t, "on it goes")
	awaitSame(t, nodes...)
	require.Zero(t, victim.log.resets, "its own log goes on")
	requireSameLog(t, nodes[0].log, victim.log, 20)
	eventually(t, 5*time.Second, func() bool { return victim.c.Status().PayloadComplete }, "it caught up")
}
