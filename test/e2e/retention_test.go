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
