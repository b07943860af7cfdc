package cluster

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A node that was away must not take its lease from an old state: its emitters may have moved, and it would send as their
// old owner (found by the fault harness, check fencing).
func TestLapsedLeaseIsGrantedOnlyToANodeThatKnowsEveryMove(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	leader.propose(t, "before")
	leader.propose(t, "owners")
	moved := leader.sm.OwnersIndex()
	require.NotZero(t, moved)
	leader.propose(t, "after")

	ask := func(held byte, applied uint64) []byte {
		answer, err := leader.c.serveLease(within(t, 5*time.Second), "n2", binary.LittleEndian.AppendUint64([]byte{held}, applied))
		require.NoError(t, err)
		return answer
	}
	require.Equal(t, []byte{0}, ask(0, moved-1), "it does not know of the move")
	require.Equal(t, []byte{1}, ask(0, moved), "it does; the entries behind it may be on their way")
	require.Equal(t, []byte{1}, ask(1, moved-1), "a lease that is held goes on: nothing of it can have moved")
	_, err := leader.c.serveLease(within(t, 5*time.Second), "n2", nil)
	require.Error(t, err)
}

// A node that came back holds its lease before it reports. Its emitters must not move meanwhile: it sends for them (found by
// the fault harness, check fencing).
func TestANodeWithALeaseAndNoFreshReportIsHeldNotEmptied(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	state := func(id string) OwnerNode {
		owners, _ := leader.c.Owners()
		for _, o := range owners {
			if o.ID == id {
				return o
			}
		}
		return OwnerNode{}
	}
	var other string
	for _, n := range nodes {
		if n != leader {
			other = n.id
		}
	}
	eventually(t, 5*time.Second, func() bool { return state(other).Eligible }, "eligible")
	eventually(t, 5*time.Second, func() bool {
		leader.c.table.age(other, reportFresh)
		o := state(other)
		return !o.Live && !o.Eligible && o.Silent < leader.c.cfg.LeaseTTL
	}, "neither live nor long silent: emit.Place leaves its emitters where they are")
	eventually(t, 5*time.Second, func() bool { return state(other).Eligible }, "its next report makes it eligible again")
}

// age makes the newest report of a node older.
func (t *reportTable) age(id string, by time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byID[id]
	r.heard = r.heard.Add(-by)
	t.byID[id] = r
}

// Entries that Raft makes for itself never reach the state machine: an idle node must not look as if it lagged for ever.
func TestAppliedIndexReachesTheCommitIndexOnAnIdleCluster(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	leader.propose(t, "a")
	require.NoError(t, leader.c.Transfer(within(t, 5*time.Second)))
	next := awaitLeader(t, nodes...)
	eventually(t, 5*time.Second, func() bool {
		s := next.c.Status()
		return s.CommitIndex > 0 && s.AppliedIndex == s.CommitIndex
	}, "applied is commit")
}

// The command that moves an emitter may be on its way when its silent owner comes back: it waits for the next look.
func TestReturningNodeGetsItsLeaseBetweenTwoLooks(t *testing.T) {
	g, now := newGrants(), time.Now()
	require.True(t, g.comesBack("n2", now), "nobody moves anything yet")
	g.look(now)
	require.False(t, g.comesBack("n2", now), "that look may have decided to move what it owns")
	require.False(t, g.comesBack("n2", now))
	later := now.Add(6 * time.Second)
	g.look(later)
	live, silent := g.state("n2", later, now)
	require.False(t, live)
	require.Zero(t, silent, "this look counts it as heard of, and leaves it what it has")
	require.True(t, g.comesBack("n2", later.Add(50*time.Millisecond)))
	require.False(t, g.comesBack("n2", later.Add(time.Minute)), "the next time it waits again")
	g.look(later.Add(time.Minute))
	require.False(t, g.comesBack("n2", later.Add(2*time.Minute)), "cleared long ago is not cleared")
}
