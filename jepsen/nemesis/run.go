package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"penstock/jepsen/control"
	"penstock/jepsen/history"
)

// Bounds on single acts, beyond their hold time.
const (
	beginBound  = 60 * time.Second
	endBound    = 60 * time.Second
	healthBound = 60 * time.Second
	claimBound  = 20 * time.Second // for nodes that another fault holds

	secondChances = 2
	secondHold    = 5 * time.Second
)

// Run carries out the plan; a kind that was planned and never confirmed then gets two more chances, alone. It returns when
// all is undone; ctx ends it early, and undoes what is under way.
func Run(ctx context.Context, env *Env, windows []Window) error {
	confirmed := watchConfirmed(env)
	id, ok := plan(ctx, env, windows)
	for round := 0; ok && round < secondChances; round++ {
		for _, kind := range planned(windows) {
			if confirmed(kind) || ctx.Err() != nil {
				continue
			}
			id++
			salt := uint64(0)
			if len(windows) > 0 && len(windows[0].Steps) > 0 {
				salt = windows[0].Steps[0].Salt
			}
			one(ctx, env, Step{Window: len(windows) + round, Kind: kind, Hold: secondHold, Salt: salt + uint64(id)}, id)
		}
	}
	return nil
}

// watchConfirmed tells from now on which kinds were confirmed.
func watchConfirmed(env *Env) func(kind string) bool {
	var mu sync.Mutex
	seen, log := map[string]bool{}, env.Log
	env.Log = func(f history.Fault) {
		if f.Phase == history.Confirmed || f.Phase == history.Violation { // the latter has shown more than enough
			mu.Lock()
			seen[f.Kind] = true
			mu.Unlock()
		}
		log(f)
	}
	return func(kind string) bool {
		mu.Lock()
		defer mu.Unlock()
		return seen[kind]
	}
}

// planned lists the kinds of a plan in the order of their first steps.
func planned(windows []Window) []string {
	var kinds []string
	for _, w := range windows {
		for _, s := range w.Steps {
			if !slices.Contains(kinds, s.Kind) {
				kinds = append(kinds, s.Kind)
			}
		}
	}
	return kinds
}

// plan carries out the windows; ok is false when nodes did not come back, so that no further fault makes sense.
func plan(ctx context.Context, env *Env, windows []Window) (id int, ok bool) {
	start := time.Now()
	for _, w := range windows {
		if !until(ctx, start.Add(w.Start)) {
			break
		}
		var wg sync.WaitGroup
		for _, step := range w.Steps {
			if !until(ctx, start.Add(step.At)) {
				break
			}
			id++
			n := id
			wg.Go(func() { one(ctx, env, step, n) })
		}
		wg.Wait()
		if damaging(w) {
			if err := healthy(ctx, env); err != nil && ctx.Err() == nil {
				env.Log(history.Fault{T: env.Clock.Now(), Phase: history.Note, Kind: "plan", Detail: "no further faults: not all nodes came back: " + err.Error()})
				return id, false
			}
		}
		if late := time.Since(start.Add(w.End)); late > 0 {
			start = start.Add(late) // what took longer shifts the rest
		}
	}
	return id, true
}

func damaging(w Window) bool {
	for _, s := range w.Steps {
		if f, _ := Find(s.Kind); f.Damage {
			return true
		}
	}
	return false
}

func healthy(ctx context.Context, env *Env) error {
	ctx, cancel := context.WithTimeout(ctx, healthBound)
	defer cancel()
	return env.Healthy(ctx)
}

func until(ctx context.Context, t time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Until(t)):
		return true
	}
}

// one carries out one activation: claim, begin, hold, end, undo.
func one(ctx context.Context, env *Env, step Step, id int) {
	fault, _ := Find(step.Kind)
	a := &Act{Env: env, ID: id, Kind: step.Kind, Window: step.Window, Hold: step.Hold, Rand: rand.New(rand.NewPCG(step.Salt, 1))}
	if fault.Damage {
		if err := healthy(ctx, env); err != nil {
			a.log(history.Note, "left out: not all nodes were healthy before it: %v", err)
			return
		}
	}
	if n := howMany(fault.Nodes, len(env.Cluster.Nodes()), a.Rand); n > 0 {
		want := ""
		if fault.Leader && a.Rand.IntN(2) == 0 {
			want = env.Leader()
		}
		for wait := time.Now().Add(claimBound); a.Nodes == nil; {
			if a.Nodes = env.claim(a.Rand, n, want); a.Nodes == nil && (time.Now().After(wait) || !until(ctx, time.Now().Add(100*time.Millisecond))) {
				a.log(history.Note, "left out: too few nodes are free")
				return
			}
		}
		defer env.release(a.Nodes)
	}
	a.log(history.Begin, "hold %v", step.Hold.Round(time.Millisecond))
	// Undoing must happen also when the run is stopped, so it has a bound of its own.
	safe := context.WithoutCancel(ctx)
	if err := a.attempt(safe, max(beginBound, fault.Bound), fault.begin); err != nil {
		a.log(history.Error, "begin: %v", err)
	} else {
		until(ctx, time.Now().Add(step.Hold))
		if fault.end != nil {
			if err := a.attempt(safe, endBound, fault.end); err != nil {
				a.log(history.Error, "end: %v", err)
			}
		}
	}
	if err := a.undoAll(safe); err != nil {
		a.log(history.Error, "undo: %v", err)
	}
	a.log(history.End, "")
}

func (a *Act) attempt(ctx context.Context, bound time.Duration, f func(context.Context, *Act) error) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	return f(ctx, a)
}

func (a *Act) undoAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endBound)
	defer cancel()
	var errs []error
	for i := len(a.undo) - 1; i >= 0; i-- {
		errs = append(errs, a.undo[i](ctx))
	}
	return errors.Join(errs...)
}

func howMany(nodes, total int, r *rand.Rand) int {
	switch nodes {
	case -1:
		return total
	case -2:
		return 1 + r.IntN(max(1, (total-1)/2))
	case -3:
		return total/2 + 1
	}
	return nodes
}

// restart makes sure that a node runs again; it says so when the node ended again at once.
func restart(ctx context.Context, a *Act, n *control.Node) error {
	if n.Process.Running() {
		return nil
	}
	if err := a.Cluster.PowerOn(ctx, n); err != nil {
		return err
	}
	a.started(n)
	early, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if exit, err := n.Process.Wait(early); err == nil {
		a.log(history.Note, "%s ended again at once with %v", n.ID, exit)
	}
	return nil
}

// started records that a node's process runs anew.
func (a *Act) started(n *control.Node) {
	a.Env.Log(history.Fault{T: a.Clock.Now(), Phase: history.Started, ID: a.ID, Kind: a.Kind, Window: a.Window, Targets: []string{n.Host}, Wall: time.Now().UnixNano()})
}

func each(nodes []*control.Node, f func(*control.Node) error) error {
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			if err := f(n); err != nil {
				errs[i] = fmt.Errorf("%s: %w", n.Host, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
