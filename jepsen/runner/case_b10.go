package runner

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/jepsen/control"
	"penstock/jepsen/workload"
)

func caseB10(ctx context.Context, o Options, _ int, _ time.Duration) error {
	o.Keep, o.Snapshot, o.Segment, o.Trailing = "0s", "1MiB", "1MiB", 16
	return onCluster(ctx, o, "B10", func(r *run) error {
		first, err := r.write(ctx, "b10", 0, 1000)
		if err != nil {
			return err
		}
		again := func(when string) error {
			bounded, cancel := context.WithTimeout(ctx, 60*time.Second)
			defer cancel()
			if err := r.healthy(bounded); err != nil { // so that no ledger is an old one
				return err
			}
			before, err := r.anyLedger(bounded, workload.Offsets)
			if err != nil {
				return err
			}
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
			if l.Accepted != before.Accepted {
				return fmt.Errorf("%s: %d events were stored, now it is %d", when, before.Accepted, l.Accepted)
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
			if _, err := r.write(ctx, fmt.Sprintf("b10-fill-%d", i), 0, 1000); err != nil {
				return err
			}
		}
		if err := r.forget(ctx, first); err != nil {
			return err
		}
		if err := again("after its log is gone"); err != nil {
			return err
		}
		if err := r.leadFromEmptyDisk(ctx); err != nil {
			return fmt.Errorf("a leader from an empty disk: %w", err)
		}
		return again("from a leader that got its state by a snapshot")
	})
}

// forget takes snapshots until no node's log holds the first events any more.
func (r *run) forget(ctx context.Context, first map[string]string) error {
	var last uint64
	for _, position := range first {
		index, _, _ := strings.Cut(position, ".")
		n, err := strconv.ParseUint(index, 10, 64)
		if err != nil {
			return err
		}
		last = max(last, n)
	}
	bounded, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	env := r.nemesisEnv()
	err := poll(bounded, func(ctx context.Context) error {
		if _, err := r.write(ctx, "b10-more", int(time.Now().UnixMilli()%1e9), 1); err != nil {
			return err
		}
		for _, n := range r.cluster.Nodes() {
			if err := env.Snapshot(ctx, n.Host); err != nil {
				return err
			}
			if begin, err := env.First(ctx, n.Host); err != nil || begin <= last {
				return fmt.Errorf("the log of %s begins at %d (%v), the events are at %d", n.Host, begin, err, last)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w: the log did not move on: %w", errVacuous, err)
	}
	return nil
}

// leadFromEmptyDisk replaces a follower's disk, lets it join under a new id and hands the leadership to it.
func (r *run) leadFromEmptyDisk(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	env := r.nemesisEnv()
	leader := r.obs.leader()
	nodes := r.cluster.Nodes()
	i := slices.IndexFunc(nodes, func(n *control.Node) bool { return n.Host != leader })
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
