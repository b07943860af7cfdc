package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// moody is a destination that refuses a quarter of the events for good until it is mended, fails another quarter twice, and
// takes its time.
type moody struct {
	mended atomic.Bool
	mu     sync.Mutex
	tries  map[string]int
	taken  map[string]int
	ids    map[string]map[string]bool // webhook and compaction id, by event id
}

func (m *moody) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	id := r.Header.Get("ce-id")
	m.mu.Lock()
	m.tries[id]++
	n := m.tries[id]
	if m.ids[id] == nil {
		m.ids[id] = map[string]bool{}
	}
	m.ids[id][r.Header.Get("webhook-id")+" "+r.Header.Get("Penstock-Compaction-Id")] = true
	m.mu.Unlock()
	time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	switch h := xxhash.Sum64String(id) % 4; {
	case h == 0 && !m.mended.Load():
		w.WriteHeader(410)
		return
	case h == 1 && n <= 2:
		w.WriteHeader(503)
		return
	}
	m.mu.Lock()
	m.taken[id]++
	m.mu.Unlock()
}

// TestKillsOfTheOwnerDuringDeliveryAndReplay: the owner is killed at random moments, while events are delivered, retried, buried,
// replayed by schedule and by two operators at once. Every event is delivered or in exactly one dead letter, the ledger balances,
// a repeat carries ids that were seen before, and the id of a dead letter never changes.
func TestKillsOfTheOwnerDuringDeliveryAndReplay(t *testing.T) {
	t.Parallel()
	m := &moody{tries: map[string]int{}, taken: map[string]int{}, ids: map[string]map[string]bool{}}
	web := httptest.NewServer(m)
	t.Cleanup(web.Close)
	b := &buried{group: startGroup(t, options{env: []string{"PENSTOCK_DEAD_LETTER_SCAN=1s"}})}
	b.c = b.client()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	_, err := b.c.PutChannel(ctx, "orders", channelSpec("orders", "", webhookEmitter("billing", web.URL,
		`"retry":{"ttl":"10m","backoff":{"min":"50ms","max":"500ms"}},"dead_letter":{"max_retries":1000}`)), client.PutOptions{})
	require.NoError(t, err)
	waitOwned(t, b.c, "orders")

	var group sync.WaitGroup
	letterOf := map[string]string{} // id of the dead letter by position
	for range 2 {
		c := b.client()
		group.Go(func() { // an operator
			for ctx.Err() == nil {
				time.Sleep(200 * time.Millisecond)
				letters, err := c.DeadLetters(ctx, client.DeadLetterFilter{})
				if err != nil || len(letters) == 0 {
					continue
				}
				var ids []string
				for _, l := range letters[:min(len(letters), 20)] {
					ids = append(ids, l.ID)
				}
				_, _ = c.Replay(ctx, client.ActRequest{IDs: ids})
			}
		})
	}
	watch := b.client()
	group.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond)
			letters, _ := watch.DeadLetters(ctx, client.DeadLetterFilter{})
			for _, l := range letters {
				if old, ok := letterOf[l.Position.String()]; ok && old != l.ID {
					t.Errorf("the dead letter at %s was %s and is %s", l.Position, old, l.ID)
				}
				letterOf[l.Position.String()] = l.ID
			}
		}
	})
	sent := 0
	for range scale(t, 20, 4) {
		until := time.Now().Add(time.Duration(500+rand.IntN(2000)) * time.Millisecond)
		for time.Now().Before(until) {
			sendByID(t, b.c, "orders", batch("k", sent, 10))
			sent += 10
			time.Sleep(50 * time.Millisecond)
		}
		owner := b.owner(nil)
		owner.kill()
		sendByID(t, b.c, "orders", batch("k", sent, 10))
		sent += 10
		owner.start()
		owner.waitReady(60 * time.Second)
	}
	m.mended.Store(true)
	eventually(t, 2*time.Minute, "everything is delivered", func() error {
		if e := b.ledger(b.c); e.Delivered != uint64(sent) {
			return fmt.Errorf("%+v of %d", e, sent)
		}
		return nil
	})
	stop()
	group.Wait()
	require.NotEmpty(t, letterOf, "there were dead letters")
	m.mu.Lock()
	defer m.mu.Unlock()
	require.Len(t, m.taken, sent)
	repeats := 0
	for id, seen := range m.ids {
		require.Len(t, seen, 1, "%s was sent under %v", id, seen)
		repeats += m.taken[id] - 1
	}
	t.Logf("%d events, %d dead letters, %d taken more than once", sent, len(letterOf), repeats)
}

// TestAtMostOnceThroughKillsAttemptsNothingTwice: L1. What the receiver misses is lost, and nothing is attempted twice.
func TestAtMostOnceThroughKillsAttemptsNothingTwice(t *testing.T) {
	t.Parallel()
	m := &moody{tries: map[string]int{}, taken: map[string]int{}, ids: map[string]map[string]bool{}}
	web := httptest.NewServer(m)
	t.Cleanup(web.Close)
	b := &buried{group: startGroup(t, options{})}
	b.c = b.client()
	spec := fmt.Appendf(nil, `{"name":"orders","semantics":"at-most-once","order":"none","emitters":[%s]}`, webhookEmitter("billing", web.URL, ""))
	_, err := b.c.PutChannel(context.Background(), "orders", spec, client.PutOptions{})
	require.NoError(t, err)
	waitOwned(t, b.c, "orders")
	sent := 0
	for range scale(t, 10, 2) {
		for range 20 {
			sendByID(t, b.c, "orders", batch("m", sent, 10))
			sent += 10
			time.Sleep(20 * time.Millisecond)
		}
		owner := b.owner(nil)
		owner.kill()
		owner.start()
		owner.waitReady(60 * time.Second)
	}
	var e client.LedgerRow
	eventually(t, time.Minute, "all resolved", func() error {
		if e = b.ledger(b.c); e.Pending != 0 {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, n := range m.tries {
		require.Equal(t, 1, n, "%s was attempted twice", id)
	}
	require.EqualValues(t, sent, e.Accepted)
	require.Zero(t, e.Dead)
	require.EqualValues(t, sent, e.Delivered+e.Lost)
	require.LessOrEqual(t, e.Delivered, uint64(len(m.taken)), "delivered is only what the receiver took")
	require.LessOrEqual(t, sent-len(m.taken), int(e.Lost), "what the receiver misses is lost")
	t.Logf("%d events, %d delivered, %d taken, %d lost", sent, e.Delivered, len(m.taken), e.Lost)
}
