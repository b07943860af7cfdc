package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// TestB29S18KilledWhileLogGoesANodeAlwaysStarts is B29 and S18: a node is killed at random times while segments are removed and
// snapshots taken under load, 200 times (scaled without PENSTOCK_FULL=1). Each start is ready in time, nothing acknowledged is
// lost, no entry is applied twice on any node (equal state hashes), and no more is sent twice than was in flight at the kills.
// At the end the oldest segment of a node is deleted by hand: it is had back from the others.
func TestB29S18KilledWhileLogGoesANodeAlwaysStarts(t *testing.T) {
	rounds := scale(t, 200, 8)
	g := startGroup(t, options{segmentBytes: "1MiB", snapshotBytes: "1MiB"})
	c := g.client()
	ctx := context.Background()
	_, err := c.PutChannel(ctx, "cut", channelSpec("cut", `"retention":{"keep":"2s"}`, fileEmitter("files", "out", `"compaction":{"events":200,"linger":"200ms"}`)), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "cut", g.addresses(), 4, 100)
	w.waitAcks(5000, 60*time.Second)
	var starts []time.Duration
	for i := range rounds {
		p := g.nodes[rand.IntN(len(g.nodes))]
		time.Sleep(time.Duration(rand.IntN(700)) * time.Millisecond) // the moment of the kill is what is drawn
		p.kill()
		began := time.Now()
		p.start()
		p.waitReady(30 * time.Second)
		starts = append(starts, time.Since(began))
		if i%20 == 19 {
			before := w.count()
			w.waitAcks(before+1000, 60*time.Second)
		}
	}
	acked := w.halt()
	t.Logf("%d acknowledged events; starts %v at most", len(acked), slices.Max(starts).Round(time.Millisecond))
	waitDelivered(t, c, "cut", 60*time.Second)
	waitApplied(t, g)
	ids := deliveredFiles(t, g, "out")
	for id := range acked {
		require.Positive(t, ids[id], "%s was acknowledged and not delivered", id)
	}
	s, err := g.leader().client().Cluster(ctx)
	require.NoError(t, err)
	require.Greater(t, s.FirstIndex, uint64(1), "log went")

	victim := g.follower()
	require.Equal(t, 0, victim.term(20*time.Second))
	segments, err := filepath.Glob(filepath.Join(victim.dir, "wal", "wal-*"))
	require.NoError(t, err)
	require.NotEmpty(t, segments)
	slices.Sort(segments)
	if len(segments) > 1 {
		require.NoError(t, os.Remove(segments[0]))
	}
	victim.start()
	victim.waitReady(60 * time.Second)
	waitApplied(t, g)
}

// TestB38AFollowerThatWasAwayCatchesUp is B38: a follower is away while far more is written than the log keeps, and comes back
// under full load, with snapshots in quick succession and little trailing log. It catches up with at most two installations,
// and those that write do not notice.
func TestB38AFollowerThatWasAwayCatchesUp(t *testing.T) {
	away := scale(t, 60_000, 3000)
	g := startGroup(t, options{segmentBytes: "1MiB", snapshotBytes: "1MiB", trailing: 16})
	c := g.client()
	ctx := context.Background()
	_, err := c.PutChannel(ctx, "away", channelSpec("away", `"retention":{"keep":"0s"}`, fileEmitter("files", "out", "")), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "away", g.addresses(), 4, 100)
	w.waitAcks(2000, 60*time.Second)
	victim := g.follower()
	last, err := victim.client().Cluster(ctx)
	require.NoError(t, err)
	victim.kill()
	w.waitAcks(w.count()+away, 300*time.Second)
	eventually(t, 60*time.Second, "the log no longer reaches back to it", func() error {
		s, err := g.leader().client().Cluster(ctx)
		if err == nil && s.FirstIndex <= last.AppliedIndex {
			err = fmt.Errorf("it begins at %d, the follower ended at %d", s.FirstIndex, last.AppliedIndex)
		}
		return err
	})
	began := time.Now()
	victim.start()
	victim.waitReady(60 * time.Second)
	w.waitAcks(w.count()+1000, 60*time.Second) // the load goes on
	acked := w.halt()
	waitDelivered(t, c, "away", 60*time.Second)
	waitApplied(t, g)
	t.Logf("back after %v with %d installations; %d events", time.Since(began).Round(time.Millisecond), installs(t, victim), len(acked))
	require.LessOrEqual(t, installs(t, victim), 2)
	require.GreaterOrEqual(t, installs(t, victim), 1)
	ids := deliveredFiles(t, g, "out")
	for id := range acked {
		require.Positive(t, ids[id], "%s", id)
	}
}

// TestB58ARestartWithALargeBacklogTakesLittleMemory is B58: with 2 GiB pending (scaled without PENSTOCK_FULL=1) a node is ready
// within 60 s of a restart and under 512 MiB, and takes events while the backlog drains.
func TestB58ARestartWithALargeBacklogTakesLittleMemory(t *testing.T) {
	total := scale(t, 2048, 64) * mib
	g := startGroup(t, options{segmentBytes: "8MiB", snapshotBytes: "16MiB"})
	c := g.client()
	ctx := context.Background()
	hook := startReceiver(t)
	hook.answer(503)
	_, err := c.PutChannel(ctx, "backlog", channelSpec("backlog", `"retention":{"keep":"0s"}`,
		webhookEmitter("hook", hook.url(), `"retry":{"ttl":"24h","backoff":{"min":"200ms","max":"1s"}}`)), client.PutOptions{})
	require.NoError(t, err)
	bulk(t, g.addresses(), "backlog", total)
	waitApplied(t, g)
	for _, p := range g.nodes {
		p.kill()
	}
	began := time.Now()
	for _, p := range g.nodes {
		p.start()
	}
	for _, p := range g.nodes {
		p.waitReady(60 * time.Second)
	}
	ready := time.Since(began)
	hook.answer(200)
	sendByID(t, c, "backlog", batch("after", 0, 10))
	var most int64
	drained := func() error {
		for _, p := range g.nodes {
			_, anon, _ := p.memoryOf()
			most = max(most, anon)
		}
		l, err := c.Ledger(ctx, "backlog")
		if err != nil {
			return err
		}
		if n := l.Emitters[0].Pending; n > 0 {
			return fmt.Errorf("%d pending", n)
		}
		return nil
	}
	eventually(t, 300*time.Second, "the backlog drains", drained)
	t.Logf("all ready in %v; at most %d MiB of a node's memory were not of files", ready.Round(time.Millisecond), most>>20)
	require.Less(t, most, int64(512*mib))
}
