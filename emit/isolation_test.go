package emit

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/spec"
)

func TestB56FailingEmitterSlowsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad, hanging, good := newWorld(t), newWorld(t), newWorld(t)
		bad.deliver = result(transient())
		hanging.deliver = func(ctx context.Context, _ *Compaction) Result {
			sleep(ctx, 14*time.Second)
			return Result{OK: ctx.Err() == nil}
		}
		worlds := []*world{bad, hanging, good}
		var stops []func() error
		for _, w := range worlds {
			stops = append(stops, w.start(config()))
		}
		for range 200 {
			for _, w := range worlds {
				w.add(1)
			}
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(time.Second)
		good.set(func() {
			require.Len(t, good.outcomes, 200)
			for i, s := range good.sends {
				require.InDelta(t, float64(i)*0.005, s.at.Seconds(), 0.01, "event %d waited", i)
			}
		})
		for i, stop := range stops {
			require.NoError(t, stop(), "emitter %d", i)
		}
	})
}

func TestFirstAttemptsAreNotStuckBehindRetries(t *testing.T) { // B56
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = func(ctx context.Context, c *Compaction) Result {
			if c.First <= 200 && c.First%2 == 1 { // these hang, then fail; the destination works for the others
				sleep(ctx, 10*time.Second)
				return transient()
			}
			return Result{OK: true}
		}
		for range 200 {
			w.add(1)
		}
		stop := w.start(config())
		time.Sleep(15 * time.Minute) // each had its first attempt, the queue of retries is long
		began := time.Now()
		w.add(1)
		for w.kind(201) == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		require.LessOrEqual(t, time.Since(began), 11*time.Second)
		n := len(w.order())
		time.Sleep(time.Minute)
		require.Greater(t, len(w.order()), n, "nor are retries starved")
		noError(t, stop)
	})
}

func TestRetriesHoldAtMostHalfOfTheSlotsWhileFirstAttemptsWait(t *testing.T) {
	s := schedule{slots: 8}
	now := time.Now()
	for i := range 20 {
		s.add(&work{first: uint64(i), attempts: 1}, now)
		s.add(&work{first: uint64(100 + i)}, now)
	}
	var picked []*work
	for s.ready() {
		picked = append(picked, s.pick(s.next()))
	}
	require.Len(t, picked, 8)
	require.Equal(t, 4, s.retriesInFlight)
	for _, w := range picked {
		if !w.retry { // first attempts end, retries hang
			s.release(w)
			next := s.pick(s.next())
			require.False(t, next.retry)
		}
	}
	one := schedule{slots: 1}
	for i := range 4 {
		one.add(&work{first: uint64(i), attempts: 1}, now)
		one.add(&work{first: uint64(100 + i)}, now)
	}
	var kinds []bool
	for range 6 {
		w := one.pick(one.next())
		kinds = append(kinds, w.retry)
		one.release(w)
	}
	require.Equal(t, []bool{true, false, true, false, true, false}, kinds, "a single slot alternates")
}

func TestWindowBoundsWhatIsReadAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = func(_ context.Context, c *Compaction) Result {
			if c.First == 1 {
				return transient()
			}
			return Result{OK: true}
		}
		cfg := config()
		cfg.Window = 50
		for range 200 {
			w.add(1)
		}
		stop := w.start(cfg)
		time.Sleep(10 * time.Second)
		require.Equal(t, Delivered, w.kind(50))
		require.Empty(t, w.sent("c51"), "beyond the window of the oldest unresolved one")
		w.set(func() { w.deliver = result(Result{OK: true}) })
		time.Sleep(time.Minute)
		noError(t, stop)
		require.Equal(t, Delivered, w.kind(200))
	})
}

func TestConcurrencyIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var now, most atomic.Int64
		w.deliver = func(context.Context, *Compaction) Result {
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(10 * time.Millisecond)
			now.Add(-1)
			return Result{OK: true}
		}
		for range 100 {
			w.add(1)
		}
		stop := w.start(config())
		time.Sleep(time.Second)
		noError(t, stop)
		require.Equal(t, int64(4), most.Load())
	})
}

func TestPayloadOfWaitingDeliveriesIsShedAndReadAgain(t *testing.T) {
	for _, order := range []spec.Order{spec.OrderNone, spec.OrderKey} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.deliver = result(Result{Class: ClassTransient, Reason: "503", Body: make([]byte, 1024)})
			cfg := config()
			cfg.Order = order
			cfg.MemoryBytes = 10_000
			for range 300 {
				w.add(1, 9)
				w.compactions[len(w.compactions)-1].Deliveries[0].Event.Data = make([]byte, 1000)
			}
			r := newRunner(t.Context(), cfg.withDefaults(), Deps{Source: w, Proposer: w, DeadLetters: w, Lease: w, Sink: w, Gate: newGate(cfg.Emitter, 0, 1<<20)})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- r.loop(ctx) }()
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Equal(t, 300, r.admitted.len(), "all were read") // the loop is idle: synctest.Wait says so
			require.Less(t, r.loaded, 12_000)
			require.Less(t, r.remembered, 5_000+300*(96+3))
			w.set(func() { w.deliver = result(Result{OK: true}) })
			time.Sleep(10 * time.Minute)
			require.Equal(t, Delivered, w.kind(300))
			cancel()
			require.NoError(t, <-ended)
			r.stopReading()
			r.helpers.Wait()
			require.Zero(t, r.loaded)
			require.Zero(t, r.remembered)
		})
	}
}

func TestS07DeliveryResumesByItselfAfterALongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = result(Result{Class: ClassTransient, Reason: "connection refused"})
		for range 50 {
			w.add(1)
		}
		stop := w.start(config())
		time.Sleep(10 * time.Minute)
		w.set(func() { w.deliver = result(Result{OK: true}) })
		time.Sleep(61 * time.Second)
		noError(t, stop)
		for seq := uint64(1); seq <= 50; seq++ {
			require.Equal(t, Delivered, w.kind(seq))
		}
	})
}

func TestCompactionResolvedByAnOperatorWhileItWaitedIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = result(transient())
		cfg := config()
		cfg.MemoryBytes = 1 // everything that waits is read again
		w.add(1)
		w.add(1)
		stop := w.start(cfg)
		time.Sleep(1500 * time.Millisecond)
		w.set(func() { w.resolved[1] = Dead })
		n := len(w.sent("c1"))
		time.Sleep(5 * time.Minute)
		noError(t, stop)
		require.Len(t, w.sent("c1"), n)
		require.Greater(t, len(w.sent("c2")), 3)
	})
}
