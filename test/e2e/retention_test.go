package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

const mib = 1 << 20

// bulk sends so many bytes of incompressible events through a channel, and tells how much was acknowledged.
func bulk(t *testing.T, addresses []string, channel string, total int) {
	t.Helper()
	const events, size = 64, 12 << 10
	var wg sync.WaitGroup
	left := make(chan struct{}, total/(events*size)+1)
	for range cap(left) {
		left <- struct{}{}
	}
	close(left)
	for w := range 4 {
		c := newClient(t, addresses...)
		wg.Go(func() {
			chance := rand.NewPCG(uint64(w), 7)
			raw := make([]byte, size*3/4)
			for n := 0; ; n++ {
				if _, ok := <-left; !ok {
					return
				}
				var b strings.Builder
				for range events {
					for i := 0; i+8 <= len(raw); i += 8 {
						v := chance.Uint64()
						for j := range 8 {
							raw[i+j] = byte(v >> (8 * j))
						}
					}
					fmt.Fprintf(&b, "{\"blob\":%q}\n", base64.StdEncoding.EncodeToString(raw))
				}
				eventually(t, 60*time.Second, "an ack of a bulk batch", func() error {
					_, err := c.Send(context.Background(), channel, []byte(b.String()), "application/x-ndjson", client.SendOptions{})
					return err
				})
			}
		})
	}
	wg.Wait()
}

// size is what the files of a directory take.
func dirSize(t *testing.T, dir string) (total int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			if os.IsNotExist(err) {
				return nil
			}
			return err
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			total += info.Size()
		}
		return nil
	})
	require.NoError(t, err)
	return total
}

// TestOldNeededEventsAreCarriedAndTheLogGoes is shows 7 of the log: with keep 0s, 1000 events of a stuck emitter and 10 dead
// letters, and then 2 GiB through another channel, the log directory ends under 512 MiB (both scaled, as the segments are),
// those events are there on every node, with the ids and positions they had, shown once; and when the destination is well
// again each is delivered under the compaction id it always had.
func TestOldNeededEventsAreCarriedAndTheLogGoes(t *testing.T) {
	total, most := scale(t, 2048, 256)*mib, int64(512*mib)
	opts := options{segmentBytes: "64MiB", snapshotBytes: "128MiB"}
	if total < 2048*mib {
		opts.segmentBytes, opts.snapshotBytes = "8MiB", "16MiB"
		most /= 8
	}
	g := startGroup(t, opts)
	c := g.client()
	ctx := context.Background()
	stuck, gone := startReceiver(t), startReceiver(t)
	stuck.answer(503)
	gone.answer(410)
	put := func(name, emitters string) {
		t.Helper()
		_, err := c.PutChannel(ctx, name, channelSpec(name, `"retention":{"keep":"0s"}`, emitters), client.PutOptions{})
		require.NoError(t, err)
	}
	put("stuck", webhookEmitter("hook", stuck.url(), `"retry":{"ttl":"24h","backoff":{"min":"1s","max":"2s"}}`))
	put("letters", webhookEmitter("hook", gone.url(), ""))
	put("flow", "")
	for i := 0; i < 1000; i += 50 {
		sendByID(t, c, "stuck", batch("stuck", i, 50))
	}
	sendByID(t, c, "letters", batch("letter", 0, 10))
	dead := func() (ids []string) {
		list, err := c.DeadLetters(ctx, client.DeadLetterFilter{Channel: "letters"})
		require.NoError(t, err)
		for _, l := range list {
			ids = append(ids, l.ID)
		}
		slices.Sort(ids)
		return ids
	}
	eventually(t, 20*time.Second, "10 dead letters", func() error {
		if n := len(dead()); n != 10 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	before, letters := tailAll(t, g.leader(), "stuck"), dead()
	require.Len(t, before, 1000)
	lettersBefore := tailAll(t, g.leader(), "letters")
	explained, err := c.Explain(ctx, "stuck-500", "")
	require.NoError(t, err)

	bulk(t, g.addresses(), "flow", total)
	eventually(t, 60*time.Second, "the log went", func() error {
		for _, p := range g.nodes {
			if n := dirSize(t, filepath.Join(p.dir, "wal")); n >= most {
				return fmt.Errorf("%s holds %d MiB of log, most is %d", p.id, n/mib, most/mib)
			}
			s, err := p.client().Cluster(ctx)
			if err != nil {
				return err
			}
			if s.FirstIndex <= before[999].pos.Index {
				return fmt.Errorf("the log of %s begins at %d, floor %d", p.id, s.FirstIndex, s.Floor)
			}
		}
		return nil
	})
	waitApplied(t, g)
	check := func() {
		t.Helper()
		for _, p := range g.nodes {
			require.Equal(t, before, tailAll(t, p, "stuck"), "on %s", p.id)
			require.Equal(t, lettersBefore, tailAll(t, p, "letters"), "on %s", p.id)
		}
		require.Equal(t, letters, dead())
		now, err := c.Explain(ctx, "stuck-500", "")
		require.NoError(t, err)
		require.Equal(t, explained.Events[0].Position, now.Events[0].Position)
		require.Equal(t, explained.Events[0].AcceptedAt, now.Events[0].AcceptedAt)
		require.Equal(t, "pending", now.Events[0].Deliveries[0].State)
		require.Equal(t, explained.Events[0].Deliveries[0].CompactionID, now.Events[0].Deliveries[0].CompactionID)
	}
	check()

	// All of it also after all nodes were killed, and on a node with an empty disk.
	for _, p := range g.nodes {
		p.kill()
	}
	for _, p := range g.nodes {
		p.start()
	}
	for _, p := range g.nodes {
		p.waitReady(60 * time.Second)
	}
	g.join("n4")
	waitApplied(t, g)
	check()

	stuck.answer(200)
	gone.answer(200)
	waitDelivered(t, c, "stuck", 60*time.Second)
	res, err := c.Replay(ctx, client.ActRequest{IDs: letters, Reason: "mended"})
	require.NoError(t, err, "%+v", res)
	require.Empty(t, dead())
	delivered := map[string]int{}
	compaction := map[string]string{}
	for _, hook := range []*receiver{stuck, gone} {
		for _, r := range hook.all() {
			event, id := r.header.Get("Ce-Id"), r.header.Get("Penstock-Compaction-Id")
			require.NotEmpty(t, event)
			if was, ok := compaction[event]; ok {
				require.Equal(t, was, id, "%s under one compaction id on every attempt", event)
			}
			compaction[event] = id
			if r.status == 200 {
				delivered[event]++
			}
		}
	}
	require.Len(t, delivered, 1010)
	for id, n := range delivered {
		require.Equal(t, 1, n, "%s was delivered %d times without any failure in between", id, n)
	}
	// Nobody needs them any more: the log and the state let them go.
	eventually(t, 30*time.Second, "nothing is carried any more", func() error {
		_, answer := g.leader().do("GET", "/metrics", "", nil)
		if !strings.Contains(answer, "\npenstock_retention_carried_events 0\n") {
			return fmt.Errorf("still carried")
		}
		return nil
	})
}

// TestTheLogKeepsToItsBound: at wal.max_bytes what retention.keep holds goes first, without a refusal; then new events are
// refused with 507; and when what was pending is delivered the log goes, though no event comes that would make a snapshot due.
func TestTheLogKeepsToItsBound(t *testing.T) {
	const most = 32 * mib
	g := startGroup(t, options{segmentBytes: "1MiB", snapshotBytes: "2MiB", maxBytes: "32MiB"})
	c := g.client()
	ctx := context.Background()
	hook := startReceiver(t)
	hook.answer(503)
	_, err := c.PutChannel(ctx, "kept", channelSpec("kept", `"retention":{"keep":"24h"}`, ""), client.PutOptions{})
	require.NoError(t, err)
	_, err = c.PutChannel(ctx, "stuck", channelSpec("stuck", "", webhookEmitter("hook", hook.url(), `"retry":{"ttl":"24h","backoff":{"min":"200ms","max":"1s"}}`)), client.PutOptions{})
	require.NoError(t, err)
	event := func(n int) []byte {
		raw := make([]byte, 48<<10)
		chance := rand.NewPCG(uint64(n), 3)
		for i := range raw {
			raw[i] = byte(chance.Uint64())
		}
		return fmt.Appendf(nil, `{"specversion":"1.0","id":"big-%d","source":"/e2e","type":"t","data":%q}`, n, base64.StdEncoding.EncodeToString(raw))
	}
	// Kept events: more than the log may hold, at a pace that it can yield at.
	total, sent, refused := scale(t, 400, 96)*mib, 0, 0
	for n := 0; sent < total; n++ {
		body := event(n)
		status, answer := g.nodes[n%3].post("/v1/channels/kept/events", "application/cloudevents+json", body)
		switch status {
		case 200:
			sent += len(body)
		case 507:
			refused++
			time.Sleep(100 * time.Millisecond)
		case 503, 504: // no leader for a moment; the id is the same when it is sent again
			time.Sleep(100 * time.Millisecond)
			n--
		default:
			require.FailNow(t, "kept event", "%d %s", status, answer)
		}
	}
	t.Logf("%d MiB of kept events, %d refusals", sent/mib, refused)
	for _, p := range g.nodes {
		require.Less(t, dirSize(t, filepath.Join(p.dir, "wal")), int64(most+8*mib), "%s: the bound, and spares", p.id)
	}
	first := tailAll(t, g.leader(), "kept")[0].pos.Index
	require.Greater(t, first, uint64(100), "the oldest went")

	// Pending events: they stay, and so the bound is reached.
	acked := map[string]bool{}
	eventually(t, 120*time.Second, "a refusal", func() error {
		for {
			n := 10_000 + len(acked)
			switch status, answer := g.nodes[n%3].post("/v1/channels/stuck/events", "application/cloudevents+json", event(n)); status {
			case 200:
				acked[fmt.Sprintf("big-%d", n)] = true
			case 507:
				require.Contains(t, answer, "wal.max_bytes")
				return nil
			default:
				return fmt.Errorf("%d %s", status, answer)
			}
		}
	})
	for _, p := range g.nodes {
		require.Less(t, dirSize(t, filepath.Join(p.dir, "wal")), int64(most+8*mib), "%s: the bound, and spares", p.id)
	}
	hook.answer(200)
	waitDelivered(t, c, "stuck", 120*time.Second)
	eventually(t, 60*time.Second, "events are taken again", func() error {
		for i, p := range g.nodes {
			if status, answer := p.post("/v1/channels/kept/events", "application/cloudevents+json", event(20_000+i)); status != 200 {
				return fmt.Errorf("%d %s", status, answer)
			}
		}
		return nil
	})
	delivered := map[string]bool{}
	for _, r := range hook.all() {
		if r.status == 200 {
			delivered[r.header.Get("Ce-Id")] = true
		}
	}
	require.Equal(t, acked, delivered)
	waitApplied(t, g)
}
