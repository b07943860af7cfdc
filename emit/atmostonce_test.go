package emit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/spec"
)

func atMostOnce() Config {
	cfg := config()
	cfg.Semantics = spec.AtMostOnce
	return cfg
}

func TestAtMostOnceAnnouncesBeforeItSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add(1)
		stop := w.start(atMostOnce())
		time.Sleep(time.Second)
		noError(t, stop)
		require.Equal(t, []string{"attempted 1-1", "send c1", "delivered 1-1"}, w.events())
	})
}

func TestAtMostOnceAnnouncesOnlyWhatIsSentAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = func(ctx context.Context, _ *Compaction) Result {
			time.Sleep(time.Second)
			return Result{OK: true}
		}
		for range 50 {
			w.add(1)
		}
		stop := w.start(atMostOnce())
		time.Sleep(500 * time.Millisecond)
		w.set(func() { require.Len(t, w.prior, 4, "as many as there are slots") })
		noError(t, stop)
	})
}

func TestAtMostOnceFailureIsLostNeverADeadLetter(t *testing.T) {
	for _, class := range []Class{ClassTransient, ClassPermanent, ClassAuth, ClassPoison} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.deliver = result(Result{Class: class, Status: 500, Reason: "no"})
			w.add(1)
			stop := w.start(atMostOnce())
			time.Sleep(time.Hour)
			noError(t, stop)
			require.Len(t, w.sends, 1)
			require.Equal(t, Lost, w.kind(1))
			require.Empty(t, w.letters)
			require.Equal(t, "no", w.outcomes[1].Reason)
		})
	}
}

func TestAtMostOnceAttemptWithoutAnOutcomeIsLostAndNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add(1)
		w.prior[1] = Prior{Attempted: true}
		stop := w.start(atMostOnce())
		time.Sleep(time.Second)
		noError(t, stop)
		require.Empty(t, w.sends)
		require.Equal(t, Lost, w.kind(1))
	})
}

func TestAtMostOnceIsNeverSentTwiceThroughCrashes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := newDice(3, 4)
		w := newWorld(t)
		got := map[string]bool{}
		w.deliver = func(_ context.Context, c *Compaction) Result {
			w.mu.Lock()
			fail, wait := rng.roll(5) == 0, time.Duration(rng.roll(30))*time.Millisecond
			w.mu.Unlock()
			time.Sleep(wait)
			if fail {
				return transient()
			}
			w.set(func() { got[c.ID] = true })
			return Result{OK: true}
		}
		for range 400 {
			w.add(1)
		}
		cfg := atMostOnce()
		cfg.Grace = time.Millisecond
		for range 20 {
			w.set(func() { w.propose = nil })
			stop := w.start(cfg)
			time.Sleep(time.Duration(rng.roll(150)) * time.Millisecond)
			w.set(func() { w.propose = func([]Outcome) error { return ErrStaleEpoch } })
			time.Sleep(time.Duration(rng.roll(20)) * time.Millisecond)
			_ = stop()
		}
		w.set(func() { w.propose = nil })
		stop := w.start(cfg)
		time.Sleep(time.Minute)
		noError(t, stop)
		seen := map[string]bool{}
		for _, id := range w.order() {
			require.False(t, seen[id], "%s was sent twice", id)
			seen[id] = true
		}
		lost := 0
		for _, c := range w.compactions {
			switch w.kind(c.First) {
			case Lost:
				lost++
			case Delivered:
				require.True(t, got[c.ID], "%s counts as delivered and is not", c.ID)
			default:
				t.Fatalf("%s has no end", c.ID)
			}
			if !got[c.ID] {
				require.Equal(t, Lost, w.kind(c.First), "what the receiver misses is lost")
			}
		}
		require.Positive(t, lost)
	})
}
