package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"penstock/jepsen/check"
	"penstock/jepsen/history"
	"penstock/jepsen/nemesis"
	"penstock/jepsen/workload"
)

// Bounds of the liveness phase.
const (
	boundForm     = 60 * time.Second // first leader and channels of a new cluster
	boundLeader   = 15 * time.Second
	boundReady    = 30 * time.Second
	boundEqual    = 30 * time.Second
	boundAck      = 10 * time.Second
	boundResolved = 120 * time.Second
	boundRead     = 60 * time.Second
)

// phases: form, warm up, safety (faults), heal, liveness, final reads.
func (r *run) phases(ctx context.Context) error {
	if !r.within(ctx, "cluster forms", boundForm, func(ctx context.Context) error {
		return workload.Apply(ctx, r.admin, workload.Specs(func(e string) string { return r.bases[e] }, r.o.Keep))
	}) {
		return nil // nothing can follow; the liveness check says why
	}
	stop, stopWriting := context.WithCancel(ctx)
	last, giveUp := context.WithCancel(ctx)
	defer giveUp()
	defer stopWriting()
	clients, err := r.startClients(stop, last)
	if err != nil {
		return err
	}
	pause(ctx, 3*time.Second)
	r.say("safety phase")
	err = r.safety(ctx)
	r.say("heal")
	healErr := r.heal(ctx)
	r.say("liveness phase")
	r.liveness(ctx)
	stopWriting()
	time.AfterFunc(r.scaled(r.patience(20*time.Second)), giveUp)
	clients.Wait()
	r.resolved(ctx)
	return errors.Join(err, healErr, r.finalReads(ctx))
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// within runs f until it succeeds or the bound is over, and records it for the liveness check.
func (r *run) within(ctx context.Context, name string, bound time.Duration, f func(context.Context) error) bool {
	start := time.Now()
	bound = r.scaled(bound)
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	err := f(bounded)
	l := check.Liveness{Name: name, Took: int64(time.Since(start)), Bound: int64(bound), OK: err == nil}
	if err != nil {
		l.Note = err.Error()
	}
	r.final.Liveness = append(r.final.Liveness, l)
	r.say("%s: %v after %v %s", name, l.OK, time.Since(start).Round(time.Millisecond), l.Note)
	return err == nil
}

// scaled is a bound on this machine.
func (r *run) scaled(bound time.Duration) time.Duration {
	return time.Duration(float64(bound) * max(1, r.o.Patience))
}

// errEnded says that a node's process has ended: nobody starts it again, so there is nothing to wait for.
var errEnded = errors.New("the process has ended")

// poll asks until f is content; its last complaint is the error. It does not wait for a process that has ended.
func poll(ctx context.Context, f func(context.Context) error) error {
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || errors.Is(err, errEnded) {
			return err
		}
		pause(ctx, 100*time.Millisecond)
		if ctx.Err() != nil {
			return err
		}
	}
}

func (r *run) channels() []string {
	switch r.o.Workload {
	case "mixed":
		return []string{workload.Orders, workload.Letters, workload.Offsets}
	case "events":
		return []string{workload.Orders, workload.Letters}
	case "letters":
		return []string{workload.Letters}
	case "offsets":
		return []string{workload.Offsets}
	}
	return nil
}

func (r *run) startClients(stop, last context.Context) (*sync.WaitGroup, error) {
	var wg sync.WaitGroup
	var errs []error
	launch := func(f func() error, err error) {
		if err != nil {
			errs = append(errs, err)
			return
		}
		wg.Go(func() {
			if err := f(); err != nil {
				r.say("history: %v", err)
			}
		})
	}
	for _, channel := range r.channels() {
		if channel == workload.Offsets {
			errs = append(errs, r.startOffsets(stop, last, launch))
			continue
		}
		for i := range r.o.Writers {
			batch := []int{1, 20}[i%2] // every other writer writes batches
			w, err := workload.NewWriter(r.env, fmt.Sprintf("%s%d", channel[:1], i+1), channel, batch, r.o.Think)
			launch(func() error { return w.Run(stop, last) }, err)
		}
	}
	for _, channel := range r.channels() {
		for _, c := range r.clients {
			rd, err := workload.NewReader(r.env, "tail-"+channel+"-"+c.Node, c, channel)
			launch(func() error { return rd.Follow(stop) }, err)
		}
	}
	return &wg, errors.Join(errs...)
}

func (r *run) startOffsets(stop, last context.Context, launch func(func() error, error)) error {
	var writers []*workload.OffsetWriter
	for i := range max(2, r.o.Writers/2) {
		w, err := workload.NewOffsetWriter(r.env, fmt.Sprintf("s%d", i+1))
		if err != nil {
			return err
		}
		writers = append(writers, w)
	}
	for _, c := range r.clients {
		rd, err := workload.NewOffsetReader(r.env, "offsets-"+c.Node, c, writers)
		launch(func() error { return rd.Run(stop) }, err)
	}
	for _, w := range writers {
		launch(func() error { return w.Run(stop, last) }, nil)
	}
	return nil
}

// safety is the phase with faults.
func (r *run) safety(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.o.Time+10*time.Minute)
	defer cancel()
	if r.compose != nil {
		r.composeFaults(ctx)
		return nil
	}
	if r.cluster == nil {
		return r.external(ctx)
	}
	var revive sync.WaitGroup
	reviveCtx, stopReviving := context.WithCancel(ctx)
	if r.o.Chaos {
		revive.Go(func() { r.revive(reviveCtx) })
	}
	start := time.Now()
	err := nemesis.Run(ctx, r.nemesisEnv(), r.windows)
	pause(ctx, r.o.Time-time.Since(start))
	stopReviving()
	revive.Wait()
	return err
}

// revive starts nodes again that chaos mode ended, and counts that as the fault.
func (r *run) revive(ctx context.Context) {
	for ctx.Err() == nil {
		for _, n := range r.cluster.Nodes() {
			if exit, ended := n.Process.LastExit(); ended && exit.Signal == syscall.SIGKILL {
				r.fault(history.Fault{Phase: history.Confirmed, Kind: "chaos", Targets: []string{n.Host}, Detail: exit.String()})
				_ = n.Process.Start()
				r.fault(history.Fault{Phase: history.Started, Kind: "chaos", Targets: []string{n.Host}, Wall: time.Now().UnixNano()})
			}
		}
		pause(ctx, 200*time.Millisecond)
	}
}
