package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// TestB30ATornOrCutEndOfTheLogIsPassed is B30: the last record of a node's log is half written (zeros from some byte on), cut off with the file, or has a
// flipped bit. The node comes back within 30 s with all that was acknowledged, stops on SIGTERM within 10 s, also while it still waits for the others,
// and never loops over the record. (Each byte of it: TestEachTruncationOfALogIsClassified of package wal.)
func TestB30ATornOrCutEndOfTheLogIsPassed(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "torn", channelSpec("torn", ""), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "torn", g.addresses(), 4, 5)
	w.waitAcks(200, 20*time.Second)
	for i := range scale(t, 30, 2) {
		for _, what := range []string{"zeros", "cut", "flipped"} {
			p := g.follower()
			p.kill()
			path, from, end := lastBatch(t, p)
			at := from + 40 + int64(i*131)%(end-from-40)
			switch what {
			case "zeros":
				overwriteWith(t, path, at, make([]byte, end-at))
			case "cut":
				require.NoError(t, os.Truncate(path, at))
			case "flipped":
				flipBit(t, path, at)
			}
			began := time.Now()
			p.start()
			p.waitReady(30 * time.Second)
			t.Logf("%s at byte %d of [%d,%d): ready after %s", what, at, from, end, time.Since(began).Round(time.Millisecond))
			w.waitAcks(30, 20*time.Second)
		}
	}
	acked := w.halt()
	checkStored(t, g, "torn", acked)
	// Alone, with damage that only the others can repair: it waits, says for what, and ends when it is told to.
	for _, p := range g.nodes {
		require.Equal(t, 0, p.term(15*time.Second))
	}
	p := g.nodes[0]
	path, at := activeBit(t, p, 0)
	flipBit(t, path, at)
	p.start()
	eventually(t, 10*time.Second, "it says what it waits for", func() error {
		err := p.client().Ready(context.Background())
		if err == nil || !strings.Contains(err.Error(), "waiting for") {
			return fmt.Errorf("ready: %w", err)
		}
		return nil
	})
	began := time.Now()
	p.term(10 * time.Second)
	t.Logf("ended %s after SIGTERM", time.Since(began).Round(time.Millisecond))
	for _, p := range g.nodes {
		p.start()
	}
	for _, p := range g.nodes {
		p.waitReady(30 * time.Second)
	}
	checkStored(t, g, "torn", acked)
}

// TestB31ZeroedAndEmptyFilesAreRepairedOrRefusedByName is B31: zeros at the end of the log, empty side files, a page of zeros in a key-value store. What can
// be made again is, within 10 s; what holds the node's identity or vote is refused (exit code 10) with the name of the file. Nothing panics, no events of
// length zero appear, and with the file put right the state is that of the others.
func TestB31ZeroedAndEmptyFilesAreRepairedOrRefusedByName(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "zeros", channelSpec("zeros", ""), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "zeros", g.addresses(), 4, 5)
	w.waitAcks(300, 20*time.Second)
	zeroTail := func(size int64) func(*testing.T, *proc) {
		return func(t *testing.T, p *proc) {
			paths := segments(t, p)
			path := paths[len(paths)-1]
			end := writtenTo(t, path)
			at := max(4096, end-size)
			overwriteWith(t, path, at, make([]byte, end-at))
		}
	}
	empty := func(name string) func(*testing.T, *proc) {
		return func(t *testing.T, p *proc) { require.NoError(t, os.Truncate(filepath.Join(p.dir, name), 0)) }
	}
	zeroPages := func(name string) func(*testing.T, *proc) {
		return func(t *testing.T, p *proc) {
			path := filepath.Join(p.dir, name)
			info, err := os.Stat(path)
			require.NoError(t, err)
			overwriteWith(t, path, 2*4096, make([]byte, max(4096, info.Size()-2*4096))) // some pages are free: all of them
		}
	}
	for _, k := range []struct {
		name   string
		damage func(*testing.T, *proc)
		file   string // that is refused by its name; "" when the node comes back by itself
	}{
		{"4 KiB of zeros at the end of the log", zeroTail(4 << 10), ""},
		{"64 KiB of zeros at the end of the log", zeroTail(64 << 10), ""},
		{"the log's mark empty", empty("wal/mark"), ""},
		{"pages of zeros in the checkpoint", zeroPages("fsm.db"), ""},
		{"identity empty", empty("identity"), "identity"},
		{"peers empty", empty("peers"), "peers"},
		{"stable store empty", empty("stable.db"), "stable.db"},
		{"pages of zeros in the stable store", zeroPages("stable.db"), "stable.db"},
	} {
		p := g.follower()
		p.kill()
		var saved []byte
		if k.file != "" {
			saved, err = os.ReadFile(filepath.Join(p.dir, k.file))
			require.NoError(t, err)
		}
		k.damage(t, p)
		p.start()
		if k.file != "" {
			require.Equal(t, 10, p.exit(10*time.Second), "%s: %s", k.name, tailOf(p.logTo, 2000))
			require.Contains(t, tailOf(p.logTo, 3000), filepath.Join(p.dir, k.file), k.name)
			require.NoError(t, os.WriteFile(filepath.Join(p.dir, k.file), saved, 0o600))
			p.start()
		}
		p.waitReady(20 * time.Second)
		require.NotContains(t, tailOf(p.logTo, 1<<20), "panic:", k.name)
		w.waitAcks(30, 20*time.Second)
	}
	acked := w.halt()
	stored := checkStored(t, g, "zeros", acked)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range stored {
		require.True(t, w.mu.sent[s.id], "an event nobody sent: %q", s.id)
	}
}

// TestB32EachAckIsBehindAnFsyncOnAMajority is the second half of B32: between the send of each request and its 200, the log of at least two of three nodes
// completed an fdatasync, as strace saw it. (The first half, unsynced data dropped on all nodes at once: the nemeses power-all and power-some of jepsen.)
func TestB32EachAckIsBehindAnFsyncOnAMajority(t *testing.T) {
	t.Parallel()
	requireStrace(t)
	g := startGroup(t, options{})
	_, err := g.client().PutChannel(context.Background(), "synced", channelSpec("synced", ""), client.PutOptions{})
	require.NoError(t, err)
	var traces []string
	var detach []func()
	for _, p := range g.nodes {
		path, end := straceWith(t, p, "-ttt", "-T", "-y", "-e", "trace=fdatasync")
		traces, detach = append(traces, path), append(detach, end)
	}
	c := g.leader().client()
	type span struct{ from, to time.Time }
	var acks []span
	for i := range scale(t, 500, 60) {
		from := time.Now()
		_, err := c.Send(context.Background(), "synced", batch("b32", i, 1), batchType, client.SendOptions{})
		if err == nil {
			acks = append(acks, span{from, time.Now()})
		}
	}
	require.NotEmpty(t, acks)
	for _, end := range detach {
		end()
	}
	var syncs [][]time.Time
	for _, path := range traces {
		syncs = append(syncs, syncedAt(t, path))
	}
	for _, a := range acks {
		nodes := 0
		for _, list := range syncs {
			for _, at := range list {
				if at.After(a.from) && at.Before(a.to) {
					nodes++
					break
				}
			}
		}
		require.GreaterOrEqual(t, nodes, 2, "acknowledged at %s, sent at %s, and synced on %d nodes in between", a.to, a.from, nodes)
	}
	t.Logf("%d acknowledgements, each behind an fdatasync of two logs", len(acks))
}

// TestB39AWipedNodeUnderItsOldIdIsRefusedWithTheRemedy is B39: a follower, then the leader, loses its disk and is started under the same id. It is refused
// (exit code 11) with what to do instead, never votes and never panics, also when only two nodes are up; nothing is lost, and it comes back under a new id.
func TestB39AWipedNodeUnderItsOldIdIsRefusedWithTheRemedy(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "wiped", channelSpec("wiped", ""), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "wiped", g.addresses(), 4, 5)
	w.waitAcks(300, 20*time.Second)
	for round := range scale(t, 20, 2) {
		victim := g.follower()
		if round%2 == 1 {
			victim = g.leader()
		}
		victim.kill()
		kept := victim.dir + ".kept"
		require.NoError(t, os.Rename(victim.dir, kept))
		victim.start()
		require.Equal(t, 11, victim.exit(20*time.Second), "%s", tailOf(victim.logTo, 2000))
		require.Contains(t, tailOf(victim.logTo, 4000), "bring the node back under a new id")
		require.NotContains(t, tailOf(victim.logTo, 1<<20), "panic:")
		w.waitAcks(50, 20*time.Second)
		// The disk turns up again: that is the node itself.
		require.NoError(t, os.RemoveAll(victim.dir))
		require.NoError(t, os.Rename(kept, victim.dir))
		victim.start()
		victim.waitReady(30 * time.Second)
	}
	acked := w.halt()
	checkStored(t, g, "wiped", acked)
}

// lastBatch is where the last block that was written into the active segment lies.
func lastBatch(t *testing.T, p *proc) (path string, from, end int64) {
	t.Helper()
	paths := segments(t, p)
	path = paths[len(paths)-1]
	end = writtenTo(t, path)
	if end <= 4096 {
		path = paths[len(paths)-2]
		end = writtenTo(t, path)
	}
	return path, end - 4096, end
}

func overwriteWith(t *testing.T, path string, at int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt(b, at)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
}

// straceWith attaches to a running node with options; detach lets it go on.
func straceWith(t *testing.T, p *proc, options ...string) (trace string, detach func()) {
	t.Helper()
	p.mu.Lock()
	pid := p.cmd.Process.Pid
	p.mu.Unlock()
	trace = filepath.Join(p.g.dir, "strace-"+p.id+".txt")
	cmd := exec.Command("strace", append([]string{"-f", "-o", trace, "-p", strconv.Itoa(pid)}, options...)...)
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	attached, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		first := true
		for s := bufio.NewScanner(stderr); s.Scan(); {
			if first && strings.Contains(s.Text(), "attached") {
				first = false
				close(attached)
			}
		}
		_ = cmd.Wait()
	}()
	select {
	case <-attached:
	case <-time.After(10 * time.Second):
		require.FailNow(t, "strace does not attach")
	}
	ended := false
	detach = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Signal(os.Interrupt)
			<-done
		}
	}
	t.Cleanup(detach)
	return trace, detach
}

var (
	wholeCall   = regexp.MustCompile(`^\d+ +(\d+\.\d+) fdatasync\(\d+<([^>]*)>\) += 0 <(\d+\.\d+)>`)
	begunCall   = regexp.MustCompile(`^(\d+) +\d+\.\d+ fdatasync\(\d+<([^>]*)> <unfinished`)
	resumedCall = regexp.MustCompile(`^(\d+) +(\d+\.\d+) <\.\.\. fdatasync resumed>\) += 0`)
)

// syncedAt is when the fdatasyncs of log segments were completed.
func syncedAt(t *testing.T, trace string) (at []time.Time) {
	t.Helper()
	b, err := os.ReadFile(trace)
	require.NoError(t, err)
	unix := func(s string) time.Time {
		v, err := strconv.ParseFloat(s, 64)
		require.NoError(t, err)
		return time.UnixMicro(int64(v * 1e6))
	}
	begun := map[string]string{}
	for line := range bytes.Lines(b) {
		l := string(line)
		if m := wholeCall.FindStringSubmatch(l); m != nil && strings.Contains(m[2], "/wal/") {
			took, err := strconv.ParseFloat(m[3], 64)
			require.NoError(t, err)
			at = append(at, unix(m[1]).Add(time.Duration(took*1e9)))
		} else if m := begunCall.FindStringSubmatch(l); m != nil {
			begun[m[1]] = m[2]
		} else if m := resumedCall.FindStringSubmatch(l); m != nil && strings.Contains(begun[m[1]], "/wal/") {
			at = append(at, unix(m[2]))
		}
	}
	require.NotEmpty(t, at, "no fdatasync of the log in %s:\n%s", trace, tailOf(trace, 1000))
	return at
}
