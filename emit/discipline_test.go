package emit

import (
	"context"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/destination"
	"penstock/internal/spec"
)

// What violates the discipline of messaging (contract L17), each by its name. The other three are where they can be held: dedup
// per producer in fsm, a dead letter without reason and audit data in dlq, a queue without a depth alert in test/rules.

func channel(change func(*spec.Channel)) error {
	c := spec.Channel{
		Name: "orders", Semantics: spec.AtLeastOnce, Order: spec.OrderNone,
		Emitters: []spec.Emitter{{Name: "billing", Kind: "webhook", Webhook: &spec.Webhook{URL: "https://billing.example/"}}},
	}
	c.ApplyDefaults()
	change(&c)
	return c.Validate()
}

func TestL17UnstatedSemantic(t *testing.T) {
	require.NoError(t, channel(func(*spec.Channel) {}))
	require.ErrorContains(t, channel(func(c *spec.Channel) { c.Semantics = "" }), "semantics")
	cfg := config()
	cfg.Semantics = ""
	require.ErrorContains(t, cfg.validate(), "semantics")
}

func TestL17NonIdempotentConsumerUnderAtLeastOnce(t *testing.T) {
	none := func(c *spec.Channel) { c.Emitters[0].IdempotentBy = "none" }
	require.NoError(t, channel(none), "at-least-once says that it repeats")
	require.Error(t, channel(func(c *spec.Channel) { none(c); c.Semantics = spec.ExactlyOnce }), "exactly-once does not pretend")
	// Every repeat that such a consumer gets carries the ids of the first.
	var server destination.Server
	web := httptest.NewServer(&server)
	defer web.Close()
	server.Script("it", destination.Step{Fault: destination.Close, Times: 2}, destination.Step{})
	w := newWorld(t)
	w.add(1)
	cfg := quick(web.URL + "/hook/it")
	cfg.Emitter.IdempotentBy = "none"
	stop := w.startWith(cfg, webhookSink(t, cfg))
	eventually(t, "delivered", func() bool { return w.kind(1) == Delivered })
	noError(t, stop)
	got := server.Received("it")
	require.Len(t, got, 3)
	for _, r := range got[1:] {
		require.Equal(t, got[0].ID, r.ID)
		require.Equal(t, got[0].WebhookID, r.WebhookID)
		require.Equal(t, got[0].CompactionID, r.CompactionID)
	}
}

func TestL17DedupWithoutTTL(t *testing.T) {
	exactly := func(window time.Duration) error {
		return channel(func(c *spec.Channel) { c.Semantics, c.Dedup.Window = spec.ExactlyOnce, spec.Duration(window) })
	}
	require.Error(t, exactly(0), "no window")
	require.Error(t, exactly(time.Minute), "shorter than the retries go on")
	require.NoError(t, exactly(time.Hour))
	require.Error(t, exactly(100*365*24*time.Hour), "a window without an end is none")
}

func TestL17RetryWithoutBackoff(t *testing.T) {
	require.ErrorContains(t, channel(func(c *spec.Channel) { c.Emitters[0].Retry.Backoff.Min = 0 }), "backoff.min")
	cfg := config()
	cfg.Emitter.Retry.Backoff.Min = 0
	require.ErrorContains(t, cfg.validate(), "backoff.min")
}

func TestL17UnboundedBudget(t *testing.T) {
	require.ErrorContains(t, channel(func(c *spec.Channel) { c.Emitters[0].Retry.TTL, c.Emitters[0].Retry.MaxAttempts = 0, 0 }), "for ever")
	cfg := config()
	cfg.Emitter.Retry.TTL, cfg.Emitter.Retry.MaxAttempts = 0, 0
	require.ErrorContains(t, cfg.validate(), "without limit")
}

func TestL17PoisonRetriedOrWithoutAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := newWorld(t), newGraveyard(1)
		w.add(2)
		w.compactions[0].Deliveries[0].Poison = true
		stop := w.start(config())
		time.Sleep(time.Hour)
		noError(t, stop)
		require.Equal(t, Poison, w.kind(1))
		require.Len(t, w.letters, 1)
		require.True(t, w.letters[0].Poison)
		require.Equal(t, []string{"c1"}, w.order(), "the other event of its compaction went, once")

		g.letters[0].Poison = true
		r := replayer(t, w, g)
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		r.Run(ctx)
		require.Len(t, w.order(), 1, "no scan attempts poison")
	})
}

func TestL17NonTransactionalMarkAroundANonIdempotentProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Process, mark, ack: what is marked done was taken by the destination, and a crash in between repeats under the same id.
		w := newWorld(t)
		w.add(1)
		stop := w.start(config())
		time.Sleep(time.Second)
		noError(t, stop)
		require.Equal(t, []string{"send c1", "delivered 1-1"}, w.events())
		// Where a repeat would do harm the channel says at-most-once: the mark is committed before, and there is no second attempt.
		w = newWorld(t)
		w.add(1)
		w.deliver = result(transient())
		stop = w.start(atMostOnce())
		time.Sleep(time.Hour)
		noError(t, stop)
		require.Equal(t, []string{"attempted 1-1", "send c1", "lost 1-1"}, w.events())
	})
}

func TestL17OrderAssumedWhereTheChannelGivesNone(t *testing.T) {
	require.ErrorContains(t, channel(func(c *spec.Channel) { c.Order = "" }), "order")
	synctest.Test(t, func(t *testing.T) {
		for order, overtakes := range map[spec.Order]bool{spec.OrderNone: true, spec.OrderKey: false, spec.OrderTotal: false} {
			w := newWorld(t)
			w.deliver = func(ctx context.Context, c *Compaction) Result {
				if c.First == 1 && time.Since(w.began) < 10*time.Second {
					return transient()
				}
				return Result{OK: true}
			}
			for range 5 {
				w.add(1, 3)
			}
			cfg := config()
			cfg.Order = order
			stop := w.start(cfg)
			time.Sleep(time.Minute)
			noError(t, stop)
			arrived := slices.DeleteFunc(w.events(), func(e string) bool { return !strings.HasPrefix(e, "delivered") })
			require.Equal(t, overtakes, arrived[0] != "delivered 1-1", "%s: %v", order, arrived)
		}
	})
}
