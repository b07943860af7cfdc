package logread

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/event"
	"penstock/fsm/command"
	"penstock/internal/spec"
	"penstock/node/internal/testbed"
)

const cacheBytes = 1 << 20

func channel(name string) spec.Channel {
	return spec.Channel{Name: name, Semantics: spec.AtLeastOnce, Order: spec.OrderNone, Retention: spec.Retention{Keep: spec.Duration(time.Minute)}}
}

// shown is what a scan of the channel shows: "id@position" each, and where to go on.
func shown(t *testing.T, r *Reader, channelIndex uint64, from event.Position, to uint64) (all []string, next event.Position) {
	t.Helper()
	next, err := r.Scan(context.Background(), channelIndex, from, to, func(it Item) bool {
		e, err := it.Batch.Event(it.I)
		require.NoError(t, err)
		all = append(all, e.ID+"@"+it.Position().String())
		return true
	})
	require.NoError(t, err)
	return all, next
}

func TestScanShowsWhatTheStateMachineAcceptedAndNothingElse(t *testing.T) {
	b, _ := testbed.NewOnWAL(t)
	c, other := b.Put(channel("orders")), b.Put(channel("other"))
	stale := b.Batch("orders", "stale-1", "stale-2")
	changed := channel("orders")
	changed.Retention.Keep = spec.Duration(2 * time.Minute)
	b.Put(changed)

	// One entry with four batches: two events, one of another channel, one refused whole, one with a repeated id.
	index, results := b.Commit(b.Batch("orders", "a", "b"), b.Batch("other", "x"), stale, b.Batch("orders", "c", "a", "d"))
	refused, err := command.DecodeBatchResult(results[2])
	require.NoError(t, err)
	require.Equal(t, command.StaleSpec, refused.Status)
	last := b.Send("orders", "b", "e").Index // b again

	r := New(b.Log, b.Machine, cacheBytes)
	for range 2 { // from the log, then from the cache
		all, next := shown(t, r, c.Index, event.Position{Index: 1}, last)
		require.Equal(t, []string{
			fmt.Sprintf("a@%d.0", index), fmt.Sprintf("b@%d.1", index),
			fmt.Sprintf("c@%d.5", index), fmt.Sprintf("d@%d.7", index), fmt.Sprintf("e@%d.1", last),
		}, all, "ordinals count through every batch of the entry, rejected events included")
		require.Equal(t, event.Position{Index: last + 1}, next)
	}
	all, _ := shown(t, r, other.Index, event.Position{Index: 1}, last)
	require.Equal(t, []string{fmt.Sprintf("x@%d.2", index)}, all)

	e, err := r.Entry(index)
	require.NoError(t, err)
	require.Len(t, e.Commands, 4)
	require.Len(t, e.Batches, 4)
	require.True(t, e.Batches[2].Refused)
	var counts []int
	for _, batch := range e.Batches {
		counts = append(counts, batch.AcceptedCount())
	}
	require.Equal(t, []int{2, 1, 0, 2}, counts)
	require.NotZero(t, e.Stamp)
}

func TestWalkNumbersAcceptedEventsOnly(t *testing.T) {
	b := testbed.New(t)
	c := b.Put(channel("orders"))
	b.Send("orders", "a", "b")
	index, _ := b.Commit(b.Batch("orders", "a"), b.Batch("orders", "c", "b", "d"))
	b.Noop()
	last := b.Send("orders", "e").Index

	r := New(b.Log, b.Machine, cacheBytes)
	var got []string
	walk := func(upTo int) {
		got = nil
		err := r.Walk(context.Background(), c.Index, index, 3, last, func(n Numbered) bool {
			e, err := n.Batch.Event(n.I)
			require.NoError(t, err)
			got = append(got, fmt.Sprintf("%d %s", n.Seq, e.ID))
			return len(got) < upTo
		})
		require.NoError(t, err)
	}
	walk(100)
	require.Equal(t, []string{"3 c", "4 d", "5 e"}, got)
	info, _ := b.Machine.Channel("orders")
	require.Equal(t, uint64(5), info.Seq, "the numbers are those of the state machine")
	walk(2)
	require.Equal(t, []string{"3 c", "4 d"}, got, "it stops when told to")
}

func TestScanGoesOnExactlyBehindWhereItStopped(t *testing.T) {
	b := testbed.New(t)
	c := b.Put(channel("orders"))
	var want []string
	var last uint64
	for i := range 5 {
		ids := []string{fmt.Sprint(i, "-0"), fmt.Sprint(i, "-1"), fmt.Sprint(i, "-2")}
		want = append(want, ids...)
		last, _ = b.Commit(b.Batch("orders", ids[:1]...), b.Batch("orders", ids[1:]...))
	}
	r := New(b.Log, b.Machine, cacheBytes)
	for step := 1; step <= len(want); step++ {
		var got []string
		next := event.Position{Index: 1}
		for next.Index <= last {
			n := 0
			at, err := r.Scan(context.Background(), c.Index, next, last, func(it Item) bool {
				e, err := it.Batch.Event(it.I)
				require.NoError(t, err)
				got = append(got, e.ID)
				n++
				return n < step
			})
			require.NoError(t, err)
			require.Positive(t, at.Compare(next), "every call comes further")
			next = at
		}
		require.Equal(t, want, got, "in steps of %d", step)
	}
}

func TestScanNeverGoesBackward(t *testing.T) {
	b := testbed.New(t)
	c := b.Put(channel("orders"))
	last := b.Send("orders", "a").Index
	r := New(b.Log, b.Machine, cacheBytes)

	ahead := event.Position{Index: last + 10, Ordinal: 3}
	_, next := shown(t, r, c.Index, ahead, last)
	require.Equal(t, ahead, next, "a position that is not there yet stays as it is")

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	inside := event.Position{Index: last, Ordinal: 1}
	next, err := r.Scan(ctx, c.Index, inside, last, func(Item) bool { return true })
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, inside, next)
}

func TestBelowTheHorizonEverythingIsGoneWhateverTheLogHolds(t *testing.T) {
	b, log := testbed.NewOnWAL(t)
	c := b.Put(channel("orders"))
	r := New(b.Log, b.Machine, cacheBytes)
	first := b.Send("orders", "a", "b").Index
	b.Send("orders", "a")
	_, err := r.Entry(first) // now cached
	require.NoError(t, err)

	b.Advance(time.Hour)
	b.Send("orders", "c")
	b.Commit(command.Tick{})
	horizon := b.Machine.Horizon()
	require.Greater(t, horizon, first)
	stored, err := log.FirstIndex()
	require.NoError(t, err)
	require.LessOrEqual(t, stored, first, "the log still holds it")

	var gone *GoneError
	_, err = r.Entry(first)
	require.ErrorAs(t, err, &gone)
	require.Equal(t, GoneError{Index: first, First: horizon}, *gone)
	require.Contains(t, gone.Error(), "is gone")
	_, err = r.Scan(context.Background(), c.Index, event.Position{Index: first}, horizon, func(Item) bool { return true })
	require.ErrorAs(t, err, &gone)
	readable, err := r.First()
	require.NoError(t, err)
	require.Equal(t, horizon, readable)
}

func TestAnEntryThatTheLogDroppedIsGone(t *testing.T) {
	b := testbed.New(t)
	b.Put(channel("orders"))
	last := b.Send("orders", "a").Index
	b.Log.(*testbed.MemLog).DropBefore(last)
	_, err := New(b.Log, b.Machine, cacheBytes).Entry(last - 1)
	var gone *GoneError
	require.ErrorAs(t, err, &gone)
	require.Equal(t, last, gone.First)
}

func TestNothingAboveTheAppliedIndexIsRead(t *testing.T) {
	b := testbed.New(t)
	b.Put(channel("orders"))
	last := b.Send("orders", "a").Index
	b.Noop() // in the log, not applied
	log := b.Log.(*testbed.MemLog)
	before := log.Reads()
	_, err := New(b.Log, b.Machine, cacheBytes).Entry(last + 1)
	require.ErrorContains(t, err, "above the applied index")
	require.Equal(t, before, log.Reads())
}

func TestAReadErrorIsNeverTakenForGone(t *testing.T) {
	b := testbed.New(t)
	c := b.Put(channel("orders"))
	last := b.Send("orders", "a").Index
	broken := errors.New("the disk is broken")
	b.Log.(*testbed.MemLog).BeforeRead = func(uint64) error { return broken }
	r := New(b.Log, b.Machine, cacheBytes)
	next, err := r.Scan(context.Background(), c.Index, event.Position{Index: last}, last, func(Item) bool { return true })
	require.ErrorIs(t, err, broken)
	var gone *GoneError
	require.False(t, errors.As(err, &gone))
	require.Equal(t, event.Position{Index: last}, next)
}

func TestCacheStaysWithinItsBound(t *testing.T) {
	b := testbed.New(t)
	b.Put(channel("orders"))
	var indexes []uint64
	for i := range 40 {
		e := testbed.Event(fmt.Sprint(i))
		e.Data = []byte(`"` + strings.Repeat("x", 1000) + `"`)
		index, _ := b.Commit(b.BatchOf("orders", e))
		indexes = append(indexes, index)
	}
	r := New(b.Log, b.Machine, 20_000)
	log := b.Log.(*testbed.MemLog)
	for _, index := range indexes {
		_, err := r.Entry(index)
		require.NoError(t, err)
	}
	require.LessOrEqual(t, r.cache.mu.size, int64(20_000))
	require.Len(t, r.cache.mu.byIdx, r.cache.mu.order.Len())
	require.Less(t, len(r.cache.mu.byIdx), len(indexes))
	reads := log.Reads()
	_, err := r.Entry(indexes[len(indexes)-1])
	require.NoError(t, err)
	require.Equal(t, reads, log.Reads(), "the newest is still cached")
	_, err = r.Entry(indexes[0])
	require.NoError(t, err)
	require.Equal(t, reads+1, log.Reads(), "the oldest was dropped")

	tiny := New(b.Log, b.Machine, 10)
	_, err = tiny.Entry(indexes[0])
	require.NoError(t, err)
	require.Zero(t, tiny.cache.mu.size, "what is larger than the cache is not kept")
}

// A batch of many small events takes far more memory than its bytes: the cache counts that.
func TestCacheCountsTheEventsAndNotOnlyTheirBytes(t *testing.T) {
	b := testbed.New(t)
	b.Put(channel("orders"))
	events := make([]event.Event, 1000)
	for i := range events {
		events[i] = event.Event{ID: fmt.Sprint(i), Source: "s", Type: "t"}
	}
	index, _ := b.Commit(b.BatchOf("orders", events...))
	e, err := New(b.Log, b.Machine, cacheBytes).Entry(index)
	require.NoError(t, err)
	require.GreaterOrEqual(t, e.size, 1000*eventOverhead+2*int64(e.Batches[0].PayloadBytes()))
}

func TestReadersShareTheCache(t *testing.T) {
	b := testbed.New(t)
	c := b.Put(channel("orders"))
	var last uint64
	for i := range 20 {
		last = b.Send("orders", fmt.Sprint(i), fmt.Sprint(i)).Index
	}
	r := New(b.Log, b.Machine, 4000)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			n := 0
			_, err := r.Scan(context.Background(), c.Index, event.Position{Index: 1}, last, func(it Item) bool {
				if _, err := it.Batch.Event(it.I); err == nil {
					n++
				}
				return true
			})
			if err != nil || n != 20 {
				t.Errorf("%d events, %v", n, err)
			}
		})
	}
	wg.Wait()
}
