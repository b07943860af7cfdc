package emit

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/spec"
)

func TestFailingKeyBlocksOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		down := true
		w.deliver = func(_ context.Context, c *Compaction) Result {
			w.mu.Lock()
			defer w.mu.Unlock()
			if down && c.Deliveries[0].OrderKey == 1 {
				return transient()
			}
			return Result{OK: true}
		}
		cfg := config()
		cfg.Order = spec.OrderKey
		for i := range 30 {
			w.add(1, uint64(i%3)+1)
		}
		stop := w.start(cfg)
		time.Sleep(20 * time.Second)
		for seq := uint64(1); seq <= 30; seq++ {
			if seq%3 == 1 {
				require.Zero(t, w.kind(seq), "seq %d waits behind its key", seq)
				continue
			}
			require.Equal(t, Delivered, w.kind(seq), "seq %d", seq)
		}
		require.Len(t, w.sent("c4"), 0)
		w.set(func() { down = false })
		time.Sleep(time.Minute)
		noError(t, stop)
		require.Equal(t, Delivered, w.kind(28))
	})
}

func TestEventsWithoutAKeyAreBoundToNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = func(_ context.Context, c *Compaction) Result {
			if c.First == 1 {
				return transient()
			}
			return Result{OK: true}
		}
		cfg := config()
		cfg.Order = spec.OrderKey
		w.add(1)
		w.add(1)
		stop := w.start(cfg)
		time.Sleep(time.Second)
		noError(t, stop)
		require.Equal(t, Delivered, w.kind(2))
	})
}

func TestCompactionOfSeveralKeysWaitsForAllOfThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = func(_ context.Context, c *Compaction) Result {
			time.Sleep(time.Second)
			return Result{OK: true}
		}
		cfg := config()
		cfg.Order = spec.OrderKey
		w.add(2, 1, 2) // c1
		w.add(1, 3)    // c3
		w.add(2, 2, 3) // c4: behind c1 and c3
		w.add(1, 1)    // c6: behind c1
		w.add(1, 3)    // c7: behind c4
		stop := w.start(cfg)
		time.Sleep(10 * time.Second)
		noError(t, stop)
		starts := map[string]int{}
		for _, s := range w.sends {
			starts[s.id] = int(s.at.Round(time.Second) / time.Second)
		}
		require.Equal(t, map[string]int{"c1": 0, "c3": 0, "c4": 1, "c6": 1, "c7": 2}, starts)
	})
}

func TestB13NoInversionUnderRetryInOrderedModes(t *testing.T) {
	for _, order := range []spec.Order{spec.OrderTotal, spec.OrderKey} {
		for _, concurrency := range []int{1, 16} {
			t.Run(fmt.Sprint(order, concurrency), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					failed := map[string]bool{}
					w.deliver = func(_ context.Context, c *Compaction) Result {
						w.mu.Lock()
						defer w.mu.Unlock()
						if c.First%50 == 0 && !failed[c.ID] {
							failed[c.ID] = true
							return transient()
						}
						return Result{OK: true}
					}
					cfg := config()
					cfg.Order, cfg.Emitter.Concurrency = order, concurrency
					for i := range 1000 {
						w.add(1, uint64(i%7)+1)
					}
					stop := w.start(cfg)
					time.Sleep(5 * time.Minute)
					noError(t, stop)
					last := map[uint64]uint64{}
					for _, s := range w.sends {
						lane := uint64(0)
						if order == spec.OrderKey {
							lane = (s.seqs[0] - 1) % 7
						}
						require.GreaterOrEqual(t, s.seqs[0], last[lane], "inversion in lane %d", lane)
						last[lane] = s.seqs[0]
					}
					require.Equal(t, Delivered, w.kind(1000))
				})
			})
		}
	}
}

func TestKeyIsSkippedOnlyAfterItsDeadLetterIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = func(_ context.Context, c *Compaction) Result {
			if c.First == 1 {
				return Result{Class: ClassPermanent, Status: 400}
			}
			return Result{OK: true}
		}
		cfg := config()
		cfg.Order, cfg.OnKeyFailure = spec.OrderKey, "skip"
		w.add(1, 5)
		w.add(1, 5)
		stop := w.start(cfg)
		time.Sleep(time.Second)
		noError(t, stop)
		require.Equal(t, []string{"send c1", "fsync 1", "dead 1-1", "send c2", "delivered 2-2"}, w.events())
	})
}

func TestParkedKeyWaitsAtTheSlowestPaceAndGoesOnWhenMended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = result(Result{Class: ClassPermanent, Status: 404})
		cfg := config()
		cfg.Order, cfg.OnKeyFailure = spec.OrderKey, "park"
		w.add(1, 5)
		w.add(1, 5)
		stop := w.start(cfg)
		time.Sleep(10*time.Minute + time.Second)
		require.Len(t, w.sent("c1"), 11, "once a backoff.max")
		require.Empty(t, w.sent("c2"))
		w.set(func() {
			require.Empty(t, w.letters)
			w.deliver = result(Result{OK: true})
		})
		time.Sleep(2 * time.Minute)
		noError(t, stop)
		require.Equal(t, Delivered, w.kind(2))
	})
}

func TestOrderHoldsThroughCrashesOfTheOwner(t *testing.T) {
	// A Run is cut off again and again; what was sent and not committed is sent again. First arrivals stay in order.
	synctest.Test(t, func(t *testing.T) {
		rng := newDice(1, 2)
		w := newWorld(t)
		w.deliver = func(_ context.Context, c *Compaction) Result {
			w.mu.Lock()
			fail := rng.roll(4) == 0
			pause := time.Duration(rng.roll(50)) * time.Millisecond
			w.mu.Unlock()
			time.Sleep(pause)
			if fail {
				return transient()
			}
			return Result{OK: true}
		}
		cfg := config()
		cfg.Order, cfg.OnKeyFailure = spec.OrderKey, "skip"
		cfg.Emitter.Retry.MaxAttempts = 3
		cfg.Grace = time.Millisecond
		for i := range 120 {
			w.add(1, uint64(i%4)+1)
		}
		for range 30 {
			w.set(func() { w.propose = nil })
			stop := w.start(cfg)
			time.Sleep(time.Duration(rng.roll(3000)) * time.Millisecond)
			w.set(func() { w.propose = func([]Outcome) error { return ErrStaleEpoch } }) // nothing more is committed: a crash
			time.Sleep(time.Duration(rng.roll(200)) * time.Millisecond)
			_ = stop()
		}
		w.set(func() { w.propose = nil })
		stop := w.start(cfg)
		time.Sleep(time.Hour)
		noError(t, stop)
		last := map[uint64]uint64{}
		for _, id := range firstArrivals(w.order()) {
			var seq uint64
			_, err := fmt.Sscanf(id, "c%d", &seq)
			require.NoError(t, err)
			key := (seq - 1) % 4
			require.Greater(t, seq, last[key], "first arrival of %s out of order", id)
			last[key] = seq
		}
		for seq := uint64(1); seq <= 120; seq++ {
			require.True(t, w.kind(seq) == Delivered || w.kind(seq) == Dead)
		}
	})
}
