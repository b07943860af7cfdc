package nemesis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"penstock/jepsen/control"
	"penstock/jepsen/history"
)

func diskFaults() []Fault {
	return []Fault{
		{Name: "fsync-slow", Nodes: 1, Leader: true, Long: true, What: "every fsync and fdatasync of one node takes 100 to 800 ms longer (strace)",
			Confirmed: "delayed calls in the trace", begin: slowSync, end: countTrace},
		{Name: "fsync-fail", Nodes: 1, Leader: true, What: "from some fsync on, every one fails with EIO (strace); the process must end by itself",
			Confirmed: "injected calls in the trace", begin: failSync, end: afterFailedSync},
		{Name: "disk-full", Nodes: 1, Leader: true, Long: true, What: "no space left on one node's data volume, then it comes back",
			Confirmed: "less than 64 KiB were left", begin: fillData},
		{Name: "dlq-full", Nodes: 1, Long: true, What: "no space left on one node's dead-letter volume, then it comes back",
			Confirmed: "less than 64 KiB were left", begin: fillDLQ},
	}
}

// trace attaches strace to a node; it is detached at the end.
func (a *Act) trace(n *control.Node, inject string) (out string, err error) {
	pid := n.Process.PID()
	if pid == 0 {
		return "", fmt.Errorf("%s: %w", n.Host, control.ErrNotRunning)
	}
	out = filepath.Join(a.TmpDir, fmt.Sprintf("strace-%d-%s.txt", a.ID, n.Host))
	tracer := control.NewProcess("strace of "+n.Host, "", out+".log", nil, []string{
		"strace", "-f", "-qq", "-o", out, "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:" + inject, "-p", strconv.Itoa(pid),
	})
	if err := tracer.Start(); err != nil {
		return "", err
	}
	a.later(func(ctx context.Context) error {
		if !tracer.Running() {
			return nil
		}
		_ = tracer.Signal(syscall.SIGINT) // detaches
		_, err := tracer.Stop(ctx, 5*time.Second)
		return err
	})
	return out, nil
}

func injected(out string) int {
	b, err := os.ReadFile(out)
	if err != nil {
		return 0
	}
	return strings.Count(string(b), "(INJECTED)") + strings.Count(string(b), "(DELAYED)")
}

func (a *Act) traceFile() string {
	return filepath.Join(a.TmpDir, fmt.Sprintf("strace-%d-%s.txt", a.ID, a.Nodes[0].Host))
}

func slowSync(_ context.Context, a *Act) error {
	_, err := a.trace(a.Nodes[0], fmt.Sprintf("delay_exit=%d", (100+a.Rand.IntN(700))*1000))
	return err
}

func countTrace(_ context.Context, a *Act) error {
	n := injected(a.traceFile())
	if n == 0 {
		return errors.New("no call was delayed")
	}
	a.confirm("%d calls delayed", n)
	return nil
}

func failSync(_ context.Context, a *Act) error {
	n := a.Nodes[0]
	a.later(func(ctx context.Context) error { return restart(ctx, a, n) })
	_, err := a.trace(n, fmt.Sprintf("error=EIO:when=%d+", 1+a.Rand.IntN(5)))
	return err
}

// afterFailedSync: the process must have ended by itself (I11); one that runs on after failed fsyncs is a violation, and is
// killed so that it comes back clean.
func afterFailedSync(ctx context.Context, a *Act) error {
	n := a.Nodes[0]
	bound, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	exit, waitErr := n.Process.Wait(bound)
	count := injected(a.traceFile())
	if count == 0 {
		return errors.New("no call failed")
	}
	if waitErr != nil {
		a.log(history.Violation, "%s runs on after %d failed fsyncs (I11)", n.Host, count)
		_, err := n.Process.Kill(ctx)
		return err
	}
	a.confirm("%d calls failed, the process ended with %v", count, exit)
	return nil
}

func fillData(ctx context.Context, a *Act) error { return fill(a, a.Nodes[0].Data) }

func fillDLQ(ctx context.Context, a *Act) error { return fill(a, a.Nodes[0].DLQ) }

func fill(a *Act, v *control.Volume) error {
	n := a.Nodes[0]
	a.later(func(ctx context.Context) error {
		if err := v.Unfill(); err != nil {
			return err
		}
		if exit, ended := n.Process.LastExit(); ended {
			a.log(history.Note, "the full disk ended %s with %v", n.Host, exit)
		}
		return restart(ctx, a, n)
	})
	left, err := v.Fill()
	if err != nil {
		return err
	}
	if left > 64<<10 {
		return fmt.Errorf("%d bytes are still free", left)
	}
	a.confirm("%d bytes left on %s", left, v.Mount)
	return nil
}
