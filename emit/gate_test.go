package emit

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/spec"
)

func (g *Gate) try(t *testing.T, retry bool, res Result) bool {
	t.Helper()
	ok, _ := g.Enter(time.Now(), retry)
	if ok {
		g.Leave(time.Now(), res, true, retry)
	}
	return ok
}

func TestTheBreakerOpensProbesAndRampsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := config().Emitter
		e.Concurrency = 8
		g := NewGate(e, 1)
		down, up := Result{Class: ClassTransient}, Result{OK: true}
		for range breakerFailures {
			require.False(t, g.Open())
			require.True(t, g.try(t, false, down))
		}
		require.True(t, g.Open())
		require.False(t, g.Healthy(time.Now()))
		require.False(t, g.try(t, false, down), "nothing goes before the probe")
		var waits []time.Duration
		last := time.Now()
		for range 8 {
			for !g.try(t, false, down) {
				time.Sleep(100 * time.Millisecond)
			}
			waits = append(waits, time.Since(last))
			last = time.Now()
		}
		for i := 1; i < len(waits); i++ {
			require.GreaterOrEqual(t, waits[i]+200*time.Millisecond, waits[i-1], "probes are further and further apart: %v", waits)
		}
		require.InDelta(t, probeMax.Seconds(), waits[7].Seconds(), 0.5)

		time.Sleep(probeMax)
		ok, _ := g.Enter(time.Now(), true)
		require.True(t, ok)
		ok, _ = g.Enter(time.Now(), true)
		require.False(t, ok, "one retry probes at a time")
		ok, _ = g.Enter(time.Now(), false)
		require.True(t, ok, "and one first attempt beside it")
		g.Leave(time.Now(), up, true, false)
		require.False(t, g.Open())
		limit, _ := g.Limit()
		require.Equal(t, 1, limit, "what has gathered does not come at once")
		g.Leave(time.Now(), up, true, true)
		for range 8 {
			g.try(t, false, up)
		}
		require.True(t, g.Healthy(time.Now()))
		for range 100 {
			require.True(t, g.try(t, false, Result{Class: ClassPermanent, Status: 400}), "a refusal is an answer")
		}
	})
}

func TestB19ADestinationThatComesBackIsNotKnockedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const allowed, outage = 100, 5 * time.Minute
		events := 5000
		if os.Getenv("PENSTOCK_FULL") == "1" {
			events = 50_000
		}
		var second, n, peak, refused, late, lateRefused int
		w := newWorld(t)
		w.deliver = func(ctx context.Context, _ *Compaction) Result {
			sleep(ctx, time.Millisecond)
			since := time.Since(w.began)
			if since < outage {
				return Result{Class: ClassTransient, Reason: "connection refused"}
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if s := int(since / time.Second); s != second {
				second, n = s, 0
			}
			n++
			peak = max(peak, n)
			after := since > outage+30*time.Second
			if after {
				late++
			}
			if n > allowed {
				if refused++; after {
					lateRefused++
				}
				return Result{Status: 429, Class: ClassTransient, RetryAfter: time.Second}
			}
			return Result{OK: true, Status: 200}
		}
		for range events {
			w.add(1)
		}
		cfg := config()
		cfg.Emitter.Concurrency = 16
		cfg.Emitter.Retry.Backoff.Max = spec.Duration(30 * time.Second)
		stop := w.start(cfg)
		time.Sleep(outage)
		w.set(func() { require.Less(t, len(w.sends), 200, "a destination that is down is probed, not hammered") })
		time.Sleep(5*time.Minute + 2*time.Second*time.Duration(events/allowed))
		noError(t, stop)
		t.Logf("peak %d a second, %d refused of %d", peak, refused, len(w.sends))
		for seq := range uint64(events) {
			require.Equal(t, Delivered, w.kind(seq+1))
		}
		require.Empty(t, w.letters)
		require.LessOrEqual(t, peak, 3*allowed)
		require.Less(t, lateRefused*5, late, "%d of %d were refused", lateRefused, late)
	})
}

func TestAThrottledDestinationIsLeftAloneAsLongAsItAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first := true
		w.deliver = func(context.Context, *Compaction) Result {
			w.mu.Lock()
			defer w.mu.Unlock()
			if first {
				first = false
				return Result{Status: 429, Class: ClassTransient, RetryAfter: 20 * time.Second}
			}
			return Result{OK: true}
		}
		cfg := config()
		cfg.Emitter.Concurrency = 1
		w.add(1)
		w.add(1)
		stop := w.start(cfg)
		time.Sleep(time.Minute)
		noError(t, stop)
		require.Len(t, w.sends, 3)
		require.GreaterOrEqual(t, w.sends[1].at, 20*time.Second, "the other event waits too")
	})
}

func TestS21StepsOfTheClockMoveNoRetry(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.deliver = func(_ context.Context, c *Compaction) Result {
				if c.First%5 == 0 { // some succeed, so that the breaker stays out of this
					return Result{OK: true}
				}
				return transient()
			}
			for range 100 {
				w.add(1)
			}
			var offset time.Duration
			cfg := config()
			cfg.Emitter.Retry.TTL = spec.Duration(24 * time.Hour)
			cfg.Now = func() time.Time {
				w.mu.Lock()
				defer w.mu.Unlock()
				return time.Now().Add(offset)
			}
			stop := w.startGate(cfg, newGate(cfg.Emitter, 0, 1<<20))
			count := func(d time.Duration) int {
				before := len(w.order())
				time.Sleep(d)
				return len(w.order()) - before
			}
			time.Sleep(10 * time.Minute)
			steady := count(5 * time.Minute)
			w.set(func() { offset = step })
			stepped := count(5 * time.Minute)
			noError(t, stop)
			require.InDelta(t, steady, stepped, float64(steady)/4)
			byCompaction := map[string][]time.Duration{}
			for _, s := range w.sends {
				byCompaction[s.id] = append(byCompaction[s.id], s.at)
			}
			for id, at := range byCompaction {
				for _, gap := range gaps(at) {
					require.LessOrEqual(t, gap, time.Minute+10*time.Second, "%s waited beyond its backoff", id)
				}
			}
		})
	}
}
