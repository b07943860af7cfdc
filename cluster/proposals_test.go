package cluster

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// fakeFuture is an entry on its way through Raft.
type fakeFuture struct {
	commands int
	data     []byte
	done     chan error
	response any
}

func (f *fakeFuture) Error() error  { return <-f.done }
func (f *fakeFuture) Response() any { return f.response }
func (f *fakeFuture) Index() uint64 { return 1 }

func (f *fakeFuture) commit() {
	results := make([][]byte, f.commands)
	for i := range results {
		results[i] = fmt.Appendf(nil, "%s/%d", f.data, i)
	}
	f.response = results
	f.done <- nil
}

// fakeRaft hands out futures in order.
func fakeGatherer(target int) (*gatherer, chan *fakeFuture) {
	futures := make(chan *fakeFuture, 100)
	sizes := make(chan int, 100)
	entry := 0
	g := newGatherer(target, func(c [][]byte) []byte {
		sizes <- len(c)
		entry++
		return fmt.Appendf(nil, "entry%d", entry)
	}, func(data []byte, _ time.Duration) raft.ApplyFuture {
		f := &fakeFuture{commands: <-sizes, data: data, done: make(chan error, 1)}
		futures <- f
		return f
	})
	return g, futures
}

func TestIdleLeaderSendsAtOnceAndABusyOneGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, futures := fakeGatherer(1000)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go g.run(ctx, notCommitted(ReasonNoLeader, nil))
		results := make(chan string, 100)
		propose := func() {
			go func() {
				r, err := g.propose(t.Context(), make([]byte, 10), func() {})
				require.Nil(t, err)
				results <- string(r)
			}()
			synctest.Wait()
		}
		for i := range entriesAtWork { // each goes out without any wait
			propose()
			require.Len(t, futures, i+1)
		}
		for range 5 { // then they gather
			propose()
		}
		require.Len(t, futures, entriesAtWork)
		first := <-futures
		first.commit()
		synctest.Wait()
		require.Equal(t, "entry1/0", <-results)
		for range entriesAtWork - 1 {
			f := <-futures
			require.Equal(t, 1, f.commands)
			f.commit()
			synctest.Wait()
			<-results
		}
		gathered := <-futures
		require.Equal(t, 5, gathered.commands, "what waited goes as one entry")
		gathered.commit()
		synctest.Wait()
		seen := map[string]bool{}
		for range 5 {
			seen[<-results] = true
		}
		for i := range 5 {
			require.True(t, seen[fmt.Sprintf("entry4/%d", i)], "each has its own result")
		}
	})
}

func TestFullEntriesDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, futures := fakeGatherer(100)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go g.run(ctx, notCommitted(ReasonNoLeader, nil))
		for range entriesAtWork + 20 {
			go g.propose(ctx, make([]byte, 100), func() {})
			synctest.Wait()
		}
		require.Len(t, futures, entriesAtWork+20)
		for range entriesAtWork + 20 {
			(<-futures).commit()
		}
	})
}

func TestDeadlineBeforeApplyIsCertainAndAfterItIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, futures := fakeGatherer(1000)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go g.run(ctx, notCommitted(ReasonNoLeader, nil))
		var left atomic.Int32
		propose := func(d time.Duration) chan *ProposeError {
			out := make(chan *ProposeError, 1)
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), d)
				defer cancel()
				_, err := g.propose(ctx, []byte("x"), func() { left.Add(1) })
				out <- err
			}()
			synctest.Wait()
			return out
		}
		var taken []chan *ProposeError
		for range entriesAtWork {
			taken = append(taken, propose(time.Second))
		}
		waiting := propose(time.Second)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		for _, ch := range taken {
			err := <-ch
			require.Equal(t, Unknown, err.Outcome)
			require.Equal(t, ReasonDeadline, err.Reason)
		}
		err := <-waiting
		require.Equal(t, NotCommitted, err.Outcome)
		require.Equal(t, ReasonDeadline, err.Reason)
		require.Zero(t, left.Load(), "what Raft may still hold counts as in flight")
		for range entriesAtWork {
			(<-futures).commit()
		}
		synctest.Wait()
		require.EqualValues(t, entriesAtWork+1, left.Load(), "and is given back once")
		require.Empty(t, futures, "the dropped one never reached Raft")
	})
}

func TestEndOfTenureIsCertainForWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, futures := fakeGatherer(1000)
		ctx, cancel := context.WithCancel(t.Context())
		go g.run(ctx, notCommitted(ReasonNoLeader, nil))
		out := make(chan *ProposeError, 100)
		for range entriesAtWork + 2 {
			go func() {
				_, err := g.propose(t.Context(), []byte("x"), func() {})
				out <- err
			}()
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		for range 2 {
			err := <-out
			require.Equal(t, NotCommitted, err.Outcome)
			require.True(t, err.again())
		}
		for range entriesAtWork {
			(<-futures).done <- raft.ErrLeadershipLost
			require.Equal(t, Unknown, (<-out).Outcome)
		}
		_, err := g.propose(t.Context(), []byte("late"), func() {})
		require.Equal(t, NotCommitted, err.Outcome)
		require.True(t, g.idle())
	})
}

func TestAdmissionIsBoundedInBytes(t *testing.T) {
	a := admission{limit: 100}
	require.True(t, a.enter(60))
	require.False(t, a.enter(60))
	require.True(t, a.enter(40))
	a.leave(60)
	require.True(t, a.enter(60))
}
