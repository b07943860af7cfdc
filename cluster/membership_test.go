package cluster

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// A node that loses its vote or its membership may go on sending until its lease is out; until then nobody else gets its emitters, and
// it gets no new lease before others have them.
func TestWhoLosesItsVoteIsHeldUntilItsLeaseIsOut(t *testing.T) {
	t.Parallel()
	g, now := newGrants(), time.Now()
	const ttl = 2 * time.Second
	g.look(now)
	g.grant("n2", true, now, ttl)
	voters := map[string]bool{"n1": true}
	require.Equal(t, []string{"n2"}, g.outlasts(voters, now.Add(ttl-1)))
	require.False(t, g.withoutVote("n2", now.Add(ttl-1)))
	require.Empty(t, g.outlasts(voters, now.Add(ttl)))
	now = now.Add(ttl)
	require.False(t, g.withoutVote("n2", now), "its emitters are still to be given away")
	g.look(now)
	require.False(t, g.withoutVote("n2", now), "that look's moves may be on their way")
	g.look(now)
	require.True(t, g.withoutVote("n2", now))
	g.grant("n2", false, now, ttl)
	require.Empty(t, g.outlasts(voters, now), "a lease without a vote holds nothing")
	require.True(t, g.withoutVote("n2", now))
	require.True(t, g.withoutVote("n9", now), "one that never had a vote waits for nothing")
}

func TestARemovedNodeIsToldOnceAndDisturbsNobodyAlthoughItRunsOn(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 4)
	calm(nodes)
	told := make(chan error, 8)
	victim := nodes[3]
	victim.cfg.Removed = func(err error) { told <- err } // and it is kept running
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	if leader == victim {
		require.NoError(t, victim.c.TransferTo(within(t, 5*time.Second), "n1"))
	}
	rest := nodes[:3]
	leader = awaitLeader(t, rest...)
	eventually(t, 10*time.Second, func() bool { return victim.c.Lease().Valid() }, "it has a lease")
	require.NoError(t, leader.c.Remove(within(t, 8*time.Second), victim.id, false))
	select {
	case err := <-told:
		require.ErrorIs(t, err, ErrRemoved)
		require.Equal(t, ExitRemoved, exitCodeOf(err, 0))
		require.ErrorContains(t, err, "cluster join n4")
	case <-time.After(20 * time.Second):
		require.FailNow(t, "not told")
	}
	eventually(t, 5*time.Second, func() bool { return !victim.c.Lease().Valid() }, "it loses its lease")
	leader = awaitLeader(t, rest...)
	term := leader.c.Status().Term
	for range 20 {
		leader.propose(t, "on")
		time.Sleep(250 * time.Millisecond) // longer than it takes to stand for election, in all
	}
	require.Equal(t, term, leader.c.Status().Term, "the removed node disturbs nobody")
	require.Empty(t, told, "once")

	// Started anew it learns it again; joined, it is a member as before.
	victim.stop()
	victim.start()
	require.ErrorIs(t, <-told, ErrRemoved)
	victim.stop()
	require.NoError(t, leader.c.AddNonvoter(within(t, 5*time.Second), victim.id))
	victim.start()
	eventually(t, 20*time.Second, func() bool { return leader.c.Promote(within(t, 3*time.Second), victim.id) == nil }, "it may vote again")
	awaitSame(t, nodes...)
	require.Empty(t, told)
}

func TestChangesThatLoseTheQuorumAreRefused(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	calm(nodes)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	others := slices.DeleteFunc(slices.Clone(nodes), func(n *testNode) bool { return n == leader })
	for _, n := range others {
		eventually(t, 10*time.Second, func() bool { return contact(leader, n.id) }, "it answers")
	}
	refused := func(err error, why string) {
		t.Helper()
		require.ErrorIs(t, err, ErrRefused)
		require.ErrorContains(t, err, why)
	}
	refused(leader.c.Remove(within(t, 5*time.Second), others[0].id, false), "none could be spared")
	refused(leader.c.Demote(within(t, 5*time.Second), others[0].id, false), "none could be spared")
	refused(leader.c.Demote(within(t, 5*time.Second), "n9", false), "not a member")

	// One change at a time: the second is told, not queued.
	leader.c.changing.Lock()
	refused(others[0].c.Remove(within(t, 5*time.Second), others[1].id, true), "another change of the members is under way")
	leader.c.changing.Unlock()

	others[1].stop()
	eventually(t, 10*time.Second, func() bool { return !contact(leader, others[1].id) }, "it is dead")
	refused(leader.c.Remove(within(t, 5*time.Second), others[0].id, true), "could never be committed")
	refused(leader.c.TransferTo(within(t, 5*time.Second), others[1].id), "no contact")
	require.NoError(t, leader.c.TransferTo(within(t, 5*time.Second), leader.id), "it leads already")
	require.NoError(t, leader.c.Remove(within(t, 8*time.Second), others[1].id, false), "the dead one")
	commit(t, "two of two", leader, others[0])
	refused(leader.c.Remove(within(t, 5*time.Second), others[0].id, false), "one disk would hold the only copy")
	require.NoError(t, leader.c.Transfer(within(t, 5*time.Second)))
	eventually(t, 5*time.Second, others[0].c.IsLeader, "handed over to the live one")
}

func TestATransferThatHangsIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g transferGuard
		start := time.Now()
		for time.Since(start) < transferPatience {
			require.False(t, g.hangs(raft.ErrLeadershipTransferInProgress, time.Now()))
			time.Sleep(time.Second)
		}
		require.True(t, g.hangs(raft.ErrLeadershipTransferInProgress, time.Now()))
		for _, other := range []error{nil, raft.ErrNotLeader, context.Canceled} {
			require.False(t, g.hangs(other, time.Now()))
			require.False(t, g.hangs(raft.ErrLeadershipTransferInProgress, time.Now()), "it counts anew")
		}
	})
}

// calm gives nodes timers with which a busy machine is no reason for an election.
func calm(nodes []*testNode) {
	for _, n := range nodes {
		n.cfg.Timers = Timers{Heartbeat: 2 * time.Second, Election: 2 * time.Second, Lease: 1500 * time.Millisecond}
	}
}

func contact(leader *testNode, id string) bool {
	tenure := leader.c.tenure()
	return tenure != nil && leader.c.inContact(tenure, id)
}

// commit commits a command through whoever leads, also when that changes meanwhile.
func commit(t *testing.T, command string, nodes ...*testNode) {
	t.Helper()
	eventually(t, 20*time.Second, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err := awaitLeader(t, nodes...).c.Propose(ctx, []byte(command))
		return err == nil
	}, "%q is committed", command)
}
