package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// memoryOf reads what the kernel says of a process: resident now, the part of it that is no file, and the most it ever was.
func (p *proc) memoryOf() (rss, anon, peak int64) {
	p.g.t.Helper()
	p.mu.Lock()
	pid := p.cmd.Process.Pid
	p.mu.Unlock()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(p.g.t, err)
	for line := range strings.SplitSeq(string(b), "\n") {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			rss = n << 10
		case "RssAnon:":
			anon = n << 10
		case "VmHWM:":
			peak = n << 10
		}
	}
	return rss, anon, peak
}

// small is a batch of n tiny events, each with a producer id of its own.
func small(buf *bytes.Buffer, writer, first, n int) []byte {
	buf.Reset()
	buf.WriteByte('[')
	for i := range n {
		if i > 0 {
			buf.WriteByte(',')
		}
		fmt.Fprintf(buf, `{"specversion":"1.0","id":"%d-%d","source":"/g","type":"t","data":1}`, writer, first+i)
	}
	buf.WriteByte(']')
	return buf.Bytes()
}

// TestAMillionPendingEventsAreNoWeight is shows 9 of the log for a whole node: with 10 million events pending (scaled without
// PENSTOCK_FULL=1), each with a producer id that is remembered, every node is ready within 10 s of its start, after a kill as
// after a stop, and under 1 GiB of memory; and it takes new events while it does.
func TestAMillionPendingEventsAreNoWeight(t *testing.T) {
	total := scale(t, 10_000_000, 200_000)
	g := startGroup(t, options{segmentBytes: "64MiB", snapshotBytes: "128MiB"})
	ctx := context.Background()
	_, err := g.client().PutChannel(ctx, "many", channelSpec("many",
		`"dedup":{"window":"1h","max_keys":20000000},"retention":{"keep":"0s","max_unresolved":"100GiB"}`,
		webhookEmitter("hook", "http://127.0.0.1:1/", `"retry":{"ttl":"24h","backoff":{"min":"1s","max":"5s"}}`)), client.PutOptions{})
	require.NoError(t, err)
	began := time.Now()
	const batch, writers = 1000, 4
	var next atomic.Int64
	var wg sync.WaitGroup
	for w := range writers {
		c := newClient(t, g.addresses()...)
		wg.Go(func() {
			var buf bytes.Buffer
			for n := int(next.Add(1)); n*batch <= total; n = int(next.Add(1)) {
				body := slices.Clone(small(&buf, w, n*batch, batch))
				eventually(t, 60*time.Second, "an ack", func() error {
					_, err := c.Send(ctx, "many", body, batchType, client.SendOptions{})
					return err
				})
			}
		})
	}
	wg.Wait()
	t.Logf("%d events in %v", total, time.Since(began).Round(time.Second))
	waitApplied(t, g)
	limit := int64(1 << 30)
	for _, p := range g.nodes {
		rss, anon, peak := p.memoryOf()
		t.Logf("%s with %d pending: %d MiB resident, %d MiB of it not of files, at most %d MiB", p.id, total, rss>>20, anon>>20, peak>>20)
		require.Less(t, anon, limit)
	}
	for _, stop := range []func(p *proc){func(p *proc) { p.kill() }, func(p *proc) { p.term(40 * time.Second) }} {
		victim := g.follower()
		stop(victim)
		began := time.Now()
		victim.start()
		victim.waitReady(120 * time.Second)
		took := time.Since(began)
		rss, anon, peak := victim.memoryOf()
		t.Logf("%s ready in %v: %d MiB resident, %d MiB of it not of files, at most %d MiB", victim.id, took.Round(time.Millisecond), rss>>20, anon>>20, peak>>20)
		require.Less(t, took, 10*time.Second)
		require.Less(t, anon, limit)
		status, answer := victim.post("/v1/channels/many/events", batchType, small(&bytes.Buffer{}, 9, int(took), 1))
		require.Equal(t, http.StatusOK, status, answer)
	}
	waitApplied(t, g)
}

// TestMemoryIsFlatUnderFullLoad: over 10 minutes of full load (scaled without PENSTOCK_FULL=1) no node's memory grows: the median
// of the last third is at most a fifth above that of the second third. Keys expire, deliveries are made, log goes.
func TestMemoryIsFlatUnderFullLoad(t *testing.T) {
	minutes := scale(t, 600, 12) // seconds
	g := startGroup(t, options{segmentBytes: "8MiB", snapshotBytes: "16MiB"})
	ctx := context.Background()
	window := fmt.Sprintf("%ds", max(minutes/10, 1))
	_, err := g.client().PutChannel(ctx, "flat", channelSpec("flat",
		`"dedup":{"window":"`+window+`"},"retention":{"keep":"0s"}`, fileEmitter("files", "out", "")), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "flat", g.addresses(), 8, 100)
	samples := map[string][]int64{}
	for range 60 {
		time.Sleep(time.Duration(minutes) * time.Second / 60)
		for _, p := range g.nodes {
			_, anon, _ := p.memoryOf()
			samples[p.id] = append(samples[p.id], anon)
		}
	}
	w.halt()
	waitDelivered(t, g.client(), "flat", 120*time.Second)
	for id, all := range samples {
		second, last := slices.Sorted(slices.Values(all[20:40])), slices.Sorted(slices.Values(all[40:60]))
		t.Logf("%s: median of the second third %d MiB, of the last %d MiB; %d acks", id, second[10]>>20, last[10]>>20, w.count())
		require.Less(t, last[10], max(second[10]*12/10, second[10]+64<<20))
	}
	waitApplied(t, g)
}
