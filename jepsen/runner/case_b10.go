package runner

import (
	"context"
	"fmt"
	"slices"
	"time"

	"penstock/jepsen/control"
	"penstock/jepsen/workload"
)

func caseB10(ctx context.Context, o Options, _ int, _ time.Duration) error {
	o.Keep, o.Snapshot, o.Segment = "0s", "1MiB", "1MiB"
	return onCluster(ctx, o, "B10", func(r *run) error {
		first, err := r.write(ctx, "b10", 0, 1000)
		if err != nil {
			return err
		}
		total := len(first)
		again := func(when string) error {
			bounded, cancel := context.WithTimeout(ctx, 60*time.Second)
			defer cancel()
			repeat, err := r.write(bounded, "b10", 0, 1000)
			if err != nil {
				return fmt.Errorf("%s: %w", when, err)
			}
			for id, position := range first {
				if repeat[id] != position {
					return fmt.Errorf("%s: %s was first at %s, the answer says %s", when, id, position, repeat[id])
				}
			}
			l, err := r.anyLedger(bounded, workload.Offsets)
			if err != nil {
				return err
			}
			if l.Accepted != uint64(total) {
				return fmt.Errorf("%s: %d events are stored, want %d", when, l.Accepted, total)
			}
			r.say("B10 %s: all 1000 are duplicates of the first", when)
			return nil
		}
		if err := again("before a restart"); err != nil {
			return err
		}
		for _, n := range r.cluster.Nodes() {
			if _, err := n.Process.Stop(ctx, 15*time.Second); err != nil {
				return err
			}
			if err := n.Process.Start(); err != nil {
				return err
			}
			bounded, cancel := context.WithTimeout(ctx, boundReady)
			err := r.healthy(bounded)
			cancel()
			if err != nil {
				return fmt.Errorf("after the restart of %s: %w", n.ID, err)
			}
		}
		if err := again("after a rolling restart"); err != nil {
			return err
		}
		for i := range 100 { // so much log that what held the first events is gone
			more, err := r.write(ctx, fmt.Sprintf("b10-fill-%d", i), 0, 1000)
			if err != nil {
				return err
			}
			total += len(more)
		}
		if err := again("after the log moved on"); err != nil {
			return err
		}
		if err := r.leadFromEmptyDisk(ctx); err != nil {
			return fmt.Errorf("a leader from an empty disk: %w", err)
		}
		return again("from a leader that got its state by a snapshot")
	})
}

// leadFromEmptyDisk replaces a follower's disk, lets it join under a new id and hands the leadership to it.
func (r *run) leadFromEmptyDisk(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	env := r.nemesisEnv()
	leader := r.obs.leader()
	nodes := r.cluster.Nodes()
	i := slices.IndexFunc(nodes, func(n *control.Node) bool { return n.Host != leader })
	for _, n := range nodes { // what a new node needs is behind a snapshot, or it gets the log from its beginning
		if err := env.Snapshot(ctx, n.Host); err != nil {
			r.say("%v", err)
		}
	}
	if first, err := env.First(ctx, leader); err != nil || first <= 2 {
		return fmt.Errorf("%w: the leader's log begins at %d (%v): no snapshot would be needed", errVacuous, first, err)
	}
	if err := r.cluster.LoseDisk(ctx, nodes[i]); err != nil {
		return err
	}
	old, err := r.cluster.Rename(nodes[i])
	if err != nil {
		return err
	}
	if err := nodes[i].Process.Start(); err != nil {
		return err
	}
	if err := env.Join(ctx, nodes[i].ID); err != nil {
		return err
	}
	if err := env.Remove(ctx, old); err != nil {
		return err
	}
	if err := r.healthy(ctx); err != nil {
		return err
	}
	if err := env.Transfer(ctx, nodes[i].ID); err != nil {
		return err
	}
	return poll(ctx, func(context.Context) error {
		if r.obs.leader() != nodes[i].Host {
			return fmt.Errorf("%s does not lead", nodes[i].ID)
		}
		return nil
	})
}
