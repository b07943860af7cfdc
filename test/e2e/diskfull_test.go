package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// onSmallDisk gives a node a file system of its own, of so many MiB. The test is skipped where that cannot be.
func (p *proc) onSmallDisk(size int) {
	p.g.t.Helper()
	for _, dir := range []string{p.dir, p.dlq} {
		require.NoError(p.g.t, os.MkdirAll(dir, 0o755))
	}
	if err := syscall.Mount("tmpfs", p.dir, "tmpfs", 0, fmt.Sprintf("size=%dm", size)); err != nil {
		p.g.t.Skipf("a small file system cannot be mounted here (as root on Linux it can): %v", err)
	}
	p.g.t.Cleanup(func() {
		p.kill()
		if err := syscall.Unmount(p.dir, syscall.MNT_DETACH); err != nil {
			p.g.t.Errorf("unmount %s: %v", p.dir, err)
		}
	})
}

// fill takes all that is left of the node's disk, as often as something is given back, until nothing more is to be had.
func (p *proc) fill() {
	p.g.t.Helper()
	f, err := os.OpenFile(filepath.Join(p.dir, "filler"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(p.g.t, err)
	defer f.Close()
	block := make([]byte, 64<<10)
	for {
		_, err := f.Write(block)
		if errors.Is(err, syscall.ENOSPC) {
			return
		}
		require.NoError(p.g.t, err)
	}
}

func (p *proc) freeUp() {
	p.g.t.Helper()
	require.NoError(p.g.t, os.Remove(filepath.Join(p.dir, "filler")))
}

// TestB35AFullDiskRefusesEventsAndNothingElse is B35, and item 5 of the log: with the disks of all nodes full to the last byte
// events are refused with 507 before anything fails, outcomes go on being committed, nodes that are killed start again, and
// once there is space everything goes on without a hand on a file. Nothing acknowledged is lost.
func TestB35AFullDiskRefusesEventsAndNothingElse(t *testing.T) {
	g := newGroup(t, options{segmentBytes: "4MiB", snapshotBytes: "8MiB"})
	for _, p := range g.nodes {
		p.onSmallDisk(96)
	}
	for _, p := range g.nodes {
		p.start()
	}
	for _, p := range g.nodes {
		p.waitReady(30 * time.Second)
	}
	c := g.client()
	ctx := context.Background()
	hook := startReceiver(t)
	hook.answer(503)
	_, err := c.PutChannel(ctx, "full", channelSpec("full", `"retention":{"keep":"0s"}`,
		webhookEmitter("hook", hook.url(), `"retry":{"ttl":"24h","backoff":{"min":"200ms","max":"1s"}}`)), client.PutOptions{})
	require.NoError(t, err)
	acked := map[string]bool{}
	send := func(first, n int) {
		t.Helper()
		sendByID(t, c, "full", batch("full", first, n))
		for i := range n {
			acked[fmt.Sprintf("full-%d", first+i)] = true
		}
	}
	pending := scale(t, 10_000, 2000)
	for i := 0; i < pending; i += 100 {
		send(i, 100)
	}
	for _, p := range g.nodes {
		p.fill()
	}
	// Refused everywhere, with the reason, and told in readiness and metrics.
	for _, p := range g.nodes {
		eventually(t, 20*time.Second, p.id+" refuses with 507", func() error {
			status, answer := p.post("/v1/channels/full/events", batchType, batch("full", 1_000_000, 1))
			if status != http.StatusInsufficientStorage || !strings.Contains(answer, "storage-full") {
				return fmt.Errorf("%d %s", status, answer)
			}
			return nil
		})
		status, answer := p.do(http.MethodGet, "/readyz", "", nil)
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Contains(t, answer, "low-water mark")
		_, metrics := p.do(http.MethodGet, "/metrics", "", nil)
		require.Contains(t, metrics, "\npenstock_wal_low_water 1\n")
		p.fill() // what the node gave back of its reserve is taken too
	}
	l, err := c.Ledger(ctx, "full")
	require.NoError(t, err)
	if l.Accepted > uint64(pending) { // the event of the question, before the first refusal
		acked["full-1000000"] = true
		pending++
	}
	require.EqualValues(t, pending, l.Accepted)
	// Delivery goes on, and its outcomes are committed on full disks.
	hook.answer(200)
	resolved := func() uint64 {
		l, err := c.Ledger(ctx, "full")
		require.NoError(t, err)
		require.Len(t, l.Emitters, 1)
		return l.Emitters[0].Delivered
	}
	eventually(t, 60*time.Second, "outcomes on full disks", func() error {
		if n := resolved(); n < uint64(pending) {
			return fmt.Errorf("%d of %d", n, pending)
		}
		return nil
	})
	for _, p := range g.nodes {
		p.mu.Lock()
		done := p.done
		p.mu.Unlock()
		select {
		case <-done:
			require.FailNow(t, "a full disk ended the process", "%s\n%s", p.id, tailOf(p.logTo, 3000))
		default:
		}
	}
	// Killed, they start on a full disk.
	for _, p := range g.nodes {
		p.kill()
		p.start()
	}
	eventually(t, 60*time.Second, "a leader on full disks", func() error {
		_, err := c.Ledger(ctx, "full")
		return err
	})
	require.EqualValues(t, pending, resolved())

	// Once there is space all is well within 30 s, without a hand on a file.
	for _, p := range g.nodes {
		p.freeUp()
	}
	for _, p := range g.nodes {
		p.waitReady(30 * time.Second)
	}
	send(2_000_000, 100)
	waitDelivered(t, c, "full", 30*time.Second)
	delivered := map[string]int{}
	for _, r := range hook.all() {
		if r.status == 200 {
			delivered[r.header.Get("Ce-Id")]++
		}
	}
	for id := range acked {
		require.Positive(t, delivered[id], "%s was acknowledged", id)
	}
	require.Len(t, delivered, len(acked), "what was refused was not taken")
	waitApplied(t, g)
}
