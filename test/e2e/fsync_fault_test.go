package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// TestFailedFsyncEndsTheNodeAndTheOthersGoOn (I11): one fsync of the leader's, then of a follower's, fails. The process ends with exit code 10, acks
// go on within 3 s, and nothing that was acknowledged is lost when it is back.
func TestFailedFsyncEndsTheNodeAndTheOthersGoOn(t *testing.T) {
	t.Parallel()
	g, w := tracedGroup(t)
	for _, leads := range []bool{true, false} {
		victim := g.follower()
		if leads {
			victim = g.leader()
		}
		strace(t, victim, "error=EIO:when=1")
		require.Equal(t, 10, victim.exit(20*time.Second), "%s", tailOf(victim.logTo, 2000))
		ackAfter(t, w, time.Now(), 3*time.Second)
		victim.start()
		victim.waitReady(30 * time.Second)
	}
	checkStored(t, g, "load", w.halt())
}

// TestHungFsyncOfTheLeaderFreezesNobodyElse: an fsync of the leader's that takes 60 s. It falls silent after 500 ms, another one leads, and the next ack
// comes within 3 s; the stalled process ends with exit code 10.
func TestHungFsyncOfTheLeaderFreezesNobodyElse(t *testing.T) {
	t.Parallel()
	g, w := tracedGroup(t)
	victim := g.leader()
	trace, detach := strace(t, victim, "delay_enter=60s:when=1")
	eventually(t, 10*time.Second, "a hung fsync", func() error {
		if !bytes.Contains([]byte(tailOf(trace, 1<<20)), []byte("fdatasync(")) {
			return fmt.Errorf("none yet")
		}
		return nil
	})
	hung := time.Now()
	took := ackAfter(t, w, hung.Add(50*time.Millisecond), 3*time.Second) // what was acknowledged before it hung may still be on its way
	t.Logf("next ack %s after the fsync hung", took.Round(time.Millisecond))
	require.NotEqual(t, victim, g.leader())
	eventually(t, 30*time.Second, "the stalled node gives up", func() error {
		if !strings.Contains(tailOf(victim.logTo, 1<<20), "the process ends") {
			return errors.New("not yet")
		}
		return nil
	})
	detach() // a thread that strace delays cannot end before
	require.Equal(t, 10, victim.exit(15*time.Second), "%s", tailOf(victim.logTo, 2000))
	victim.start()
	victim.waitReady(30 * time.Second)
	checkStored(t, g, "load", w.halt())
}

func tracedGroup(t *testing.T) (*group, *writers) {
	t.Helper()
	requireStrace(t)
	g := startGroup(t, options{})
	_, err := g.client().PutChannel(context.Background(), "load", channelSpec("load", ""), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "load", g.addresses(), 8, 5)
	w.waitAcks(200, 20*time.Second)
	return g, w
}

// requireStrace skips where no process may be traced: a container without the right, or no strace.
func requireStrace(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("LEFT OUT: there is no strace (Debian package strace)")
	}
	if out, err := exec.Command("strace", "-qq", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=1", "true").CombinedOutput(); err != nil {
		t.Skipf("LEFT OUT: strace may not trace here: %v: %s", err, out)
	}
}

// strace attaches to a running node and injects into its fsyncs; it ends with the node, with detach, or with the test. The file it writes to shows each call.
func strace(t *testing.T, p *proc, inject string) (trace string, detach func()) {
	t.Helper()
	p.mu.Lock()
	pid := p.cmd.Process.Pid
	p.mu.Unlock()
	trace = filepath.Join(p.g.dir, "strace-"+p.id+".txt")
	var stderr bytes.Buffer
	cmd := exec.Command("strace", "-f", "-o", trace, "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:"+inject, "-p", strconv.Itoa(pid))
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	detach = func() {
		_ = cmd.Process.Kill()
		<-done
	}
	t.Cleanup(func() {
		detach()
		if t.Failed() {
			t.Logf("strace of %s: %s\n%s", p.id, stderr.String(), tailOf(trace, 1000))
		}
	})
	return trace, detach
}

// ackAfter waits for an ack that arrived after a time, and gives how long after.
func ackAfter(t *testing.T, w *writers, since time.Time, within time.Duration) time.Duration {
	t.Helper()
	eventually(t, within, "an ack", func() error {
		if w.lastAck.Load() > since.UnixNano() {
			return nil
		}
		return fmt.Errorf("the last one came %s before", since.Sub(time.Unix(0, w.lastAck.Load())))
	})
	return time.Unix(0, w.lastAck.Load()).Sub(since)
}
