package emit

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/spec"
)

func TestDeliveredIsReportedOnceAndInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		batches := 0
		w.propose = func([]Outcome) error { batches++; return nil }
		for range 200 {
			w.add(1)
		}
		stop := w.start(config())
		time.Sleep(time.Second)
		noError(t, stop)
		require.Len(t, w.outcomes, 200)
		require.Less(t, batches, 100, "outcomes are gathered")
		for seq := range uint64(200) {
			require.Equal(t, Delivered, w.kind(seq+1))
		}
		require.Equal(t, uint32(1), w.outcomes[0].Attempts)
	})
}

func TestDeliveryIsDoneOnlyAfterItsOutcomeCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		tries := 0
		w.propose = func([]Outcome) error {
			if tries++; tries < 6 {
				return errRefused
			}
			return nil
		}
		w.add(1)
		stop := w.start(config())
		time.Sleep(10 * time.Second)
		noError(t, stop)
		require.Equal(t, 6, tries)
		require.Len(t, w.outcomes, 1, "the same outcome, once committed")
		require.Len(t, w.sends, 1, "an outcome that cannot be committed costs no attempt")
	})
}

func TestTransientFailureBacksOffDoublingToTheMaximum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = result(transient())
		w.add(1)
		stop := w.start(config())
		time.Sleep(4 * time.Minute)
		noError(t, stop)
		s := time.Second
		require.Equal(t, []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 60 * s, 60 * s}, gaps(w.sent("c1")))
		require.Equal(t, uint32(9), w.prior[1].Attempts, "each failed attempt is reported")
	})
}

func TestBudgetByTTLRunsFromTheFirstFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = result(transient())
		cfg := config()
		cfg.Emitter.Retry.TTL = spec.Duration(10 * time.Second)
		w.add(1)
		stop := w.start(cfg)
		time.Sleep(time.Minute)
		noError(t, stop)
		at := w.sent("c1")
		require.Equal(t, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 3 * time.Second}, gaps(at), "the last attempt is made when the ttl ends")
		require.Equal(t, Dead, w.kind(1))
		require.Len(t, w.letters, 1)
		l := w.letters[0]
		require.Equal(t, uint32(5), l.Attempts)
		require.Len(t, l.History, 5)
		require.Contains(t, l.Cause, "retry.ttl 10s")
		require.Equal(t, "503", l.Reason)
		require.Equal(t, uint64(7), l.Epoch)
		require.Equal(t, Limits{TTL: 10 * time.Second, MaxRetries: 5}, l.Limits)
	})
}

func TestBudgetByMaxAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = result(transient())
		cfg := config()
		cfg.Emitter.Retry.MaxAttempts = 3
		w.add(1)
		stop := w.start(cfg)
		time.Sleep(time.Minute)
		noError(t, stop)
		require.Len(t, w.sent("c1"), 3)
		require.Equal(t, Dead, w.kind(1))
	})
}

func TestNothingIsGivenUpBeforeOneAttemptOfThisRunFailed(t *testing.T) {
	for name, recovers := range map[string]bool{"destination is back": true, "destination still fails": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				cfg := config()
				cfg.Emitter.Retry.MaxAttempts = 3
				w.add(1)
				old := time.Now().Add(-time.Hour)
				w.prior[1] = Prior{Attempts: 40, FirstFailed: old, LastFailed: old.Add(time.Minute)}
				if !recovers {
					w.deliver = result(transient())
				}
				stop := w.start(cfg)
				time.Sleep(10 * time.Second)
				noError(t, stop)
				require.Len(t, w.sent("c1"), 1)
				if recovers {
					require.Equal(t, Delivered, w.kind(1))
					return
				}
				require.Equal(t, Dead, w.kind(1))
				require.Equal(t, uint32(41), w.letters[0].Attempts)
			})
		})
	}
}

func TestRetryScheduleGoesOnAfterAFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add(1)
		now := time.Now()
		w.prior[1] = Prior{Attempts: 4, FirstFailed: now.Add(-9 * time.Second), LastFailed: now.Add(-2 * time.Second)}
		stop := w.start(config())
		time.Sleep(time.Minute)
		noError(t, stop)
		require.Equal(t, 6*time.Second, w.sent("c1")[0].Round(10*time.Millisecond), "8 s after the last failure")
	})
}

func TestClockStepsDoNotMoveRetries(t *testing.T) { // S21
	for _, step := range []time.Duration{time.Hour, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.deliver = result(transient())
			cfg := config()
			cfg.Emitter.Retry.TTL = spec.Duration(100 * time.Hour)
			began := time.Now()
			cfg.Now = func() time.Time {
				if time.Since(began) > 5*time.Second {
					return time.Now().Add(step)
				}
				return time.Now()
			}
			w.add(1)
			stop := w.start(cfg)
			time.Sleep(20 * time.Second)
			noError(t, stop)
			s := time.Second
			require.Equal(t, []time.Duration{s, 2 * s, 4 * s, 8 * s}, gaps(w.sent("c1")), "step %s", step)
		})
	}
}

func TestPermanentIsADeadLetterAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = result(Result{Class: ClassPermanent, Status: 404, Reason: "404 Not Found", Body: []byte("gone")})
		w.add(3)
		stop := w.start(config())
		time.Sleep(time.Minute)
		noError(t, stop)
		require.Len(t, w.sends, 1)
		require.Len(t, w.letters, 3)
		require.Equal(t, []byte("gone"), w.letters[0].History[0].Body)
		require.Len(t, w.outcomes, 1)
		o := w.outcomes[0]
		require.Equal(t, Dead, o.Kind)
		require.Equal(t, 404, o.Status)
		require.Len(t, o.Positions, 3)
		require.Equal(t, uint64(103), o.Positions[2].Index)
	})
}

func TestAuthIsRetriedAsTransient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = result(Result{Class: ClassAuth, Status: 401, Reason: "401"})
		w.add(1)
		stop := w.start(config())
		time.Sleep(10 * time.Second)
		w.set(func() { w.deliver = result(Result{OK: true}) })
		time.Sleep(time.Minute)
		noError(t, stop)
		require.Equal(t, Delivered, w.kind(1))
		require.Equal(t, ClassAuth, w.prior[1].Class)
		require.Empty(t, w.letters)
	})
}

func TestPoisonGetsNoAttemptAndLeavesTheRestOfItsCompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add(5)
		w.compactions[0].Deliveries[1].Poison = true
		w.compactions[0].Deliveries[2].Poison = true
		stop := w.start(config())
		time.Sleep(time.Second)
		noError(t, stop)
		require.Equal(t, []uint64{1, 4, 5}, w.sends[0].seqs)
		for seq, want := range map[uint64]OutcomeKind{1: Delivered, 2: Poison, 3: Poison, 4: Delivered, 5: Delivered} {
			require.Equal(t, want, w.kind(seq), "seq %d", seq)
		}
		require.Len(t, w.letters, 2)
		require.True(t, w.letters[0].Poison)
		require.Zero(t, w.letters[0].Attempts)
		for _, o := range w.outcomes {
			if o.Kind == Poison {
				require.Len(t, o.Positions, int(o.Last-o.First)+1)
			}
		}
	})
}

func TestPoisonFoundByTheSinkIsNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = result(Result{Class: ClassPoison, Reason: "cannot be encoded"})
		w.add(1)
		stop := w.start(config())
		time.Sleep(time.Hour)
		noError(t, stop)
		require.Len(t, w.sends, 1)
		require.Equal(t, Poison, w.kind(1))
	})
}

func TestI8OutcomeOfADeadLetterIsProposedAfterItsFsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = result(Result{Class: ClassPermanent, Status: 400})
		for range 5 {
			w.add(1)
		}
		stop := w.start(config())
		time.Sleep(time.Second)
		noError(t, stop)
		synced := map[string]bool{}
		for _, e := range w.events() {
			var seq int
			if n, _ := fmt.Sscanf(e, "fsync %d", &seq); n == 1 {
				synced[fmt.Sprintf("dead %d-%d", seq, seq)] = true
			} else if len(e) > 4 && e[:4] == "dead" {
				require.True(t, synced[e], "%s before its fsync", e)
				delete(synced, e)
			}
		}
		require.Empty(t, synced)
	})
}

func TestFailingVolumeHoldsTheEmitterAndLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write = func() error { return errors.New("no space left on device") }
		w.deliver = result(Result{Class: ClassPermanent, Status: 400})
		cfg := config()
		cfg.Emitter.Concurrency = 1
		for range 100 {
			w.add(1)
		}
		stop := w.start(cfg)
		time.Sleep(time.Minute)
		require.Less(t, len(w.order()), 10, "a held emitter starts nothing new")
		w.set(func() {
			require.Empty(t, w.outcomes)
			w.write = nil
		})
		time.Sleep(10 * time.Second)
		noError(t, stop)
		require.Len(t, w.letters, 100)
		for seq := range uint64(100) {
			require.Equal(t, Dead, w.kind(seq+1))
		}
	})
}

func TestStoppingWhileHeldReportsTheFailedAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write = func() error { return errRefused }
		w.deliver = result(Result{Class: ClassPermanent, Status: 400})
		w.add(1)
		stop := w.start(config())
		time.Sleep(time.Minute)
		noError(t, stop)
		require.Zero(t, w.kind(1), "still pending")
		require.Equal(t, uint32(1), w.prior[1].Attempts)
	})
}

func TestStaleEpochEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.propose = func([]Outcome) error { return fmt.Errorf("propose: %w", ErrStaleEpoch) }
		w.add(1)
		ended := make(chan error)
		go func() {
			ended <- Run(t.Context(), config(), Deps{Source: w, Proposer: w, DeadLetters: w, Lease: w, Sink: w})
		}()
		require.ErrorIs(t, <-ended, ErrStaleEpoch)
	})
}

func TestWithoutTheLeaseNothingStartsAndNothingIsProposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = func(ctx context.Context, _ *Compaction) Result {
			time.Sleep(5 * time.Second)
			return Result{OK: true}
		}
		cfg := config()
		cfg.Emitter.Concurrency = 1
		for range 3 {
			w.add(1)
		}
		stop := w.start(cfg)
		time.Sleep(time.Second)
		w.setLease(false)
		time.Sleep(time.Minute)
		require.Len(t, w.order(), 1, "the attempt in flight was the last")
		require.Empty(t, w.events()[1:], "its outcome waits")
		w.setLease(true)
		time.Sleep(time.Minute)
		noError(t, stop)
		require.Len(t, w.sends, 3, "it went on where it stood, nothing was repeated")
		require.Equal(t, Delivered, w.kind(3))
	})
}

func TestStopCutsOffAttemptsAtNoCost(t *testing.T) { // B20
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = func(ctx context.Context, _ *Compaction) Result {
			<-ctx.Done()
			return transient()
		}
		w.add(1)
		stop := w.start(config())
		time.Sleep(time.Second)
		began := time.Now()
		noError(t, stop)
		require.Equal(t, 2*time.Second, time.Since(began).Round(100*time.Millisecond), "the grace")
		require.Empty(t, w.outcomes, "no attempt is counted")
	})
}

func TestStopLetsAttemptsFinishWithinTheGraceAndCommitsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = func(context.Context, *Compaction) Result {
			time.Sleep(time.Second)
			return Result{OK: true}
		}
		w.add(1)
		stop := w.start(config())
		time.Sleep(500 * time.Millisecond)
		noError(t, stop)
		require.Equal(t, Delivered, w.kind(1))
	})
}

func TestStopWithoutAQuorumSaysThatItIsNotDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.propose = func([]Outcome) error { return errRefused }
		w.add(1)
		stop := w.start(config())
		time.Sleep(time.Second)
		began := time.Now()
		require.ErrorIs(t, stop(), ErrNotDrained)
		require.Less(t, time.Since(began), 10*time.Second)
	})
}

func TestSinkThatDoesNotNoticeItsEndIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deliver = func(context.Context, *Compaction) Result {
			time.Sleep(time.Hour)
			return Result{OK: true}
		}
		w.add(1)
		stop := w.start(config())
		time.Sleep(time.Second)
		began := time.Now()
		noError(t, stop)
		require.Less(t, time.Since(began), 10*time.Second)
		time.Sleep(2 * time.Hour)
		require.Zero(t, w.kind(1))
	})
}

func TestSourceErrorsAreRetriedWithoutASpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		asked := 0
		w.source = func() error { asked++; return errRefused }
		w.add(1)
		stop := w.start(config())
		time.Sleep(time.Minute)
		w.set(func() {
			require.Less(t, asked, 25)
			w.source = nil
		})
		time.Sleep(time.Minute)
		noError(t, stop)
		require.Equal(t, Delivered, w.kind(1))
	})
}

func TestConfigThatWouldRetryForEverIsRefused(t *testing.T) { // L17: retry without backoff, unbounded budget, unstated semantic
	w := newWorld(t)
	for name, change := range map[string]func(*Config){
		"no backoff":  func(c *Config) { c.Emitter.Retry.Backoff.Min = 0 },
		"no budget":   func(c *Config) { c.Emitter.Retry.TTL = 0 },
		"no semantic": func(c *Config) { c.Semantics = "" },
	} {
		cfg := config()
		change(&cfg)
		err := Run(t.Context(), cfg, Deps{Source: w, Proposer: w, DeadLetters: w, Lease: w, Sink: w})
		require.Error(t, err, name)
	}
	require.Error(t, Run(t.Context(), config(), Deps{}))
}
