package retention

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"penstock/event"
	"penstock/fsm"
	"penstock/fsm/command"
	"penstock/internal/spec"
	"penstock/node/internal/testbed"
	"penstock/node/logread"
	"penstock/wal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bedCluster leads, and says that the log may go up to the tip.
type bedCluster struct {
	*testbed.Bed
	follows bool
	mayGo   uint64 // 0: the tip
}

func (c *bedCluster) IsLeader() bool { return !c.follows }

func (c *bedCluster) LogMayGo() uint64 {
	if c.mayGo > 0 {
		return c.mayGo
	}
	applied, _ := c.Machine.Applied()
	return applied + 1
}

// bedLog is a log of a size that the test says.
type bedLog struct {
	*testbed.Bed
	stats wal.Stats
}

func (l *bedLog) Stats() wal.Stats {
	l.stats.First, _ = l.Log.FirstIndex()
	l.stats.Last, _ = l.Log.LastIndex()
	return l.stats
}

func keeperOn(b *testbed.Bed) (*Keeper, *bedCluster, *bedLog) {
	c, l := &bedCluster{Bed: b}, &bedLog{Bed: b, stats: wal.Stats{RetainedBytes: 1 << 20}}
	return &Keeper{
		Machine: b.Machine, Reader: logread.New(b.Log, b.Machine, 1<<20), Cluster: c, Log: l, SegmentBytes: 4 << 10, Logger: slog.New(slog.DiscardHandler),
	}, c, l
}

func channel(name string, keep time.Duration, events int) spec.Channel {
	return spec.Channel{
		Name: name, Semantics: spec.AtLeastOnce, Order: spec.OrderNone, Retention: spec.Retention{Keep: spec.Duration(keep)},
		Emitters: []spec.Emitter{{
			Name: "out", Kind: spec.KindStdout, Stdout: &spec.Stdout{},
			Compaction: spec.Compaction{Events: events, Linger: spec.Duration(time.Minute)},
		}},
	}
}

// shown is what tail shows of a channel from its beginning: "id@position".
func shown(t *testing.T, b *testbed.Bed, channelIndex uint64) (all []string) {
	t.Helper()
	applied, _ := b.Machine.Applied()
	r := logread.New(b.Log, b.Machine, 1<<20)
	_, err := r.Resume(context.Background(), channelIndex, event.Position{}, applied, func(it logread.Item) bool {
		e, err := it.Batch.Event(it.I)
		require.NoError(t, err)
		all = append(all, e.ID+"@"+it.Position().String())
		return true
	})
	require.NoError(t, err)
	return all
}

// traffic is other events, all delivered at once, so that what came before is little.
func traffic(t *testing.T, b *testbed.Bed, n int) {
	t.Helper()
	e := b.Emitter("busy", "out")
	if e.Owner == "" {
		e = b.Own(e, "n1")
	}
	for i := range n {
		ids := make([]string, 100)
		for j := range ids {
			ids[j] = fmt.Sprintf("busy-%d-%d-%d", e.NextSeq, i, j)
		}
		b.Send("busy", ids...)
	}
	e = b.Emitter("busy", "out")
	require.Equal(t, command.OK, b.Report(e, command.Outcome{First: e.LowWater + 1, Last: e.NextSeq - 1, Kind: command.Delivered}))
	b.Advance(2 * time.Second) // the horizon moves up
	b.Commit(command.Tick{})
}

// TestStuckEventsAndDeadLettersAreCarriedAndShownOnce: the log behind them goes, and everything that reads them does not notice:
// tail, the compactions, their ids, dead letters, explain's look-up by position, numbering; also when they are carried again.
func TestStuckEventsAndDeadLettersAreCarriedAndShownOnce(t *testing.T) {
	b, log := testbed.NewOnWAL(t)
	b.Put(channel("busy", 1, 1))
	stuck := b.Put(channel("stuck", 1, 3))
	e := b.Own(b.Emitter("stuck", "out"), "n1")
	var at []event.Position
	for i := range 20 { // a repeated id in each entry: ordinals have gaps
		res := b.Send("stuck", fmt.Sprint("a", i), fmt.Sprint("a", i), fmt.Sprint("b", i))
		at = append(at, event.Position{Index: res.Index}, event.Position{Index: res.Index, Ordinal: 2})
	}
	require.Equal(t, command.OK, b.Report(e,
		command.Outcome{First: 4, Last: 6, Kind: command.Dead, Positions: at[3:6]}, command.Outcome{First: 7, Last: 9, Kind: command.Delivered}))
	before := shown(t, b, stuck.Index)
	require.Len(t, before, 40)
	ids := compactions(t, b, e, at)

	k, c, _ := keeperOn(b)
	for round := range 3 {
		traffic(t, b, 30)
		require.NoError(t, k.Round(context.Background()))
		require.NoError(t, k.Round(context.Background()))
		b.Advance(2 * time.Second)
		b.Commit(command.Tick{})
		require.Greater(t, b.Machine.Floor(), at[39].Index, "round %d: nothing needed lies where it was committed", round)
		require.EqualValues(t, 37, b.Machine.CarriedTotal().Events, "7 to 9 are delivered")
		require.NoError(t, log.DeleteRange(1, b.Machine.Horizon()-1))
		log.SetFloor(b.Machine.Horizon())
		first, err := log.FirstIndex()
		require.NoError(t, err)
		require.Greater(t, first, at[39].Index)

		want := append(append([]string{}, before[:6]...), before[9:]...)
		require.Equal(t, want, shown(t, b, stuck.Index))
		require.Equal(t, ids, compactions(t, b, e, at))
		checkPages(t, b, stuck.Index, want)
	}
	for i, p := range at {
		it, err := k.Reader.At(stuck.Index, p)
		if i >= 6 && i < 9 {
			var gone *logread.GoneError
			require.ErrorAs(t, err, &gone)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, p, it.Position())
		require.NotZero(t, it.Batch.StampOf(it.I))
	}
	_, err := k.Reader.Scan(context.Background(), stuck.Index, at[7], 1<<40, func(logread.Item) bool { return true })
	var gone *logread.GoneError
	require.ErrorAs(t, err, &gone, "a reader that was at what is gone is told so, and not shown what is left")

	// A follower carries nothing; delivered, all of it goes.
	c.follows = true
	traffic(t, b, 30)
	floor := b.Machine.Floor()
	require.NoError(t, k.Round(context.Background()))
	require.Equal(t, floor, b.Machine.Floor())
	require.Equal(t, command.OK, b.Report(e, command.Outcome{First: 1, Last: 3, Kind: command.Delivered}, command.Outcome{First: 10, Last: 39, Kind: command.Delivered}))
	c.follows = false
	traffic(t, b, 30)
	require.NoError(t, k.Round(context.Background()))
	require.EqualValues(t, 4, b.Machine.CarriedTotal().Events, "three dead letters, and the open run")
	require.Equal(t, append(append([]string{}, before[3:6]...), before[39]), shown(t, b, stuck.Index))
}

// compactions are id and members of every pending compaction, read as the emitter does.
func compactions(t *testing.T, b *testbed.Bed, e fsm.EmitterInfo, at []event.Position) (all []string) {
	t.Helper()
	r := logread.New(b.Log, b.Machine, 1<<20)
	applied, _ := b.Machine.Applied()
	for _, run := range b.Machine.Runs(e.ChannelIndex, e.EmitterIndex, 0, 100) {
		text, last := "", event.Position{}
		err := r.Numbered(context.Background(), e.ChannelIndex, run.First, applied, nil, func(n logread.Numbered) bool {
			ev, err := n.Batch.Event(n.I)
			require.NoError(t, err)
			require.Equal(t, at[n.Seq-1], n.Position())
			text, last = text+" "+ev.ID, n.Position()
			return n.Seq < run.Last
		})
		require.NoError(t, err)
		require.Equal(t, at[run.Last-1], last)
		all = append(all, b.Machine.CompactionID(e.ChannelIndex, e.EmitterIndex, at[run.First-1], last)+text)
	}
	return all
}

// checkPages reads page by page, from where the page before ended: each event once, whatever the size of a page.
func checkPages(t *testing.T, b *testbed.Bed, channelIndex uint64, want []string) {
	t.Helper()
	r := logread.New(b.Log, b.Machine, 1<<20)
	applied, _ := b.Machine.Applied()
	for _, size := range []int{1, 2, 7, 100} {
		var got []string
		next, scan := event.Position{}, r.Resume
		for next.Index <= applied {
			left, before := size, next
			var err error
			next, err = scan(context.Background(), channelIndex, next, applied, func(it logread.Item) bool {
				e, err := it.Batch.Event(it.I)
				require.NoError(t, err)
				got = append(got, e.ID+"@"+it.Position().String())
				left--
				return left > 0
			})
			require.NoError(t, err)
			require.Positive(t, next.Compare(before))
			scan = r.Scan
		}
		require.Equal(t, want, got, "pages of %d", size)
	}
}

func TestNothingIsCarriedThatIsNotWorthIt(t *testing.T) {
	b := testbed.New(t)
	b.Put(channel("busy", 1, 1))
	b.Put(channel("stuck", 1, 1))
	k, _, l := keeperOn(b)
	for i := range 30 {
		b.Send("stuck", fmt.Sprint("s", i))
	}
	l.stats.RetainedBytes = 100 << 10
	require.NoError(t, k.Round(context.Background()))
	require.Zero(t, b.Machine.CarriedTotal().Events, "all of the log is needed")
	traffic(t, b, 1)
	l.stats.RetainedBytes = 3 << 10
	require.NoError(t, k.Round(context.Background()))
	require.Zero(t, b.Machine.CarriedTotal().Events, "less than a segment would go")
	l.stats.RetainedBytes = 100 << 10
	require.NoError(t, k.Round(context.Background()))
	require.EqualValues(t, 30, b.Machine.CarriedTotal().Events)
}

// What may be carried in a second is bounded; what does not fit goes in the next.
func TestCarryKeepsToItsShare(t *testing.T) {
	b := testbed.New(t)
	b.Put(channel("busy", 1, 1))
	b.Put(channel("stuck", 1, 1))
	large := testbed.Event("large")
	large.Data, large.DataKind = make([]byte, 700<<10), event.DataBinary
	for i := range 6 {
		large.ID = fmt.Sprint("large", i)
		b.Commit(b.BatchOf("stuck", large))
	}
	for range 30 {
		traffic(t, b, 30)
	}
	k, _, l := keeperOn(b)
	l.stats.RetainedBytes = 1 << 30
	require.NoError(t, k.Round(context.Background()))
	carried := b.Machine.CarriedTotal().Events
	require.Positive(t, carried)
	require.Less(t, carried, uint64(6), "one second's share")
	for range 10 {
		require.NoError(t, k.Round(context.Background()))
	}
	require.EqualValues(t, 6, b.Machine.CarriedTotal().Events)
}

// Short of room, kept events go, oldest first and no more than half at a time; what is needed stays. Then a snapshot is taken,
// behind which log may go.
func TestKeptEventsYieldFirst(t *testing.T) {
	b := testbed.New(t)
	b.Put(channel("busy", time.Hour, 1))
	traffic(t, b, 50)
	k, c, l := keeperOn(b)
	l.stats.MaxBytes = 1 << 20
	l.stats.RetainedBytes = 700 << 10
	require.NoError(t, k.Round(context.Background()))
	require.LessOrEqual(t, b.Machine.Horizon(), uint64(5), "there is room")
	l.stats.RetainedBytes = 800 << 10
	c.mayGo = 2
	c.follows = true // each node looks after its own log
	require.NoError(t, k.Round(context.Background()))
	applied, _ := b.Machine.Applied()
	require.InDelta(t, applied/2, b.Machine.Horizon(), 2)
	require.Equal(t, []string{"snapshot "}, b.Acts())
	require.NoError(t, k.Round(context.Background()))
	require.InDelta(t, applied/2, b.Machine.Horizon(), 2, "what yielded gets the time to go")
	require.Len(t, b.Acts(), 1)
	l.stats.RetainedBytes, l.stats.LowWater, k.yieldedAt = 1, true, time.Time{}
	b.Put(channel("stuck", 1, 1))
	b.Send("stuck", "s")
	require.NoError(t, b.Log.(*testbed.MemLog).StoreLogs(nil))
	b.Log.(*testbed.MemLog).DropBefore(b.Machine.Horizon())
	require.NoError(t, k.Round(context.Background()))
	require.Greater(t, b.Machine.Horizon(), applied/2, "a disk that is nearly full is short of room too")
	require.LessOrEqual(t, b.Machine.Horizon(), b.Machine.Floor())
}
