package owner

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/cluster"
	"penstock/dlq"
	"penstock/emit"
	"penstock/event"
	"penstock/fsm"
	"penstock/fsm/command"
	"penstock/node/internal/testbed"
)

// proposed decodes every command that the bed is given.
func proposed(b *testbed.Bed, fail error) *[]command.Command {
	var all []command.Command
	b.BeforePropose = func(_ context.Context, cmd []byte) error {
		c, err := command.Decode(bytes.Clone(cmd))
		if err != nil {
			return err
		}
		all = append(all, c)
		return fail
	}
	return &all
}

func run(t *testing.T, f func(context.Context), d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f(ctx) }()
	time.Sleep(d)
	cancel()
	<-done
}

func TestALeaderGivesEveryEmitterAnOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := testbed.New(t)
		b.Put(orders(stdout("a"), stdout("b")))
		all := proposed(b, nil)
		nodes := []emit.Node{{ID: "n1", Live: true, Eligible: true}, {ID: "n2", Live: true, Eligible: true}}
		leads := false
		p := &Placer{Machine: b.Machine, Cluster: b, Members: func() ([]emit.Node, bool) { return nodes, leads }, Logger: quiet}
		run(t, p.Run, time.Second)
		require.Empty(t, *all, "who must not assign proposes nothing")

		leads = true
		run(t, p.Run, time.Second)
		require.Len(t, *all, 1, "one command for all, and none once they have owners")
		require.Equal(t, "n1", b.Emitter("orders", "a").Owner)
		require.Equal(t, "n2", b.Emitter("orders", "b").Owner)

		nodes = []emit.Node{{ID: "n1", Silent: emit.MoveAfter}, {ID: "n2", Live: true, Eligible: true}}
		run(t, p.Run, time.Second)
		require.Equal(t, "n2", b.Emitter("orders", "a").Owner)
		last := (*all)[len(*all)-1].(command.Assign)
		require.Equal(t, []command.Assignment{{
			ChannelIndex: b.Emitter("orders", "a").ChannelIndex, EmitterIndex: b.Emitter("orders", "a").EmitterIndex, Node: "n2", IfEpoch: 1,
		}}, last.Items, "each names the epoch that it was planned on")
	})
}

func TestAnAssignmentPlannedOnAnOldEpochChangesNothing(t *testing.T) {
	b := testbed.New(t)
	b.Put(orders(stdout("out")))
	nodes := []emit.Node{{ID: "n2", Live: true, Eligible: true}}
	p := &Placer{Machine: b.Machine, Cluster: b, Members: func() ([]emit.Node, bool) { return nodes, true }, Logger: quiet}
	plan := p.plan()
	require.Len(t, plan, 1)
	owned(b) // meanwhile
	p.propose(context.Background(), plan)
	require.Equal(t, "n1", b.Emitter("orders", "out").Owner)
	require.Equal(t, uint64(1), b.Emitter("orders", "out").Epoch)
}

func TestATickIsProposedByTheLeaderOnlyAndOnlyWhenDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := testbed.New(t)
		b.Put(orders(cutting(100))) // linger 1m
		b.Send("orders", "a")
		all := proposed(b, nil)
		now := b.Now()
		b.Clock = func() time.Time { return now }
		leads := true
		k := &Ticker{Machine: b.Machine, Cluster: b, IsLeader: func() bool { return leads }, Logger: quiet}
		run(t, k.Run, time.Second)
		require.Empty(t, *all, "within its linger")

		now = now.Add(2 * time.Minute)
		leads = false
		run(t, k.Run, time.Second)
		require.Empty(t, *all, "a follower")

		leads = true
		b.Advance(2 * time.Minute)
		run(t, k.Run, time.Second)
		require.Equal(t, []command.Command{command.Tick{}}, *all, "once: then the run is closed")
		e := b.Emitter("orders", "out")
		require.Len(t, b.Machine.Runs(e.ChannelIndex, e.EmitterIndex, 1, 10), 1)
	})
}

// A leader that cannot commit says so once, not twenty times a second.
func TestAProposalThatKeepsFailingIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := testbed.New(t)
		b.Put(orders(cutting(100), stdout("two")))
		b.Send("orders", "a")
		later := b.Now().Add(time.Hour)
		b.Clock = func() time.Time { return later }
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		nodes := []emit.Node{{ID: "n1", Live: true, Eligible: true}}
		all := proposed(b, &cluster.ProposeError{Outcome: cluster.NotCommitted, Reason: cluster.ReasonNoLeader})
		run(t, (&Ticker{Machine: b.Machine, Cluster: b, IsLeader: func() bool { return true }, Logger: logger}).Run, 10*time.Second)
		run(t, (&Placer{Machine: b.Machine, Cluster: b, Members: func() ([]emit.Node, bool) { return nodes, true }, Logger: logger}).Run, 10*time.Second)
		require.Greater(t, len(*all), 100)
		require.Equal(t, 2, strings.Count(log.String(), "\n"), log.String())
	})
}

func TestOutcomesAreCommittedUnderTheOwnersEpoch(t *testing.T) {
	b := testbed.New(t)
	b.Put(orders(stdout("out")))
	e := owned(b)
	b.Send("orders", "a", "b")
	p := &proposer{deps: depsOf(b), info: e}
	all := proposed(b, nil)
	at := time.Date(2026, 5, 1, 0, 0, 0, 7, time.UTC)
	require.NoError(t, p.Propose(context.Background(), []emit.Outcome{
		{First: 1, Last: 1, Kind: emit.Delivered, Attempts: 2, At: at, Status: 200},
		{First: 2, Last: 2, Kind: emit.Failed, Attempts: 1, At: at, Class: emit.ClassAuth, Status: 401, Reason: "no"},
	}))
	require.Equal(t, []command.Command{command.Outcomes{
		ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Epoch: 1, Node: "n1", Outcomes: []command.Outcome{
			{First: 1, Last: 1, Kind: command.Delivered, Attempts: 2, At: at.UnixNano(), Status: 200},
			{First: 2, Last: 2, Kind: command.Failed, Attempts: 1, At: at.UnixNano(), Class: command.ClassAuth, Status: 401, Reason: "no"},
		},
	}}, *all)
	require.Equal(t, uint64(1), b.Emitter("orders", "out").Pending)

	b.Own(e, "n2")
	require.ErrorIs(t, p.Propose(context.Background(), []emit.Outcome{{First: 2, Last: 2, Kind: emit.Delivered, Attempts: 1, At: at}}), emit.ErrStaleEpoch)
	require.Equal(t, uint64(1), b.Emitter("orders", "out").Pending)
	gone := &proposer{deps: depsOf(b), info: fsm.EmitterInfo{ChannelIndex: 99, EmitterIndex: 99, Epoch: 1}}
	require.ErrorIs(t, gone.Propose(context.Background(), []emit.Outcome{{First: 1, Last: 1, Kind: emit.Delivered, At: at}}), emit.ErrStaleEpoch)

	lost := errors.New("connection lost")
	b.BeforePropose = func(context.Context, []byte) error { return lost }
	require.ErrorIs(t, p.Propose(context.Background(), []emit.Outcome{{First: 2, Last: 2, Kind: emit.Delivered, At: at}}), lost)
}

// A command has a bound, and outcomes that name each position of a large compaction reach it: refused whole they would be
// proposed again for ever.
func TestManyOutcomesAreSplitIntoCommandsThatTheClusterTakes(t *testing.T) {
	c := &taker{t: t}
	const events, compactions = 10_000, 200
	var outcomes []emit.Outcome
	var want []uint64
	for i := range compactions {
		o := emit.Outcome{First: uint64(i*events + 1), Last: uint64((i + 1) * events), Kind: emit.Dead, Attempts: 1, At: time.Unix(1, 0), Reason: "gone",
			CompactionID: strings.Repeat("0f", 16)}
		for k := range events {
			o.Positions = append(o.Positions, event.Position{Index: uint64(i + 1), Ordinal: uint32(k)})
		}
		outcomes, want = append(outcomes, o), append(want, o.First)
	}
	require.NoError(t, (&proposer{deps: Deps{NodeID: "n1", Cluster: c}}).Propose(context.Background(), outcomes))
	require.Equal(t, want, c.seen, "all of them, in order")
	require.Greater(t, len(c.sizes), 1)
	for _, size := range c.sizes {
		require.LessOrEqual(t, size, maxOutcomeBytes)
	}

	c.fail, c.seen = 2, nil
	require.Error(t, (&proposer{deps: Deps{NodeID: "n1", Cluster: c}}).Propose(context.Background(), outcomes))
	require.Less(t, len(c.seen), compactions, "it stops at the first error")
}

// taker takes outcomes without a state machine behind it.
type taker struct {
	t     *testing.T
	sizes []int
	seen  []uint64
	fail  int // the how-manieth proposal from now on fails
}

func (c *taker) Propose(_ context.Context, cmd []byte) ([]byte, error) {
	if c.fail--; c.fail == 0 {
		return nil, errors.New("connection lost")
	}
	decoded, err := command.Decode(cmd)
	require.NoError(c.t, err)
	c.sizes = append(c.sizes, len(cmd))
	for _, o := range decoded.(command.Outcomes).Outcomes {
		c.seen = append(c.seen, o.First)
	}
	return command.OutcomesResult{Status: command.OK}.Append(nil), nil
}

func (c *taker) Now() time.Time { return time.Now() }

func TestALetterIsWrittenUnderTheIDTheStateMachineGivesIt(t *testing.T) {
	p := event.Position{Index: 7, Ordinal: 3}
	at := time.Date(2026, 5, 1, 0, 0, 0, 7, time.UTC)
	l := emit.DeadLetter{
		Channel: "orders", Emitter: "out", ChannelIndex: 2, EmitterIndex: 4, Node: "n1", Epoch: 5, CompactionID: "c", Seq: 9, Position: p,
		Event: testbed.Event("a"), Class: emit.ClassPermanent, Status: 410, Cause: "refused", Reason: "gone", Attempts: 3,
		History: []emit.Attempt{{At: at, Class: emit.ClassPermanent, Status: 410, Reason: "gone", Body: []byte("x")}}, At: at,
	}
	v := &volume{}
	require.NoError(t, (&deadLetters{deps: Deps{Dead: v}}).Write(context.Background(), []emit.DeadLetter{l}))
	l.Poison = true
	require.NoError(t, (&deadLetters{deps: Deps{Dead: v}}).Write(context.Background(), []emit.DeadLetter{l}))
	require.Len(t, v.records, 2)
	r := v.records[0]
	require.Equal(t, fsm.DeadLetterID(2, 4, p), r.ID)
	require.Equal(t, dlq.Dead, r.State)
	require.Equal(t, "n1", r.Owner)
	require.Equal(t, uint64(5), r.Epoch)
	require.Equal(t, "permanent", r.Class)
	require.Len(t, r.Attempts, 1)
	require.Equal(t, "a", r.Event.ID)
	require.Equal(t, dlq.Poison, v.records[1].State)

	v.err = errors.New("full")
	require.ErrorIs(t, (&deadLetters{deps: Deps{Dead: v}}).Write(context.Background(), []emit.DeadLetter{l}), v.err)
}

type volume struct {
	records []dlq.Record
	err     error
}

func (v *volume) Append(_ context.Context, records []dlq.Record) error {
	v.records = append(v.records, records...)
	return v.err
}
