package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// Notes on Raft as a log, 13.1 (hashicorp/raft#695): with the stock transport a leader given one heartbeat of a higher term and then an
// Apply writes an entry of a term it never won, in 20 of 20 runs.
func TestHeartbeatOfAHigherTermNeverStampsAnEntry(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, "n1")
	n.cfg.Single = true
	n.start()
	for round := range 10 {
		awaitLeader(t, n)
		in := n.c.instance()
		term := in.raft.CurrentTerm()
		stream := newStreamLayer("n2", func(ctx context.Context, node string) (net.Conn, error) {
			return dial(ctx, n.c.raftAddr, connHeader{Kind: kindRaft, Cluster: n.c.clusterID(), From: "n2", To: "n1"})
		})
		fake := newTransport(transportConfig{stream: stream, maxBytes: 1 << 20, silent: func() bool { return false }, logger: newRaftLogger(testLogger("n2"))})
		var resp raft.AppendEntriesResponse
		err := fake.AppendEntries("n1", "n1", &raft.AppendEntriesRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte("n2"), Addr: []byte("n2")}, Term: term + 1,
		}, &resp)
		require.NoError(t, err)
		future := in.raft.Apply(toyAppendEntry(nil, n.c.Now().UnixNano(), [][]byte{fmt.Append(nil, "r", round)}), time.Second)
		_ = await(within(t, 5*time.Second), future)
		require.NoError(t, fake.Close())
		last, _ := n.log.LastIndex()
		for i := uint64(1); i <= last; i++ {
			var e raft.Log
			require.NoError(t, n.log.GetLog(i, &e))
			require.NotEqual(t, term+1, e.Term, "round %d: entry %d has a term that nobody here won", round, i)
		}
	}
}

// Show 9: without a quorum every request has its answer in time, and none is a success.
func TestWithoutAQuorumEveryProposalEndsInTime(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	for _, n := range nodes {
		n.cfg.LeaderWait = 500 * time.Millisecond
	}
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	leader.propose(t, "a")
	awaitSame(t, nodes...)
	var alone *testNode
	for _, n := range nodes {
		if n == leader {
			continue
		}
		if alone == nil {
			alone = n
			continue
		}
		n.stop()
	}
	leader.stop()
	for range 5 {
		began := time.Now()
		_, err := alone.c.Propose(within(t, 2*time.Second), []byte("x"))
		var pe *ProposeError
		require.ErrorAs(t, err, &pe)
		require.Less(t, time.Since(began), 2500*time.Millisecond)
	}
	_, err := alone.c.ReadIndex(within(t, 300*time.Millisecond))
	require.Error(t, err)
	require.Zero(t, alone.c.inFlight.used.Load())
}

// A leader cut off from the others: what it has appended is unknown, what it refuses is certain, and everything ends in time.
func TestCutOffLeaderGivesUnknownOrCertainNot(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	leader.propose(t, "a")
	leader.isolate(true, nodes...)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 50 * time.Millisecond)
			_, err := leader.c.Propose(within(t, time.Second), fmt.Append(nil, "cut", i))
			var pe *ProposeError
			if errors.As(err, &pe) && pe.Outcome == NotCommitted {
				mustNotAppear.Store(fmt.Sprint("cut", i), true)
			}
		})
	}
	wg.Wait()
	leader.isolate(false, nodes...)
	awaitLeader(t, nodes...).propose(t, "b")
	awaitSame(t, nodes...)
	for _, command := range leader.sm.commands() {
		_, bad := mustNotAppear.Load(command)
		require.False(t, bad, "%s was said to be certainly not committed", command)
	}
}

var mustNotAppear sync.Map

// isolate cuts, or heals, every link of n, both ways.
func (n *testNode) isolate(cut bool, nodes ...*testNode) {
	all := func(string) bool { return true }
	one := func(peer string) bool { return peer == n.id }
	for _, m := range nodes {
		if m.c == nil {
			continue
		}
		f := one
		if m == n {
			f = all
		}
		if !cut {
			m.c.blocked.Store(nil)
			continue
		}
		m.c.blocked.Store(&f)
		for _, other := range nodes {
			if other != m && (m == n || other == n) {
				m.c.moved(other.id)
				m.c.raftPort.drop(other.id)
			}
		}
	}
}

// S15: a node that was cut off comes back without unseating the leader.
func TestS15ReturningNodeUnseatsNobody(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	var cut *testNode
	for _, n := range nodes {
		if n != leader {
			cut = n
		}
	}
	cut.isolate(true, nodes...)
	time.Sleep(2 * time.Second) // several elections that it cannot win
	term := leader.c.Status().Term
	cut.isolate(false, nodes...)
	for i := range 20 {
		began := time.Now()
		leader.propose(t, fmt.Sprint("x", i))
		require.Less(t, time.Since(began), 500*time.Millisecond, "write gap")
		time.Sleep(50 * time.Millisecond)
	}
	awaitSame(t, nodes...)
	require.True(t, leader.c.IsLeader())
	require.Equal(t, term, leader.c.Status().Term)
}

// B43: writers on every node through forced leader changes. What was acknowledged is there; what was said to be certainly not committed
// is not; every other outcome is said to be unknown.
func TestB43OutcomesHoldThroughLeaderChanges(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	awaitLeader(t, nodes...)
	var acked, refused sync.Map
	var stop atomic.Bool
	var wg sync.WaitGroup
	for _, n := range nodes {
		c := n.c // the node that is killed gets a new one; the writer stays with the old
		for w := range 3 {
			wg.Go(func() {
				for i := 0; !stop.Load(); i++ {
					command := n.id + "." + strconv.Itoa(w) + "." + strconv.Itoa(i)
					ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
					_, err := c.Propose(ctx, []byte(command))
					cancel()
					var pe *ProposeError
					switch {
					case err == nil:
						acked.Store(command, true)
					case errors.As(err, &pe) && pe.Outcome == NotCommitted:
						refused.Store(command, true)
						if pe.Reason == ReasonShutdown {
							return
						}
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
	}
	for i := range 6 {
		time.Sleep(150 * time.Millisecond)
		leader := awaitLeader(t, nodes...)
		switch i % 3 {
		case 0:
			_ = leader.c.Transfer(within(t, 5*time.Second))
		case 1:
			leader.isolate(true, nodes...)
			time.Sleep(700 * time.Millisecond)
			leader.isolate(false, nodes...)
		case 2:
			if i == 2 { // once: its writers end with it
				leader.stop()
				leader.start()
			}
		}
	}
	stop.Store(true)
	wg.Wait()
	awaitLeader(t, nodes...).propose(t, "end")
	awaitSame(t, nodes...)
	commands := nodes[0].sm.commands()
	seen := map[string]int{}
	for _, c := range commands {
		seen[c]++
	}
	n := 0
	acked.Range(func(k, _ any) bool { n++; require.Equal(t, 1, seen[k.(string)], "acked %v", k); return true })
	refused.Range(func(k, _ any) bool { require.Zero(t, seen[k.(string)], "certainly not: %v", k); return true })
	require.Greater(t, n, 50)
	requireSameLog(t, nodes[0].log, nodes[1].log, 1)
}

// A leader that dies with a forwarded proposal in its hands.
func TestLeaderLostAfterTheSendIsUnknown(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	var follower *testNode
	for _, n := range nodes {
		if n != leader {
			follower = n
		}
	}
	eventually(t, 3*time.Second, func() bool { return follower.c.Leader() == leader.id }, "the follower knows the leader")
	follower.propose(t, "a")
	stall := make(chan struct{})
	leader.log.mu.Lock()
	leader.log.stall = stall
	leader.log.mu.Unlock()
	out := make(chan error, 1)
	go func() {
		_, err := follower.c.Propose(within(t, 5*time.Second), []byte("in its hands"))
		out <- err
	}()
	time.Sleep(100 * time.Millisecond)
	leader.c.raftPort.Close() // its connections break, as with a kill
	err := <-out
	var pe *ProposeError
	require.ErrorAs(t, err, &pe)
	require.Equal(t, Unknown, pe.Outcome)
	require.Equal(t, ReasonConnection, pe.Reason)
	close(stall)
}

// A leader whose disk hangs falls silent, so that the others elect; its lease goes with it.
func TestLeaderWithAHangingWriteIsReplaced(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	leader.propose(t, "a")
	eventually(t, 3*time.Second, leader.c.Lease().Valid, "the leader has a lease")
	stall := make(chan struct{})
	leader.log.mu.Lock()
	leader.log.stall = stall
	leader.log.mu.Unlock()
	go leader.c.Propose(within(t, 3*time.Second), []byte("stuck"))
	others := slices.DeleteFunc(slices.Clone(nodes), func(n *testNode) bool { return n == leader })
	began := time.Now()
	next := awaitLeader(t, others...)
	require.Less(t, time.Since(began), 4*time.Second)
	next.propose(t, "b")
	lost := leader.c.Lease().Lost()
	select {
	case <-lost:
	case <-time.After(3 * time.Second):
		require.Fail(t, "the lease of the silent leader goes on")
	}
	leader.log.mu.Lock()
	leader.log.stall = nil
	leader.log.mu.Unlock()
	close(stall)
	awaitSame(t, nodes...)
}

func TestReadIndexSeesEveryCommittedWrite(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	awaitLeader(t, nodes...)
	for i := range 20 {
		w, r := nodes[i%3], nodes[(i+1)%3]
		command := fmt.Sprint("w", i)
		w.propose(t, command)
		index, err := r.c.ReadIndex(within(t, 5*time.Second))
		require.NoError(t, err)
		applied, _ := r.sm.Applied()
		require.GreaterOrEqual(t, applied, index)
		require.Contains(t, r.sm.commands(), command)
	}
}

func TestDrainHandsOverAndRefuses(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	leader.propose(t, "a")
	awaitSame(t, nodes...)
	require.NoError(t, leader.c.Drain(within(t, 5*time.Second)))
	others := slices.DeleteFunc(slices.Clone(nodes), func(n *testNode) bool { return n == leader })
	began := time.Now()
	awaitLeader(t, others...).propose(t, "b")
	require.Less(t, time.Since(began), 2*time.Second)
	_, err := leader.c.Propose(within(t, time.Second), []byte("c"))
	var pe *ProposeError
	require.ErrorAs(t, err, &pe)
	require.Equal(t, NotCommitted, pe.Outcome)
	require.Equal(t, ReasonShutdown, pe.Reason)
}

func TestFailedApplyEndsTheProcess(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, "n1")
	n.cfg.Single = true
	n.start()
	awaitLeader(t, n)
	_, err := n.c.Propose(within(t, 2*time.Second), []byte("poison"))
	var pe *ProposeError
	require.ErrorAs(t, err, &pe)
	require.Equal(t, Unknown, pe.Outcome)
	n.requireFatal(time.Second, ExitFailed)
}

func TestOwnersWaitAFullLeaseAfterAnElection(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	_, ok := leader.c.Owners()
	require.False(t, ok, "a new leader does not know who holds a lease")
	eventually(t, 5*time.Second, func() bool { _, ok := leader.c.Owners(); return ok }, "owners")
	eventually(t, 5*time.Second, func() bool {
		owners, _ := leader.c.Owners()
		return len(owners) == 3 && !slices.ContainsFunc(owners, func(o OwnerNode) bool { return !o.Live || !o.Eligible || o.Silent > 2*time.Second })
	}, "all three live and eligible")
	var victim *testNode
	for _, n := range nodes {
		require.True(t, n.c.Lease().Valid())
		if n != leader {
			victim = n
		}
	}
	require.False(t, func() bool { _, ok := victim.c.Owners(); return ok }(), "only the leader knows")
	lost := victim.c.Lease().Lost()
	victim.isolate(true, nodes...)
	<-lost
	owners, ok := leader.c.Owners()
	require.True(t, ok)
	for _, o := range owners {
		if o.ID == victim.id && o.Live { // the leader counts from later than the owner: never the other way round
			require.False(t, victim.c.Lease().Valid())
		}
	}
	eventually(t, 3*time.Second, func() bool {
		owners, _ := leader.c.Owners()
		return slices.ContainsFunc(owners, func(o OwnerNode) bool { return o.ID == victim.id && !o.Live && o.Silent >= 2*time.Second })
	}, "the silent one is out")
	victim.isolate(false, nodes...)
	eventually(t, 5*time.Second, func() bool {
		leader.c.Owners() // whoever decides looks again and again; the node comes back between two looks
		return victim.c.Lease().Valid()
	}, "and comes back")
}

func TestMembersChangeOneByOne(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	calm(nodes)
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	require.ErrorContains(t, leader.c.AddNonvoter(within(t, 2*time.Second), "n9"), "has not said hello")
	require.ErrorContains(t, leader.c.Promote(within(t, 2*time.Second), "n9"), "not a member")
	n4 := newTestNode(t, "n4")
	calm([]*testNode{n4})
	joinNode(t, n4, leader)
	require.ErrorContains(t, n4.c.AddNonvoter(within(t, 2*time.Second), "n4"), "already", "from any node")
	require.NoError(t, n4.c.Demote(within(t, 5*time.Second), "n4", false))
	var follower *testNode
	for _, n := range nodes {
		if n != leader {
			follower = n
		}
	}
	require.ErrorIs(t, follower.c.Remove(within(t, 8*time.Second), leader.id, false), ErrRefused, "the last voter to spare")
	require.Equal(t, leader.id, follower.c.Leader(), "nothing was handed over for it")
	require.NoError(t, follower.c.Remove(within(t, 8*time.Second), leader.id, true), "the leader, asked on another node")
	others := slices.DeleteFunc(slices.Clone(nodes), func(n *testNode) bool { return n == leader })
	next := awaitLeader(t, others...)
	next.propose(t, "without the old leader")
	term := next.c.Status().Term
	time.Sleep(time.Second) // the removed one is kept running
	require.Equal(t, term, next.c.Status().Term)
	for _, m := range next.c.Members() {
		require.NotEqual(t, leader.id, m.ID)
		require.Equal(t, m.ID == next.id, m.Leader)
		require.Equal(t, "http-"+m.ID, m.HTTPAddr)
	}
}
