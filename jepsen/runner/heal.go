package runner

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"penstock/jepsen/control"
	"penstock/jepsen/history"
)

// heal undoes whatever may still be broken and starts what does not run.
func (r *run) heal(ctx context.Context) error {
	var errs []error
	for _, e := range webhooks() {
		errs = append(errs, r.setDestination(ctx, e, "ok"))
	}
	if r.compose != nil {
		errs = append(errs, r.healCompose(ctx))
	}
	if r.cluster == nil {
		return errors.Join(errs...)
	}
	for _, n := range r.cluster.Nodes() {
		if r.o.Chaos { // the fault is in the process: it ends with it
			n.Process.SetEnv(nil)
			_, err := n.Process.Stop(ctx, 15*time.Second)
			errs = append(errs, err)
		}
		errs = append(errs, control.Flush(ctx, r.cluster.Net, n.Host))
		if n.Process.Running() {
			_ = n.Process.Signal(syscall.SIGCONT)
		}
		if !n.Process.Running() {
			r.fault(history.Fault{Phase: history.Started, Kind: "heal", Targets: []string{n.Host}, Wall: time.Now().UnixNano()})
		}
		errs = append(errs, r.cluster.PowerOn(ctx, n), n.Data.Unfill(), n.DLQ.Unfill())
	}
	return errors.Join(errs...)
}

// healthy waits for every node: it runs, is ready, and has applied what was committed when this was asked.
func (r *run) healthy(ctx context.Context) error {
	for _, n := range r.cluster.Nodes() {
		if !n.Process.Running() {
			exit, _ := n.Process.LastExit()
			return fmt.Errorf("%s does not run: %v", n.ID, exit)
		}
	}
	if err := poll(ctx, r.allReady); err != nil {
		return err
	}
	target := r.obs.highest()
	return poll(ctx, func(ctx context.Context) error { return r.applied(ctx, target) })
}

func (r *run) allReady(ctx context.Context) error {
	for _, c := range r.clients {
		if !c.Ready(ctx) {
			return errors.Join(fmt.Errorf("%s is not ready", c.Node), r.ended(c.Node))
		}
	}
	return nil
}

func (r *run) allEnded() bool {
	for _, c := range r.clients {
		if r.ended(c.Node) == nil {
			return false
		}
	}
	return true
}

// ended is nil unless the node's process has ended.
func (r *run) ended(host string) error {
	if r.cluster == nil {
		return nil
	}
	for _, n := range r.cluster.Nodes() {
		if exit, ended := n.Process.LastExit(); n.Host == host && ended {
			return fmt.Errorf("%w with %v", errEnded, exit)
		}
	}
	return nil
}

func (r *run) applied(ctx context.Context, target uint64) error {
	for _, c := range r.clients {
		v, err := c.Cluster(ctx)
		if err != nil {
			return errors.Join(err, r.ended(c.Node))
		}
		if v.Applied < target {
			return fmt.Errorf("%s has applied %d of %d", c.Node, v.Applied, target)
		}
	}
	return nil
}
