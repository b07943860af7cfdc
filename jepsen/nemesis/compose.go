package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock/jepsen/control"
	"penstock/jepsen/history"
)

// ContainerFault is one kind of fault on the containers of a running Compose project.
type ContainerFault struct {
	Name, What, Confirmed string

	begin, undo func(*control.Container, context.Context) error
	restarts    bool // what runs after undo is a new process
}

// ContainerFaults lists them. Their names are those of the faults of processes where they do the same.
func ContainerFaults() []ContainerFault {
	return []ContainerFault{
		{Name: "kill", What: "SIGKILL of a container, the leader's in half of the cases; started again", Confirmed: "the engine has reaped it with code 137",
			begin: (*control.Container).Kill, undo: (*control.Container).Start, restarts: true},
		{Name: "pause", What: "every process of a container frozen; later let go on", Confirmed: "the engine says paused, and the node answers nothing",
			begin: (*control.Container).Pause, undo: (*control.Container).Unpause},
		{Name: "disconnect", What: "a container is taken off its network with all its connections; later brought back under its name",
			Confirmed: "the engine shows it on no network, and the node answers nothing", begin: (*control.Container).Disconnect, undo: (*control.Container).Connect},
	}
}

func containerFault(name string) (ContainerFault, bool) {
	all := ContainerFaults()
	i := slices.IndexFunc(all, func(f ContainerFault) bool { return f.Name == name })
	if i < 0 {
		return ContainerFault{}, false
	}
	return all[i], true
}

// ExpandContainers turns names into kinds; all and mixed are all of them.
func ExpandContainers(names []string) ([]string, error) {
	var kinds, known []string
	for _, f := range ContainerFaults() {
		known = append(known, f.Name)
	}
	for _, name := range names {
		switch _, ok := containerFault(name); {
		case name == "all" || name == "mixed":
			kinds = append(kinds, known...)
		case ok:
			kinds = append(kinds, name)
		case name != "none" && name != "":
			return nil, fmt.Errorf("no nemesis of containers is named %q: want %s", name, strings.Join(known, ", "))
		}
	}
	slices.Sort(kinds)
	return slices.Compact(kinds), nil
}

// ContainerEnv is what the faults of containers work with.
type ContainerEnv struct {
	Compose *control.Compose
	Clock   history.Clock
	Log     func(history.Fault)
	Leader  func() string // name of the present leader's container, "" when none is known

	mu      sync.Mutex
	claimed map[*control.Container]bool
}

// claim reserves one container, half of the time the leader's, or gives nil when none is free.
func (e *ContainerEnv) claim(r *rand.Rand) *control.Container {
	leader := ""
	if r.IntN(2) == 0 {
		leader = e.Leader()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.claimed == nil {
		e.claimed = map[*control.Container]bool{}
	}
	free := slices.DeleteFunc(slices.Clone(e.Compose.Containers), func(c *control.Container) bool { return e.claimed[c] })
	if len(free) == 0 {
		return nil
	}
	chosen := free[r.IntN(len(free))]
	for _, c := range free {
		if c.Name == leader {
			chosen = c
		}
	}
	e.claimed[chosen] = true
	return chosen
}

func (e *ContainerEnv) release(c *control.Container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.claimed, c)
}

// RunContainers carries out a plan on containers; each fault holds one of them. A kind that was planned and never confirmed then
// gets two more chances, alone. It returns when all is undone; ctx ends it early, and undoes what is under way.
func RunContainers(ctx context.Context, env *ContainerEnv, windows []Window) {
	var seen sync.Map
	log := env.Log
	env.Log = func(f history.Fault) {
		if f.Phase == history.Confirmed {
			seen.Store(f.Kind, true)
		}
		log(f)
	}
	id := env.plan(ctx, windows)
	for round := range secondChances {
		for _, kind := range planned(windows) {
			if _, ok := seen.Load(kind); ok || ctx.Err() != nil {
				continue
			}
			id++
			env.one(ctx, Step{Window: len(windows) + round, Kind: kind, Hold: secondHold, Salt: uint64(id)}, id)
		}
	}
}

// plan carries out the windows and gives the number of the last activation.
func (e *ContainerEnv) plan(ctx context.Context, windows []Window) (id int) {
	start := time.Now()
	for _, w := range windows {
		var wg sync.WaitGroup
		for _, step := range w.Steps {
			if !until(ctx, start.Add(step.At)) {
				break
			}
			id++
			number := id // the next step counts on while this one works
			wg.Go(func() { e.one(ctx, step, number) })
		}
		wg.Wait()
		if late := time.Since(start.Add(w.End)); late > 0 {
			start = start.Add(late) // what took longer shifts the rest
		}
	}
	return id
}

// one carries out one activation: claim, begin, hold, undo.
func (e *ContainerEnv) one(ctx context.Context, step Step, id int) {
	fault, ok := containerFault(step.Kind)
	r := rand.New(rand.NewPCG(step.Salt, 1))
	log := func(phase, target, format string, args ...any) {
		e.Log(history.Fault{T: e.Clock.Now(), Phase: phase, ID: id, Kind: step.Kind, Window: step.Window, Targets: []string{target}, Detail: fmt.Sprintf(format, args...)})
	}
	target := e.claim(r)
	if !ok || target == nil {
		log(history.Note, "", "left out: no such kind, or no container is free")
		return
	}
	defer e.release(target)
	log(history.Begin, target.Name, "hold %v", step.Hold.Round(time.Millisecond))
	safe := context.WithoutCancel(ctx) // what began must be undone also when the run is stopped
	begin, cancel := context.WithTimeout(safe, beginBound)
	err := fault.begin(target, begin)
	cancel()
	if err != nil {
		log(history.Error, target.Name, "begin: %v", err)
	} else {
		log(history.Confirmed, target.Name, "%s", fault.Confirmed)
		until(ctx, time.Now().Add(step.Hold))
	}
	end, cancel := context.WithTimeout(safe, endBound)
	defer cancel()
	if undoErr := fault.undo(target, end); undoErr != nil {
		_, healErr := target.Heal(end) // it may have begun in part
		if healErr = errors.Join(healErr, undoErr); err == nil {
			log(history.Error, target.Name, "undo: %v", healErr)
		}
	}
	if fault.restarts && err == nil {
		e.Log(history.Fault{T: e.Clock.Now(), Phase: history.Started, ID: id, Kind: step.Kind, Window: step.Window, Targets: []string{target.Name}, Wall: time.Now().UnixNano()})
	}
	log(history.End, target.Name, "")
}
