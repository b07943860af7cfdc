package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
	"penstock/internal/destination"
)

// TestAChannelChangedUnderLoadLosesAndRepeatsNothing: every field that may change is changed, again and again, while writers write
// and the destination takes what it gets; an emitter comes and goes beside it.
func TestAChannelChangedUnderLoadLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	b := newBuried(t, options{})
	ctx := context.Background()
	spec := func(i int) []byte {
		extra := fmt.Sprintf(`"retention":{"keep":"%dm"},"schema":{"type":"object","maxProperties":%d}`, 1+i%5, 10+i%3)
		emitters := []string{webhookEmitter("steady", b.web+"/hook/it", fmt.Sprintf(
			`"concurrency":%d,"retry":{"ttl":"%dm","backoff":{"min":"100ms","max":"1s"}},"compaction":{"events":%d,"linger":"50ms"},"dead_letter":{"max_retries":%d},"classes":{"404":"transient"}`,
			4+i%4, 10+i, 1+i%3, i%4))}
		if i%2 == 1 {
			emitters = append(emitters, webhookEmitter("guest", b.web+"/hook/guest", ""))
		}
		return channelSpec("orders", extra, emitters...)
	}
	put := func(i int) {
		eventually(t, 30*time.Second, "the change is taken", func() error {
			_, err := b.c.PutChannel(ctx, "orders", spec(i), client.PutOptions{Discard: true})
			return err
		})
	}
	put(0)
	waitOwned(t, b.c, "orders")
	w := startWriters(t, "orders", b.addresses(), 2, 5)
	for i := range scale(t, 100, 12) {
		w.waitAcks(20, 30*time.Second)
		put(i + 1)
	}
	put(0)
	acked := w.halt()
	l := waitDelivered(t, b.c, "orders", time.Minute)
	e := l.Emitters[0] // the others are those that went
	require.Equal(t, "steady", e.Emitter)
	require.Equal(t, l.Accepted, e.Delivered, "%+v", e)
	require.GreaterOrEqual(t, int(l.Accepted), len(acked))
	requests := map[string]int{}
	for _, r := range b.receiver.Received("it") {
		requests[r.WebhookID]++
	}
	for id, n := range requests {
		require.Equal(t, 1, n, "%s was sent %d times", id, n)
	}
	t.Logf("%d events in %d requests", l.Accepted, len(requests))
}

// TestTooMuchUndeliveredBecomesDeadLettersWhereTheChannelSaysSo: retention.on_unresolved: dead_letter. With the destination away,
// producers are not refused for good: the oldest deliveries become dead letters. All of them are delivered in the end, by replay.
func TestTooMuchUndeliveredBecomesDeadLettersWhereTheChannelSaysSo(t *testing.T) {
	t.Parallel()
	b := newBuried(t, options{nodes: 1, single: true})
	ctx := context.Background()
	hook := startReceiver(t)
	hook.close()
	_, err := b.c.PutChannel(ctx, "orders", channelSpec("orders", `"retention":{"max_unresolved":"1MiB","on_unresolved":"dead_letter"}`,
		webhookEmitter("billing", hook.url(), `"retry":{"ttl":"10m","backoff":{"min":"50ms","max":"1s"}}`)), client.PutOptions{})
	require.NoError(t, err)
	waitOwned(t, b.c, "orders")
	pad := strings.Repeat("x", 32<<10)
	const sent = 100
	for i := range sent { // 3.2 MB
		body := fmt.Appendf(nil, `[{"specversion":"1.0","id":"%d","source":"/e2e","type":"t","data":%q}]`, i, pad)
		eventually(t, time.Minute, "taken", func() error {
			_, err := b.c.Send(ctx, "orders", body, batchType, client.SendOptions{})
			return err
		})
	}
	e := b.ledger(b.c)
	require.Greater(t, int(e.Dead), 40, "%+v", e)
	require.EqualValues(t, sent, e.Dead+e.Pending)
	require.LessOrEqual(t, int(e.Pending), (1<<20)*9/8/(32<<10)+2, "the bound holds")
	require.Contains(t, volumeText(b.nodes[0]), "retention.max_unresolved")
	hook.listen()
	eventually(t, 90*time.Second, "all are delivered", func() error {
		letters, err := b.c.DeadLetters(ctx, client.DeadLetterFilter{})
		if err != nil {
			return err
		}
		if ids := ids(letters); len(ids) > 0 {
			_, _ = b.c.Replay(ctx, client.ActRequest{IDs: ids[:min(50, len(ids))]})
		}
		if e := b.ledger(b.c); e.Delivered != sent {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
}

// TestB21DropOldestDiscardsTheOldestAndSaysSo: B21 through a node. At max_bytes the oldest dead letters are given up, each an audited
// discard of the node, the gauge says what du says, and an operator who takes a file away makes room.
func TestB21DropOldestDiscardsTheOldestAndSaysSo(t *testing.T) {
	t.Parallel()
	b := newBuried(t, options{nodes: 1, single: true, env: []string{"PENSTOCK_DEAD_LETTER_OVERFLOW=drop_oldest", "PENSTOCK_DEAD_LETTER_MAX_BYTES=1MiB"}})
	ctx := context.Background()
	n := b.nodes[0]
	b.receiver.Script("it", destination.Step{Status: 410})
	_, err := b.c.PutChannel(ctx, "orders", channelSpec("orders", "", webhookEmitter("billing", b.web+"/hook/it", `"dead_letter":{"max_retries":0}`)), client.PutOptions{})
	require.NoError(t, err)
	waitOwned(t, b.c, "orders")
	pad := strings.Repeat("x", 100<<10)
	sent := 0
	send := func(k int) {
		for range k {
			sendByID(t, b.c, "orders", fmt.Appendf(nil, `[{"specversion":"1.0","id":"%d","source":"/e2e","type":"t","data":%q}]`, sent, pad))
			sent++
		}
	}
	settled := func() (e client.LedgerRow) {
		eventually(t, time.Minute, "nothing pending", func() error {
			if e = b.ledger(b.c); e.Pending != 0 || int(e.Accepted) != sent {
				return fmt.Errorf("%+v", e)
			}
			return nil
		})
		require.EqualValues(t, sent, e.Dead+e.Discarded)
		return e
	}
	send(30)
	e := settled()
	require.NotZero(t, e.Discarded)
	dropped := 0
	for _, r := range b.trail("dlq.drop") {
		require.Equal(t, "node:"+n.id, r.Actor)
		require.Equal(t, "success", r.Result)
		require.Contains(t, r.Reason, "max_bytes")
		dropped += len(r.IDs)
	}
	require.EqualValues(t, e.Discarded, dropped)
	du := func() (sum int64) {
		files, err := filepath.Glob(filepath.Join(n.dlq, "*.jsonl"))
		require.NoError(t, err)
		for _, f := range files {
			info, err := os.Stat(f)
			require.NoError(t, err)
			sum += info.Size()
		}
		return sum
	}
	require.LessOrEqual(t, du(), int64(1<<20))
	require.InDelta(t, du(), n.metric("penstock_dlq_size_bytes"), 4096)
	// What was dropped was the oldest: the letters that are left are the last ones.
	letters := mustLetters(t, b)
	require.Len(t, letters, int(e.Dead))
	var last client.SendResult
	last, err = b.c.Send(ctx, "orders", fmt.Appendf(nil, `[{"specversion":"1.0","id":"%d","source":"/e2e","type":"t","data":%q}]`, sent-1, pad), batchType, client.SendOptions{Detail: true})
	require.NoError(t, err)
	require.Equal(t, last.Events[0].Position, letters[len(letters)-1].Position)
	// An operator takes the files away, sealed or not as they happen to be: there is room at once, without a restart, and the
	// letters stay open.
	files, err := filepath.Glob(filepath.Join(n.dlq, "*.jsonl"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		require.NoError(t, os.Remove(f))
	}
	before := settled().Discarded
	send(1)
	require.Equal(t, before, settled().Discarded, "there was room")
	require.InDelta(t, du(), n.metric("penstock_dlq_size_bytes"), 4096)
}
