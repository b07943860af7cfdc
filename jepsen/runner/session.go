package runner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"penstock/jepsen/control"
	"penstock/jepsen/history"
	"penstock/jepsen/workload"
)

// onCluster lays a cluster, waits until it stands, runs f on it and removes it: what measurements and cases share. They
// keep no client histories and have no verdict of the checkers.
func onCluster(ctx context.Context, o Options, name string, f func(*run) error) (err error) {
	if err := o.complete(); err != nil {
		return err
	}
	unlock, err := control.Lock()
	if err != nil {
		return fmt.Errorf("%w: %w", errVacuous, err)
	}
	defer unlock()
	r := &run{o: o, id: fmt.Sprintf("%04x", rand.Uint32()&0xffff), clock: history.NewClock(), bases: map[string]string{}}
	r.dir = filepath.Join(RunsDir(), name+"-"+time.Now().UTC().Format("20060102-150405")+"-"+r.id)
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	if err := r.lay(ctx); err != nil {
		return fmt.Errorf("%w: %w", errVacuous, err)
	}
	defer func() { err = errors.Join(err, r.close(context.WithoutCancel(ctx))) }()
	if r.faults, err = history.Create[history.Fault](r.path("faults.jsonl")); err != nil {
		return err
	}
	out, err := history.Create[history.Observation](r.path("observations.jsonl"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close(), r.faults.Close()) }()
	r.obs = &observer{clock: r.clock, out: out, newest: map[string]history.Observation{}}
	watch, stopWatching := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	defer func() { stopWatching(); watchers.Wait() }()
	for _, c := range r.clients {
		watchers.Go(func() { r.obs.follow(watch, c) })
	}
	if err := r.cluster.StartAll(); err != nil {
		return err
	}
	forming, cancel := context.WithTimeout(ctx, boundForm)
	defer cancel()
	if err := workload.Apply(forming, r.admin, workload.Specs(func(e string) string { return r.bases[e] }, o.Keep)); err != nil {
		return fmt.Errorf("cluster forms: %w (logs in %s)", err, r.dir)
	}
	return f(r)
}
