package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// TestFlippedBitsAreRepairedOrRefused: under load, one node after the other is killed, one bit of one of its files is flipped, and it is started
// again: a follower's and the leader's sealed and active segment, a snapshot, the checkpoint, the stable store. It comes back by itself with the
// damage repaired, but for the stable store, which is refused (exit code 10). Nothing that was acknowledged is lost, and all logs are whole at the
// end.
func TestFlippedBitsAreRepairedOrRefused(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{segmentBytes: "1MiB", trailing: 16})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "load", channelSpec("load", "", fileEmitter("files", "out", `"compaction":{"events":100,"bytes":"1MiB","linger":"100ms"}`)), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "load", g.addresses(), 4, 5)
	sealedUnderLoad(t, g, w)

	for round := range scale(t, 10, 1) {
		for _, leads := range []bool{false, true} {
			for what, pick := range map[string]func(*testing.T, *proc, int) (string, int64){"sealed segment": sealedBit, "active segment": activeBit} {
				victim := g.follower()
				if leads {
					victim = g.leader()
				}
				name := fmt.Sprintf("%s of %s (leader: %v)", what, victim.id, leads)
				before := lastIndexOf(t, victim)
				victim.kill()
				path, at := pick(t, victim, round)
				flipBit(t, path, at)
				began := time.Now()
				victim.start()
				victim.waitReady(40 * time.Second)
				require.GreaterOrEqual(t, lastIndexOf(t, victim), before, name)
				requireLogged(t, victim, "log is damaged", name)
				t.Logf("%s, %s byte %d: ready after %s", name, filepath.Base(path), at, time.Since(began).Round(time.Millisecond))
				w.waitAcks(100, 20*time.Second)
			}
		}
		t.Run("snapshot", func(t *testing.T) { flipSnapshot(t, g, w) })
		t.Run("checkpoint", func(t *testing.T) { flipCheckpoint(t, g, w) })
		t.Run("stable store", func(t *testing.T) { flipStable(t, g, w) })
	}
	acked := w.halt()
	waitDelivered(t, c, "load", 60*time.Second)
	checkStored(t, g, "load", acked)
	t.Logf("%d acknowledged, none lost", len(acked))
	for _, p := range g.nodes {
		require.Equal(t, 0, p.term(15*time.Second), "%s", tailOf(p.logTo, 2000))
		runPenstock(t, 0, "", "wal", "verify", p.dir)
	}
}

// TestRottenSegmentIsRepairedWhileItRuns: bits of a sealed segment of a running follower and leader are flipped, and what reads the log meets
// them: the entries come back from the others without a restart. A scrub each second stands for the daily one.
func TestRottenSegmentIsRepairedWhileItRuns(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{segmentBytes: "1MiB", trailing: 16, env: []string{"PENSTOCK_WAL_SCRUB=1s"}})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "load", channelSpec("load", `"retention":{"keep":"1h"}`), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "load", g.addresses(), 4, 5)
	sealedUnderLoad(t, g, w)
	for _, victim := range []*proc{g.follower(), g.leader()} {
		path, at := sealedBit(t, victim, 0)
		flipBit(t, path, at)
		eventually(t, 30*time.Second, victim.id+" repairs it", func() error {
			if !strings.Contains(tailOf(victim.logTo, 1<<20), "log segment repaired") {
				return fmt.Errorf("nothing repaired yet")
			}
			return nil
		})
		w.waitAcks(100, 20*time.Second)
	}
	checkStored(t, g, "load", w.halt())
	for _, p := range g.nodes {
		require.Equal(t, 0, p.term(15*time.Second), "%s", tailOf(p.logTo, 2000))
		runPenstock(t, 0, "", "wal", "verify", p.dir)
	}
}

// TestDamagedClusterOfOneIsRefused: there is no other copy. It says so with exit code 3, shortens nothing, and starts once the bit is put right.
func TestDamagedClusterOfOneIsRefused(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{nodes: 1, single: true})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "one", channelSpec("one", ""), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "one", g.addresses(), 2, 5)
	w.waitAcks(200, 20*time.Second)
	acked := w.halt()
	p := g.nodes[0]
	p.kill()
	path, at := activeBit(t, p, 0)
	flipBit(t, path, at)
	for range 2 {
		p.start()
		require.Equal(t, 3, p.exit(15*time.Second), "%s", tailOf(p.logTo, 2000))
		requireLogged(t, p, "a cluster of one has no other copy", "the reason")
	}
	flipBit(t, path, at)
	p.start()
	p.waitReady(20 * time.Second)
	checkStored(t, g, "one", acked)
}

// sealedUnderLoad waits until every node has sealed segments.
func sealedUnderLoad(t *testing.T, g *group, w *writers) {
	t.Helper()
	eventually(t, 60*time.Second, "sealed segments on every node", func() error {
		for _, p := range g.nodes {
			if n := len(segments(t, p)); n < 3 {
				return fmt.Errorf("%s has %d segments, %d acks", p.id, n, w.count())
			}
		}
		return nil
	})
}

// segments are the files of the log, oldest first.
func segments(t *testing.T, p *proc) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(p.dir, "wal", "wal-*.seg"))
	require.NoError(t, err)
	slices.Sort(paths)
	return paths
}

// sealedBit is a byte amid the newest sealed segment, activeBit one near the end of what was written into the active one.
func sealedBit(t *testing.T, p *proc, round int) (path string, at int64) {
	t.Helper()
	paths := segments(t, p)
	require.Greater(t, len(paths), 1)
	path = paths[len(paths)-2]
	return path, writtenTo(t, path)/2 + int64(round*97)
}

func activeBit(t *testing.T, p *proc, round int) (path string, at int64) {
	t.Helper()
	paths := segments(t, p)
	path = paths[len(paths)-1]
	end := writtenTo(t, path)
	if end <= 2*4096 && len(paths) > 1 { // just begun: the batch that it was begun for may be torn
		return sealedBit(t, p, round)
	}
	// Behind the header of the last block but one: an acknowledged batch, and below what a crash may have torn.
	return path, max(4096+100, end-2*4096+100+int64(round%300))
}

// writtenTo is the end of the last block that is not zero. (These segments are not recycled yet.)
func writtenTo(t *testing.T, path string) int64 {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	end := len(bytes.TrimRight(b, "\x00"))
	require.Positive(t, end, path)
	return int64((end + 4095) / 4096 * 4096)
}

func flipBit(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	require.NoError(t, err)
	b[0] ^= 0x10
	_, err = f.WriteAt(b[:], at)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
}

func lastIndexOf(t *testing.T, p *proc) uint64 {
	t.Helper()
	s, err := p.client().Cluster(context.Background())
	require.NoError(t, err)
	return s.LastIndex
}

func requireLogged(t *testing.T, p *proc, what, msg string) {
	t.Helper()
	f, err := os.Open(p.logTo)
	require.NoError(t, err)
	defer f.Close()
	b, err := io.ReadAll(f)
	require.NoError(t, err)
	require.Contains(t, string(b), what, msg)
}

func flipSnapshot(t *testing.T, g *group, w *writers) {
	victim := g.follower()
	victim.snapshot()
	w.waitAcks(20, 20*time.Second)
	victim.snapshot()
	victim.kill()
	paths, err := filepath.Glob(filepath.Join(victim.dir, "snapshots", "*.snap"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	slices.Sort(paths)
	newest := paths[len(paths)-1]
	flipBit(t, newest, 100)
	victim.start()
	victim.waitReady(40 * time.Second)
	require.FileExists(t, newest+".damaged", "kept, not deleted")
	w.waitAcks(50, 20*time.Second)
	// All of them: what the state was made from is gone, and another node gives it.
	victim.kill()
	paths, err = filepath.Glob(filepath.Join(victim.dir, "snapshots", "*.snap"))
	require.NoError(t, err)
	for _, path := range paths {
		flipBit(t, path, 100)
	}
	require.NoError(t, os.Remove(filepath.Join(victim.dir, "fsm.db")))
	victim.start()
	victim.waitReady(40 * time.Second)
	w.waitAcks(50, 20*time.Second)
}

func flipCheckpoint(t *testing.T, g *group, w *writers) {
	victim := g.follower()
	require.Equal(t, 0, victim.term(15*time.Second), "a checkpoint is written at a clean stop")
	path := filepath.Join(victim.dir, "fsm.db")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	for page := int64(2); page < int64(len(b))/4096; page++ { // all of them: a page may be free
		flipBit(t, path, page*4096+8)
	}
	victim.start()
	victim.waitReady(40 * time.Second)
	kept, err := filepath.Glob(path + ".damaged-*")
	require.NoError(t, err)
	require.NotEmpty(t, kept, "kept apart, and made again")
	w.waitAcks(50, 20*time.Second)
}

func flipStable(t *testing.T, g *group, w *writers) {
	for _, at := range []int64{16 + 48, 4096 + 16 + 48} { // the transaction number of either root: bbolt alone would take the other one
		victim := g.follower()
		victim.kill()
		path := filepath.Join(victim.dir, "stable.db")
		flipBit(t, path, at)
		victim.start()
		require.Equal(t, 10, victim.exit(15*time.Second), "%s", tailOf(victim.logTo, 2000))
		requireLogged(t, victim, "it holds this node's vote", "the reason and the remedy")
		w.waitAcks(50, 20*time.Second)
		flipBit(t, path, at)
		victim.start()
		victim.waitReady(40 * time.Second)
	}
}
