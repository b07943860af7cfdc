package owner

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"penstock/emit"
	"penstock/event"
	"penstock/fsm/command"
	"penstock/internal/spec"
	"penstock/node/internal/testbed"
	"penstock/node/logread"
)

func delivered(first, last uint64) command.Outcome {
	return command.Outcome{First: first, Last: last, Kind: command.Delivered, Attempts: 1, At: 1}
}

// walk takes every pending compaction from the source.
func walk(t *testing.T, s *source, after uint64) (all []emit.Compaction) {
	t.Helper()
	for {
		ctx, cancel := context.WithCancel(context.Background())
		if _, more := s.nextRun(after); !more {
			cancel() // it would wait
		}
		c, err := s.Next(ctx, after)
		cancel()
		if errors.Is(err, context.Canceled) {
			return all
		}
		require.NoError(t, err)
		require.Greater(t, c.First, after)
		all, after = append(all, c), c.Last
	}
}

func ids(all []emit.Compaction) (out []string) {
	for _, c := range all {
		text := fmt.Sprintf("%d-%d:", c.First, c.Last)
		for _, d := range c.Deliveries {
			text += fmt.Sprintf(" %d=%s@%s", d.Seq, d.Event.ID, d.Position)
		}
		out = append(out, text)
	}
	return out
}

func TestCompactionsComeInLogOrderWithAcceptedEventsOnly(t *testing.T) {
	b, _ := testbed.NewOnWAL(t)
	b.Put(orders(cutting(2)))
	e := owned(b)
	one, _ := b.Commit(b.Batch("orders", "a", "b", "a"), b.Batch("orders", "c"))
	two, _ := b.Commit(b.Batch("orders", "c", "d", "e", "f"))
	all := walk(t, sourceOf(b, 1<<20), 0)
	require.Equal(t, []string{
		fmt.Sprintf("1-2: 1=a@%d.0 2=b@%d.1", one, one),
		fmt.Sprintf("3-4: 3=c@%d.3 4=d@%d.1", one, two),
		fmt.Sprintf("5-6: 5=e@%d.2 6=f@%d.3", two, two),
	}, ids(all))
	for _, c := range all {
		first, last := c.Deliveries[0].Position, c.Deliveries[len(c.Deliveries)-1].Position
		require.Equal(t, b.Machine.CompactionID(e.ChannelIndex, e.EmitterIndex, first, last), c.ID)
	}
}

// A compaction's id is of its members, whatever of them is resolved, whoever asks and however often (I6, P6).
func TestACompactionKeepsItsIDAndLosesOnlyWhatIsResolved(t *testing.T) {
	b := testbed.New(t)
	b.Put(orders(cutting(4)))
	e := owned(b)
	for i := range 8 {
		b.Send("orders", fmt.Sprint(i))
	}
	before := walk(t, sourceOf(b, 1<<20), 0)
	require.Len(t, before, 2)
	require.Equal(t, command.OK, b.Report(e, delivered(1, 1), delivered(3, 3), delivered(8, 8)))

	s := sourceOf(b, 1<<20)
	after := walk(t, s, 0)
	require.Len(t, after, 2)
	for i := range after {
		require.Equal(t, before[i].ID, after[i].ID)
		require.Equal(t, before[i].First, after[i].First)
		require.Equal(t, before[i].Last, after[i].Last)
	}
	seqs := func(c emit.Compaction) (out []uint64) {
		for _, d := range c.Deliveries {
			out = append(out, d.Seq)
		}
		return out
	}
	require.Equal(t, []uint64{2, 4}, seqs(after[0]), "a gap is not delivered again")
	require.Equal(t, []uint64{5, 6, 7}, seqs(after[1]))

	require.Equal(t, command.OK, b.Report(e, delivered(2, 2), delivered(4, 4)))
	again, err := s.Next(context.Background(), 0)
	require.NoError(t, err)
	require.Equal(t, before[1].ID, again.ID, "a compaction that is resolved whole is passed over")
}

// hookLog calls its hook before it reads an entry.
type hookLog struct {
	testbed.Log
	before func(index uint64)
}

func (l hookLog) GetLog(index uint64, out *raft.Log) error {
	l.before(index)
	return l.Log.GetLog(index, out)
}

// A node that restarts sends again what its log, not yet applied to its end, says was delivered. An outcome that is applied
// while a compaction is read must not leave half of it: as a file it would replace the whole one (found by the fault harness,
// check files).
func TestAnOutcomeAppliedWhileACompactionIsReadLeavesNoHalfOfIt(t *testing.T) {
	b := testbed.New(t)
	b.Put(orders(cutting(4)))
	e := owned(b)
	var third uint64
	for i := range 8 {
		if r := b.Send("orders", fmt.Sprint(i)); i == 2 {
			third = r.Index
		}
	}
	s := sourceOf(b, 1)
	applied := false
	s.reader = logread.New(hookLog{Log: b.Log, before: func(index uint64) {
		if index == third && !applied {
			applied = true
			require.Equal(t, command.OK, b.Report(e, delivered(1, 4)))
		}
	}}, b.Machine, 1)
	c, err := s.Next(context.Background(), 0)
	require.NoError(t, err)
	require.True(t, applied)
	require.Equal(t, uint64(5), c.First, "the first is resolved whole by now")
	require.Len(t, c.Deliveries, 4)
}

// A retry reads an older compaction again while the walk forward goes on where it was.
func TestARetryLooksBackWithoutDisturbingTheWalkForward(t *testing.T) {
	b := testbed.New(t)
	b.Put(orders(stdout("out")))
	owned(b)
	const events = 600 // more than are asked for at a time
	for i := range events / 3 {
		b.Send("orders", fmt.Sprint(i, "a"), fmt.Sprint(i, "b"), fmt.Sprint(i, "c"))
	}
	s := sourceOf(b, 1<<20)
	after := uint64(0)
	for after < events {
		c, err := s.Next(context.Background(), after)
		require.NoError(t, err)
		require.Equal(t, after+1, c.First, "in order, none left out")
		after = c.Last
		if after%7 == 0 {
			back := after / 2
			again, err := s.Next(context.Background(), back-1)
			require.NoError(t, err)
			require.Equal(t, back, again.First)
			require.Len(t, again.Deliveries, 1)
		}
	}
}

func TestARetryOfWhatIsResolvedGivesWhatFollows(t *testing.T) {
	b := testbed.New(t)
	b.Put(orders(stdout("out")))
	e := owned(b)
	b.Send("orders", "a", "b", "c")
	s := sourceOf(b, 1<<20)
	require.Len(t, walk(t, s, 0), 3)
	require.Equal(t, command.OK, b.Report(e, delivered(2, 2)))
	c, err := s.Next(context.Background(), 1)
	require.NoError(t, err)
	require.Equal(t, uint64(3), c.First, "the caller sees by First that it is gone")
}

func TestTheWalkForwardReadsEachEntryOnceOrTwice(t *testing.T) {
	b := testbed.New(t)
	b.Put(orders(stdout("out")))
	owned(b)
	for i := range 300 {
		b.Send("orders", fmt.Sprint(i))
	}
	log := b.Log.(*testbed.MemLog)
	before := log.Reads()
	require.Len(t, walk(t, sourceOf(b, 1), 0), 300) // nothing is cached
	require.LessOrEqual(t, log.Reads()-before, 3*300)
}

func TestNextWaitsForACompactionToBeClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := testbed.New(t)
		b.Put(orders(cutting(2)))
		owned(b)
		s := sourceOf(b, 1<<20)
		got := make(chan emit.Compaction)
		go func() {
			c, err := s.Next(context.Background(), 0)
			if err != nil {
				t.Error(err)
			}
			got <- c
		}()
		synctest.Wait()
		b.Send("orders", "a")
		synctest.Wait()
		select {
		case <-got:
			require.Fail(t, "an open compaction was given")
		default:
		}
		b.Send("orders", "b")
		require.Equal(t, uint64(2), (<-got).Last)

		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := s.Next(ctx, 2)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestPoisonKeysAndPriorAttemptsComeWithTheCompaction(t *testing.T) {
	b := testbed.New(t)
	c := orders(stdout("out"))
	c.Order = spec.OrderKey
	b.Put(c)
	e := owned(b)
	ch, _ := b.Machine.Channel("orders")
	good, bad := testbed.Event("a"), testbed.Event("b")
	good.Subject = "key"
	body, err := event.EncodeBatch(nil, event.BatchHeader{ChannelIndex: ch.Index, SpecVersion: ch.Version}, event.HashKey{1},
		[]event.Event{good, bad}, []bool{false, true})
	require.NoError(t, err)
	b.Commit(command.Batch{Body: body})
	at := time.Date(2026, 5, 1, 0, 0, 0, 7, time.UTC)
	for i := range 2 {
		require.Equal(t, command.OK, b.Report(e, command.Outcome{
			First: 1, Last: 1, Kind: command.Failed, Attempts: 1, At: at.Add(time.Duration(i) * time.Second).UnixNano(),
			Class: command.ClassAuth, Status: 401, Reason: "no",
		}))
	}
	all := walk(t, sourceOf(b, 1<<20), 0)
	require.Len(t, all, 2)
	require.NotZero(t, all[0].Deliveries[0].OrderKey)
	require.False(t, all[0].Deliveries[0].Poison)
	require.Equal(t, emit.Prior{
		Attempts: 2, FirstFailed: at, LastFailed: at.Add(time.Second), Class: emit.ClassAuth, Status: 401,
	}, all[0].Prior)
	require.True(t, all[1].Deliveries[0].Poison)
	require.Zero(t, all[1].Deliveries[0].OrderKey)
	require.Zero(t, all[1].Prior)
}

// If the log showed less than the state machine counted, an id made of what is there would be another one (I6).
func TestAShortLogGivesAnErrorAndNoCompaction(t *testing.T) {
	b := testbed.New(t)
	b.Put(orders(cutting(3)))
	owned(b)
	b.Send("orders", "a")
	b.Send("orders", "b")
	last := b.Send("orders", "c").Index
	empty := command.AppendEntry(nil, 1, nil)
	require.NoError(t, b.Log.StoreLogs([]*raft.Log{{Index: last, Term: 1, Type: raft.LogCommand, Data: empty}}))
	_, err := sourceOf(b, 1<<20).Next(context.Background(), 0)
	require.ErrorContains(t, err, "up to 2 only")
}
