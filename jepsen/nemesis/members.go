package nemesis

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"penstock/jepsen/control"
	"penstock/jepsen/history"
)

func memberFaults() []Fault {
	return []Fault{{
		Name: "churn", Nodes: 1, Leader: true, Alone: true, Repeat: true, Bound: churnBound,
		What: "one node, the leader in half of the cases, loses its membership while it runs, while it is paused, or while it is dead, or only its vote; " +
			"removed it must end by itself with exit code 15, also when it is started again; then it is joined and gets its vote back",
		Confirmed: "exit code 15 was seen, or the vote was taken and given back", begin: churn,
	}}
}

// exitRemoved is the product's exit code of a node that is no member any more.
const exitRemoved = 15

// churnBound is for a node that starts several times and catches up on a busy machine.
const churnBound = 90 * time.Second

// removedBound is how long a removed node that can reach the others may take to learn it, drain and end.
const removedBound = 30 * time.Second

func churn(ctx context.Context, a *Act) error {
	n := a.Nodes[0]
	a.Hold = 0
	a.later(func(ctx context.Context) error { return member(ctx, a, n) })
	switch mode := a.Rand.IntN(4); mode {
	case 0:
		if err := a.Demote(ctx, n.ID); err != nil {
			return fmt.Errorf("demote %s: %w", n.ID, err)
		}
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
		if err := a.Join(ctx, n.ID); err != nil { // a member without a vote: it is promoted
			return err
		}
		a.confirm("the vote of %s was taken and given back", n.ID)
		return nil
	case 1:
		if err := pauseOne(a, n); err != nil {
			return err
		}
		err := a.Evict(ctx, n.ID)
		if resumed := n.Process.Signal(syscall.SIGCONT); err == nil {
			err = resumed
		}
		if err != nil {
			return err
		}
	case 2:
		if _, err := n.Process.Kill(ctx); err != nil {
			return err
		}
		if err := a.Evict(ctx, n.ID); err != nil {
			return err
		}
		if err := n.Process.Start(); err != nil {
			return err
		}
		a.started(n)
	default:
		if err := a.Evict(ctx, n.ID); err != nil {
			return err
		}
	}
	if err := ends(ctx, a, n); err != nil {
		return err
	}
	// A supervisor starts it again: nothing comes of it.
	if err := n.Process.Start(); err != nil {
		return err
	}
	a.started(n)
	if err := ends(ctx, a, n); err != nil {
		return err
	}
	return member(ctx, a, n)
}

// ends waits for a removed node to end by itself, in the way it should.
func ends(ctx context.Context, a *Act, n *control.Node) error {
	bound, cancel := context.WithTimeout(ctx, removedBound)
	defer cancel()
	exit, err := n.Process.Wait(bound)
	switch {
	case err != nil:
		a.log(history.Violation, "%s still runs %v after it was removed", n.ID, removedBound)
		_, err = n.Process.Kill(ctx)
		return err
	case exit.Code != exitRemoved:
		a.log(history.Violation, "%s ended with %v after it was removed, want exit code %d", n.ID, exit, exitRemoved)
	default:
		a.confirm("%s ended with %v", n.ID, exit)
	}
	return nil
}

// member makes a node a voter again: joined before it is started, since without that it does not stay up.
func member(ctx context.Context, a *Act, n *control.Node) error {
	joined := make(chan error, 1)
	go func() { joined <- a.Join(ctx, n.ID) }()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := restart(ctx, a, n); err != nil {
			a.log(history.Note, "%v", err)
		}
		select {
		case err := <-joined:
			if err != nil {
				return err
			}
			return restart(ctx, a, n)
		case <-tick.C:
		}
	}
}
