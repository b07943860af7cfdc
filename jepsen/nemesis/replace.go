package nemesis

import (
	"context"
	"fmt"
	"slices"
	"time"

	"penstock/jepsen/control"
	"penstock/jepsen/history"
)

// exitWiped is the product's exit code for a wiped, foreign or restored directory.
const exitWiped = 11

func loseDisk(ctx context.Context, a *Act) error { return replace(ctx, a, a.Nodes[0]) }

// replace gives a node an empty disk, sees it refused under its old id, and lets it join under a new one.
func replace(ctx context.Context, a *Act, n *control.Node) error {
	if err := a.Cluster.LoseDisk(ctx, n); err != nil {
		return err
	}
	if err := n.Process.Start(); err != nil {
		return err
	}
	bound, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	exit, err := n.Process.Wait(bound)
	switch {
	case err != nil:
		a.log(history.Violation, "%s runs under its old id on an empty disk", n.ID)
		if _, err := n.Process.Kill(ctx); err != nil {
			return err
		}
	case exit.Code != exitWiped:
		a.log(history.Violation, "%s ended with %v on an empty disk, want exit code %d", n.ID, exit, exitWiped)
	default:
		a.confirm("%s was refused with %v", n.ID, exit)
	}
	if err := a.Cluster.LoseDisk(ctx, n); err != nil { // what the refused start left is gone too
		return err
	}
	old, err := a.Cluster.Rename(n)
	if err != nil {
		return err
	}
	if err := n.Process.Start(); err != nil {
		return err
	}
	a.started(n)
	if err := a.Join(ctx, n.ID); err != nil {
		return fmt.Errorf("join %s: %w", n.ID, err)
	}
	return a.Remove(ctx, old)
}

// replaceBound is for three to seven nodes that each start twice and catch up, on a machine that has other work too.
const replaceBound = 150 * time.Second

// joinBound is for one of them.
const joinBound = 40 * time.Second

// replaceAll replaces every node in turn, the leader last. What was pending when it began may afterwards be known only from
// what a snapshot and the log behind it brought to each new node; and each snapshot but the first comes from a node that
// was itself set up from one.
func replaceAll(ctx context.Context, a *Act) error {
	a.Hold = 0
	if err := cutLogs(ctx, a); err != nil {
		return err
	}
	for _, e := range a.Emitters {
		if e == "strict" {
			continue // it gives up soon: its deliveries would not stay pending
		}
		if err := a.Destination(ctx, e, "503"); err != nil {
			return err
		}
		a.later(func(ctx context.Context) error { return a.Destination(ctx, e, "ok") })
	}
	a.later(func(ctx context.Context) error {
		return each(a.Nodes, func(n *control.Node) error { return restart(ctx, a, n) })
	})
	for range 2 { // what was pending when the destinations failed is below the state of the newest snapshot
		if err := snapshots(ctx, a); err != nil {
			return err
		}
	}
	leader := a.Leader()
	order := slices.Clone(a.Nodes)
	slices.SortStableFunc(order, func(x, y *control.Node) int { return rank(x.Host != leader) - rank(y.Host != leader) })
	for i, n := range order {
		one, cancel := context.WithTimeout(ctx, joinBound)
		err := replace(one, a, n)
		cancel()
		if err != nil { // no other fault acts and a majority holds everything: it must work
			a.log(history.Violation, "%s could not be replaced within %v: %v", n.Host, joinBound, err)
			return err
		}
		if err := a.Healthy(ctx); err != nil {
			return fmt.Errorf("after %s was replaced: %w", n.Host, err)
		}
		if i == len(order)-1 {
			break
		}
		if err := a.Transfer(ctx, n.ID); err != nil {
			return fmt.Errorf("hand the leadership to %s: %w", n.ID, err)
		}
		a.log(history.Note, "%s leads", n.ID)
		if err := a.Snapshot(ctx, n.Host); err != nil {
			a.log(history.Note, "%v", err)
		}
	}
	return nil
}

// cutLogs takes snapshots until every log begins above its first entries, as far as the channels' retention lets it.
func cutLogs(ctx context.Context, a *Act) error {
	for range 10 {
		if err := snapshots(ctx, a); err != nil {
			return err
		}
		cut := 0
		for _, n := range a.Nodes {
			if first, err := a.First(ctx, n.Host); err == nil && first > 2 {
				cut++
			}
		}
		if cut == len(a.Nodes) {
			a.log(history.Note, "every log begins behind a snapshot")
			return nil
		}
	}
	a.log(history.Note, "not every log was cut: new nodes may get the log instead of a snapshot")
	return nil
}

// snapshots lets some seconds of writes pass, then every node takes a snapshot.
func snapshots(ctx context.Context, a *Act) error {
	if err := sleep(ctx, 2*time.Second); err != nil {
		return err
	}
	for _, n := range a.Nodes {
		if err := a.Snapshot(ctx, n.Host); err != nil {
			a.log(history.Note, "%v", err)
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
