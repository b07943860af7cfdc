package emit

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// on_unresolved: dead_letter. With the destination down the oldest become dead letters until no more is undelivered than is allowed;
// what is left waits as it did, and is delivered once the destination is back.
func TestTooMuchUndeliveredBecomesDeadLettersOldestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var down atomic.Bool
		down.Store(true)
		w.deliver = func(_ context.Context, _ *Compaction) Result {
			if down.Load() {
				return transient()
			}
			return Result{OK: true, Status: 200}
		}
		for range 400 {
			w.add(1)
		}
		cfg := config()
		cfg.MemoryBytes = 4096 // so that most are read again before they are written
		cfg.Overfull = func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return 400-len(w.resolved) > 100
		}
		stop := w.start(cfg)
		time.Sleep(time.Minute)
		synctest.Wait()
		w.mu.Lock()
		dead := len(w.letters)
		oldest := uint64(0)
		for _, l := range w.letters {
			require.Equal(t, causeBacklog, l.Cause)
			require.Equal(t, ClassTransient, l.Class)
			require.NotEmpty(t, l.Reason)
			oldest = max(oldest, l.Seq)
		}
		w.mu.Unlock()
		require.GreaterOrEqual(t, dead, 300)
		require.LessOrEqual(t, dead, 300+cfg.Emitter.Concurrency+64, "no more than are under way at once")
		require.LessOrEqual(t, oldest, uint64(dead+2*cfg.Emitter.Concurrency), "about the oldest")
		down.Store(false)
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		require.NoError(t, stop())
		delivered := 0
		for _, k := range w.resolved {
			if k == Delivered {
				delivered++
			}
		}
		require.Equal(t, 400, delivered+dead)
		require.Len(t, w.letters, dead, "nothing is given up of a destination that works")
	})
}

func TestABacklogOfADestinationThatWorksIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for range 50 {
			w.add(1)
		}
		w.deliver = func(_ context.Context, c *Compaction) Result {
			time.Sleep(time.Second)
			if c.First == 1 && len(w.sent(c.ID)) == 1 {
				return transient()
			}
			return Result{OK: true, Status: 200}
		}
		cfg := config()
		cfg.Emitter.Concurrency = 1
		cfg.Overfull = func() bool { return true }
		stop := w.start(cfg)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		require.NoError(t, stop())
		require.Empty(t, w.letters)
	})
}
