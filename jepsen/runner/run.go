package runner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"penstock/jepsen/check"
	"penstock/jepsen/client"
	"penstock/jepsen/control"
	"penstock/jepsen/history"
	"penstock/jepsen/nemesis"
	"penstock/jepsen/report"
	"penstock/jepsen/workload"
)

const requestTimeout = 5 * time.Second

// run is the state of one run while it is under way.
type run struct {
	o       Options
	id, dir string
	clock   history.Clock
	cluster *control.Cluster // nil for a cluster of the user's
	compose *control.Compose // nil unless that is a Compose project
	clients []*client.Client
	admin   []*client.Client // the same nodes, for operator routes, which answer on loopback only
	dest    []*control.Process
	bases   map[string]string // emitter -> base URL of its destination
	env     *workload.Env
	obs     *observer
	faults  *history.Writer[history.Fault]
	windows []nemesis.Window
	final   check.Final
	verdict check.Verdict
}

// Run carries out one run and returns where it is stored and its verdict. An error means that the harness failed, not the
// product.
func Run(ctx context.Context, o Options) (dir string, v check.Verdict, err error) {
	if err := o.complete(); err != nil {
		return "", v, err
	}
	if len(o.Endpoints) == 0 && o.Compose == "" { // a cluster of the user's: nothing is laid here
		unlock, err := control.Lock()
		if err != nil {
			return "", v, err
		}
		defer unlock()
	}
	r := &run{o: o, id: fmt.Sprintf("%04x", rand.Uint32()&0xffff), clock: history.NewClock(), bases: map[string]string{}}
	if r.dir = o.Out; r.dir == "" {
		r.dir = filepath.Join(RunsDir(), time.Now().UTC().Format("20060102-150405")+"-"+r.id)
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return "", v, err
	}
	err = r.play(ctx)
	return r.dir, r.verdict, err
}

// play does everything; it leaves the evidence in the run's directory, and the nodes' directories too when the run failed.
func (r *run) play(ctx context.Context) (err error) {
	if err := r.lay(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(context.WithoutCancel(ctx))) }()
	if r.faults, err = history.Create[history.Fault](filepath.Join(r.dir, "faults.jsonl")); err != nil {
		return err
	}
	observations, err := history.Create[history.Observation](filepath.Join(r.dir, "observations.jsonl"))
	if err != nil {
		return err
	}
	r.obs = &observer{clock: r.clock, out: observations, newest: map[string]history.Observation{}}
	r.env = &workload.Env{Clients: r.clients, Clock: r.clock, Dir: filepath.Join(r.dir, "history"), Seed: r.o.Seed}
	r.windows = nemesis.Plan(without(r.o.Kinds, "chaos", "external"), r.o.Time, r.o.Seed)
	if err := errors.Join(writeJSON(r.path("options.json"), r.o), writeJSON(r.path("plan.json"), r.windows)); err != nil {
		return err
	}

	watchCtx, stopWatching := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	for _, c := range r.clients {
		watchers.Go(func() { r.obs.follow(watchCtx, c) })
	}
	if r.cluster != nil {
		err = r.cluster.StartAll()
	}
	if err == nil {
		err = r.phases(ctx)
	}
	stopWatching()
	watchers.Wait()
	if err := errors.Join(err, observations.Close(), r.faults.Close(), r.collect(ctx)); err != nil {
		return err
	}
	r.verdict, err = Recheck(r.dir)
	if r.cluster != nil && (r.o.KeepData || r.verdict.Verdict == check.Fail) {
		err = errors.Join(err, r.keepData())
	}
	return err
}

func (r *run) path(parts ...string) string {
	return filepath.Join(append([]string{r.dir}, parts...)...)
}

func (r *run) say(format string, args ...any) {
	if !r.o.Quiet {
		fmt.Fprintf(os.Stderr, "%7.1fs  %s\n", float64(r.clock.Now())/1e9, fmt.Sprintf(format, args...))
	}
}

func (r *run) fault(f history.Fault) {
	if f.T == 0 {
		f.T = r.clock.Now()
	}
	r.faults.Append(f)
	r.say("%-16s %-9s %v %s", f.Kind, f.Phase, f.Targets, f.Detail)
}

// lay makes cluster, clients and destinations; nothing runs yet but the destinations.
func (r *run) lay(ctx context.Context) error {
	switch {
	case r.o.Compose != "":
		return r.layCompose(ctx)
	case len(r.o.Endpoints) > 0:
		return r.layOwn(ctx)
	}
	c, err := control.Open(ctx, controlOptions(r.o, r.id, r.dir, r.o.Env))
	if err != nil {
		return err
	}
	r.cluster = c
	for _, n := range c.Nodes() {
		r.clients = append(r.clients, client.New(n.Host, n.URL(), requestTimeout))
		loopback := fmt.Sprintf("http://127.0.0.1:%d", control.PortHTTP)
		r.admin = append(r.admin, client.NewDial(n.Host, loopback, 3*requestTimeout, control.Dialer(c.Net.Namespace(n.Host))))
	}
	for i, host := range []string{"d1", "d2"} {
		addr := fmt.Sprintf("%s:8080", c.Addr(host))
		if err := r.startDestination(host, c.Net.Namespace(host), addr); err != nil {
			return errors.Join(err, r.close(context.WithoutCancel(ctx)))
		}
		for j, e := range webhooks() {
			if j%2 == i {
				r.bases[e] = "http://" + addr
			}
		}
	}
	return nil
}

func (r *run) startDestination(host, namespace, addr string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.path("destinations"), 0o755); err != nil {
		return err
	}
	argv := []string{self, "destination", "--listen", addr, "--log", r.path("destinations", host+".jsonl")}
	if r.cluster != nil {
		for _, n := range r.cluster.Nodes() {
			argv = append(argv, "--host", n.Addr+"="+n.Host)
		}
	}
	p := control.NewProcess(host, namespace, r.path("destinations", host+".log"), nil, argv)
	if err := p.Start(); err != nil {
		return err
	}
	r.dest = append(r.dest, p)
	return nil
}

func webhooks() []string {
	var names []string
	for _, e := range workload.Emitters() {
		if e.Kind == "webhook" {
			names = append(names, e.Name)
		}
	}
	return names
}

// close stops and removes everything.
func (r *run) close(ctx context.Context) error {
	for _, p := range r.dest {
		if p.Running() {
			_, _ = p.Stop(ctx, 2*time.Second)
		}
	}
	for _, c := range append(slices.Clone(r.clients), r.admin...) {
		c.Close()
	}
	if r.cluster == nil {
		return nil
	}
	return errors.Join(r.cluster.Close(ctx), os.RemoveAll(filepath.Join(control.WorkRoot(), r.id)))
}

func without(kinds []string, names ...string) []string {
	var kept []string
next:
	for _, k := range kinds {
		for _, n := range names {
			if k == n {
				continue next
			}
		}
		kept = append(kept, k)
	}
	return kept
}

// Recheck judges a stored run again and writes verdict and report.
func Recheck(dir string) (check.Verdict, error) {
	in, err := Load(dir)
	if err != nil {
		return check.Verdict{}, err
	}
	v := check.Judge(in)
	var o Options
	if err := readJSON(filepath.Join(dir, "options.json"), &o); err != nil {
		return v, err
	}
	if err := writeJSON(filepath.Join(dir, "verdict.json"), v); err != nil {
		return v, err
	}
	return v, report.Write(filepath.Join(dir, "report.html"), report.Run{Title: o.title(), Options: o, Input: in, Verdict: v})
}

func (o Options) title() string {
	name := o.Name
	if name == "" {
		name = fmt.Sprint(o.Nemesis)
	}
	return fmt.Sprintf("%s, %d nodes, workload %s, %v, seed %d", name, o.Nodes, o.Workload, o.Time, o.Seed)
}
