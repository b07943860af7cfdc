package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// TestLeaderKilledFiveTimes: SIGKILL of the leader under load, five times. Acked is stored, nothing is shown twice, all
// nodes show the same and have the same state, the ledger balances, and each failover takes under 3 s.
func TestLeaderKilledFiveTimes(t *testing.T) {
	g := startGroup(t, options{})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "load", channelSpec("load", "", fileEmitter("files", "out", `"compaction":{"events":100,"bytes":"1MiB","linger":"100ms"}`)), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "load", g.addresses(), 4, 5)
	w.waitAcks(200, 10*time.Second)
	var took []time.Duration
	for range 5 {
		leader := g.leader()
		leader.kill()
		killed := time.Now()
		eventually(t, 3*time.Second, "an ack by a new leader", func() error {
			if w.lastAck.Load() > killed.UnixNano()+int64(20*time.Millisecond) {
				return nil
			}
			return context.DeadlineExceeded
		})
		took = append(took, time.Unix(0, w.lastAck.Load()).Sub(killed).Round(time.Millisecond))
		leader.start()
		restarted := time.Now()
		leader.waitReady(20 * time.Second)
		t.Logf("killed leader %s ready again after %s", leader.id, time.Since(restarted).Round(time.Millisecond))
		w.waitAcks(100, 10*time.Second)
	}
	t.Logf("from kill to next ack: %v (median %v)", took, median(took))
	acked := w.halt()
	halted := time.Now()
	waitDelivered(t, c, "load", 40*time.Second)
	t.Logf("all delivered %s after the last event", time.Since(halted).Round(time.Millisecond))
	stored := checkStored(t, g, "load", acked)
	ids := deliveredFiles(t, g, "out")
	require.Len(t, ids, len(stored), "each stored event is in exactly one file by name")
	t.Logf("%d acknowledged, %d stored, %d unknown outcomes repeated", len(acked), len(stored), w.unknown.Load())
}

func median(d []time.Duration) time.Duration {
	s := slices.Clone(d)
	slices.Sort(s)
	return s[len(s)/2]
}

// TestAllKilledAtOnce: SIGKILL of all three under load, restart, the same.
func TestAllKilledAtOnce(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "load", channelSpec("load", "", fileEmitter("files", "out", "")), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "load", g.addresses(), 4, 5)
	for range 2 {
		w.waitAcks(300, 20*time.Second)
		for _, p := range g.nodes {
			p.signal(syscall.SIGKILL)
		}
		for _, p := range g.nodes {
			p.exit(5 * time.Second)
		}
		for _, p := range g.nodes {
			p.start()
		}
		for _, p := range g.nodes {
			p.waitReady(20 * time.Second)
		}
	}
	w.waitAcks(100, 20*time.Second)
	acked := w.halt()
	waitDelivered(t, c, "load", 40*time.Second)
	stored := checkStored(t, g, "load", acked)
	require.Len(t, deliveredFiles(t, g, "out"), len(stored))
}

// TestWithoutQuorumNothingIsAcknowledged: no request gets a 2xx, and each has its answer within its deadline.
func TestWithoutQuorumNothingIsAcknowledged(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	_, err := g.client().PutChannel(context.Background(), "quiet", channelSpec("quiet", ""), client.PutOptions{})
	require.NoError(t, err)
	survivor := g.leader()
	for _, p := range g.nodes {
		if p != survivor {
			p.kill()
		}
	}
	for i := range 5 {
		start := time.Now()
		status, answer := survivor.post("/v1/channels/quiet/events?timeout=2s", batchType, batch("none", i, 1))
		require.Contains(t, []int{503, 504}, status, "no quorum, no 2xx: %s", answer)
		require.Less(t, time.Since(start), 4*time.Second, "an answer within the deadline")
	}
	require.Error(t, survivor.client().Ready(context.Background()), "not ready without a quorum")
}

// TestWipedMajorityIsRefused: two of three disks wiped and all restarted must never form a fresh cluster.
func TestWipedMajorityIsRefused(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "kept", channelSpec("kept", ""), client.PutOptions{})
	require.NoError(t, err)
	_, err = c.Send(context.Background(), "kept", batch("kept", 0, 10), batchType, client.SendOptions{})
	require.NoError(t, err)
	before, err := g.nodes[0].client().Cluster(context.Background())
	require.NoError(t, err)
	for _, p := range g.nodes {
		p.kill()
	}
	for _, p := range g.nodes[1:] {
		require.NoError(t, os.RemoveAll(p.dir))
	}
	for _, p := range g.nodes {
		p.start()
	}
	for _, p := range g.nodes[1:] {
		require.Equal(t, 11, p.exit(15*time.Second), "a wiped node is refused: %s", tailOf(p.logTo, 2000))
		require.Contains(t, tailOf(p.logTo, 4000), "wiped")
	}
	require.Error(t, g.nodes[0].client().Ready(context.Background()))
	after, err := g.nodes[0].client().Cluster(context.Background())
	require.NoError(t, err)
	require.Equal(t, before.ClusterID, after.ClusterID)
	require.Empty(t, after.Leader)
}

// TestKilledSourceResumes: a source killed in mid-file goes on where its committed offset says: no gap, no repeat.
func TestKilledSourceResumes(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "lines", channelSpec("lines", ""), client.PutOptions{})
	require.NoError(t, err)
	const lines = 60_000
	file, want := ndjsonFile(t, lines)
	args := []string{"--addr", strings.Join(g.addresses(), ","), "send", "lines", "--source", "orders.ndjson", "--partition", "0", file}
	interrupted := 0
	for range 4 {
		cmd := command(args...)
		require.NoError(t, cmd.Start())
		eventually(t, 20*time.Second, "some lines committed", func() error {
			return atLeastAccepted(c, "lines", uint64((interrupted+1)*5000))
		})
		if cmd.Process.Kill() == nil {
			interrupted++
		}
		_ = cmd.Wait()
	}
	require.Equal(t, 4, interrupted)
	runPenstock(t, 0, "", args...)
	got := tailAll(t, g.nodes[0], "lines")
	require.Len(t, got, lines)
	for i, s := range got {
		require.Contains(t, s.raw, want(i), "line %d", i)
	}
	l, err := c.Ledger(context.Background(), "lines")
	require.NoError(t, err)
	require.EqualValues(t, lines, l.Accepted)
}

// TestClusterOfOneSurvivesSIGKILL: wal.storage disk takes events, survives, and delivers all.
func TestClusterOfOneSurvivesSIGKILL(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{nodes: 1, single: true})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "one", channelSpec("one", "", fileEmitter("files", "out", "")), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "one", g.addresses(), 2, 5)
	for range 3 {
		w.waitAcks(100, 10*time.Second)
		g.nodes[0].kill()
		g.nodes[0].start()
		g.nodes[0].waitReady(10 * time.Second)
	}
	acked := w.halt()
	waitDelivered(t, c, "one", 20*time.Second)
	stored := checkStored(t, g, "one", acked)
	require.Len(t, deliveredFiles(t, g, "out"), len(stored))
}

// TestFailedDrainExits14AndTheNextStartReplays: a drain that cannot commit what it knows says so and loses nothing.
func TestFailedDrainExits14AndTheNextStartReplays(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{drain: "3s"})
	c := g.client()
	hook := startReceiver(t)
	release := hook.hold()
	defer release()
	_, err := c.PutChannel(context.Background(), "drained", channelSpec("drained", "", webhookEmitter("hook", hook.url(), "")), client.PutOptions{})
	require.NoError(t, err)
	waitOwned(t, c, "drained")
	w := startWriters(t, "drained", g.addresses(), 4, 5)
	w.waitAcks(200, 10*time.Second)
	l, err := c.Ledger(context.Background(), "drained")
	require.NoError(t, err)
	owner := g.byID(l.Emitters[0].Owner)
	require.NotNil(t, owner)
	eventually(t, 5*time.Second, "an attempt under way", func() error {
		if hook.count() == 0 {
			return errors.New("none")
		}
		return nil
	})
	// The quorum goes while attempts are under way, then they succeed: the owner knows outcomes that it cannot commit.
	for _, p := range g.nodes {
		if p != owner {
			p.signal(syscall.SIGSTOP)
		}
	}
	release()
	time.Sleep(100 * time.Millisecond) // the answers arrive; the owner's lease still runs
	require.Equal(t, 14, owner.term(8*time.Second), "%s", tailOf(owner.logTo, 3000))
	require.NoFileExists(t, owner.dir+"/clean-stop")
	for _, p := range g.nodes {
		if p != owner {
			p.signal(syscall.SIGCONT)
		}
	}
	owner.start()
	owner.waitReady(20 * time.Second)
	require.Contains(t, tailOf(owner.logTo, 20000), `"unclean":true`)
	w.waitAcks(50, 10*time.Second)
	acked := w.halt()
	waitDelivered(t, c, "drained", 30*time.Second)
	checkStored(t, g, "drained", acked)
}

// TestCleanStopLeavesItsMarker: SIGTERM drains, hands over leadership, exits 0, and the next start counts as clean.
func TestCleanStopLeavesItsMarker(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "clean", channelSpec("clean", "", fileEmitter("files", "out", "")), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "clean", g.addresses(), 2, 5)
	w.waitAcks(100, 10*time.Second)
	leader := g.leader()
	require.Equal(t, 0, leader.term(12*time.Second), "%s", tailOf(leader.logTo, 3000))
	require.FileExists(t, leader.dir+"/clean-stop")
	w.waitAcks(50, 5*time.Second)
	leader.start()
	leader.waitReady(20 * time.Second)
	require.Contains(t, tailOf(leader.logTo, 20000), `"unclean":false`)
	require.NoFileExists(t, leader.dir+"/clean-stop")
	acked := w.halt()
	waitDelivered(t, c, "clean", 30*time.Second)
	checkStored(t, g, "clean", acked)
}

// TestKilledOwnerNeverShortensAFile: large compactions under full load, SIGKILL of the owner. After its restart the state
// machine applies again what was committed; an owner that sent from the state in between would write files anew with a part
// of what they held, under the same id. Every acknowledged event is in the files, and a file that stood keeps its bytes.
func TestKilledOwnerNeverShortensAFile(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{nodes: 1, single: true})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "files", channelSpec("files", "", fileEmitter("files", "out", `"start":"earliest","compaction":{"events":1000,"linger":"200ms"}`)), client.PutOptions{})
	require.NoError(t, err)
	// Small requests: a compaction of a thousand events lies over hundreds of entries.
	w := startWriters(t, "files", g.addresses(), 8, 5)
	before := map[string]int64{}
	for range scale(t, 10, 4) {
		w.waitAcks(12_000, 30*time.Second)
		g.nodes[0].kill()
		for name, size := range fileSizes(t, g.nodes[0], "out") {
			if old, ok := before[name]; ok {
				require.Equal(t, old, size, "%s keeps its bytes", name)
			}
			before[name] = size
		}
		g.nodes[0].start()
		g.nodes[0].waitReady(10 * time.Second)
	}
	acked := w.halt()
	waitDelivered(t, c, "files", 30*time.Second)
	after := fileSizes(t, g.nodes[0], "out")
	for name, size := range before {
		require.Equal(t, size, after[name], "%s keeps its bytes", name)
	}
	ids := deliveredFiles(t, g, "out")
	missing := 0
	for id := range acked {
		if ids[id] == 0 {
			missing++
		}
	}
	require.Zero(t, missing, "of %d acknowledged and delivered events are in no file", len(acked))
	t.Logf("%d acknowledged, %d files", len(acked), len(after))
}

func fileSizes(t *testing.T, p *proc, dir string) map[string]int64 {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(p.dir, dir, "*.ndjson"))
	require.NoError(t, err)
	sizes := map[string]int64{}
	for _, path := range paths {
		info, err := os.Stat(path)
		require.NoError(t, err)
		sizes[filepath.Base(path)] = info.Size()
	}
	return sizes
}
