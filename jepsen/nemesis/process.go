package nemesis

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"penstock/jepsen/control"
	"penstock/jepsen/history"
)

func processFaults() []Fault {
	return []Fault{
		{Name: "kill", Nodes: -2, Leader: true, Repeat: true, What: "SIGKILL of a minority, the leader in half of the cases; started again",
			Confirmed: "the process was reaped with SIGKILL", begin: kill},
		{Name: "kill-all", Nodes: -1, What: "SIGKILL of every node within milliseconds; started again in random order",
			Confirmed: "every process was reaped with SIGKILL", begin: kill},
		{Name: "pause", Nodes: -2, Leader: true, Repeat: true, What: "SIGSTOP, later SIGCONT: a stale leader with full socket buffers",
			Confirmed: "the kernel shows state T", begin: pause},
		{Name: "restart", Nodes: 1, Leader: true, What: "SIGTERM, wait for the drain, start again",
			Confirmed: "exit code 0 (14 is noted)", begin: gracefully},
	}
}

func kill(ctx context.Context, a *Act) error {
	a.later(func(ctx context.Context) error {
		order := a.Rand.Perm(len(a.Nodes))
		for _, i := range order {
			if err := restart(ctx, a, a.Nodes[i]); err != nil {
				return err
			}
			if len(a.Nodes) > 1 {
				time.Sleep(time.Duration(a.Rand.IntN(300)) * time.Millisecond)
			}
		}
		return nil
	})
	a.Hold = min(a.Hold, 6*time.Second)
	err := each(a.Nodes, func(n *control.Node) error {
		exit, err := n.Process.Kill(ctx)
		if err == nil && exit.Signal != syscall.SIGKILL {
			return fmt.Errorf("ended with %v, not by the kill", exit)
		}
		return err
	})
	if err == nil {
		a.confirm("reaped with SIGKILL")
	}
	return err
}

func pause(_ context.Context, a *Act) error {
	a.later(func(context.Context) error {
		return each(a.Nodes, func(n *control.Node) error { return n.Process.Signal(syscall.SIGCONT) })
	})
	return each(a.Nodes, func(n *control.Node) error { return pauseOne(a, n) })
}

func pauseOne(a *Act, n *control.Node) error {
	if err := n.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for range 100 {
		if n.Process.Stopped() {
			a.confirm("%s is stopped", n.Host)
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("SIGSTOP had no effect within a second")
}

func gracefully(ctx context.Context, a *Act) error {
	n := a.Nodes[0]
	a.later(func(ctx context.Context) error { return restart(ctx, a, n) })
	leader := a.Leader() == n.Host
	start := time.Now()
	if err := n.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	bound, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	exit, err := n.Process.Wait(bound)
	took := time.Since(start).Round(time.Millisecond)
	switch {
	case err != nil:
		a.log(history.Violation, "SIGTERM did not end the node within 15s (drain is 10s)")
		_, err = n.Process.Kill(ctx)
		return err
	case exit.Signal != 0 || (exit.Code != 0 && exit.Code != 14):
		a.log(history.Violation, "SIGTERM ended the node with %v, want exit code 0", exit)
	default:
		a.confirm("%v after %v, leader: %v", exit, took, leader)
	}
	return nil
}
