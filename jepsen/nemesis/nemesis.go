package nemesis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"penstock/jepsen/control"
	"penstock/jepsen/history"
)

// Env is what faults work with.
type Env struct {
	Cluster *control.Cluster
	Clock   history.Clock
	Log     func(history.Fault)
	// Leader names the host of the present leader, "" when none is known.
	Leader func() string
	// Healthy returns when every node runs, is ready and has caught up, or with an error when ctx ends.
	Healthy func(ctx context.Context) error
	// Destination sets the mode of one emitter's destination; Failures counts what it refused so far.
	Destination func(ctx context.Context, emitter, mode string) error
	Failures    func(ctx context.Context) (int, error)
	Emitters    []string // webhook emitters
	// Owner is the host that owns an emitter, as a node other than not tells it.
	Owner func(ctx context.Context, emitter, not string) (host string, err error)
	// Join and Remove change the membership; they are how a lost disk comes back under a new id.
	Join   func(ctx context.Context, id string) error
	Remove func(ctx context.Context, id string) error
	// Evict removes a node also when no voter is left to spare; Demote takes its vote likewise.
	Evict  func(ctx context.Context, id string) error
	Demote func(ctx context.Context, id string) error
	// Snapshot makes one node take a snapshot; Transfer hands the leadership to the node with this id.
	Snapshot func(ctx context.Context, host string) error
	Transfer func(ctx context.Context, id string) error
	// First is the lowest index in a node's log.
	First  func(ctx context.Context, host string) (uint64, error)
	TmpDir string // for traces

	mu      sync.Mutex
	claimed map[string]bool
}

// claim reserves nodes for one fault, so that no two act on the same process or volume. want is a preferred host.
func (e *Env) claim(r *rand.Rand, n int, want string) []*control.Node {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.claimed == nil {
		e.claimed = map[string]bool{}
	}
	var free []*control.Node
	for _, node := range e.Cluster.Nodes() {
		if !e.claimed[node.Host] {
			free = append(free, node)
		}
	}
	if len(free) < n {
		return nil
	}
	r.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	slices.SortStableFunc(free, func(a, b *control.Node) int { return rank(a.Host == want) - rank(b.Host == want) })
	for _, node := range free[:n] {
		e.claimed[node.Host] = true
	}
	return free[:n]
}

func rank(first bool) int {
	if first {
		return 0
	}
	return 1
}

func (e *Env) release(nodes []*control.Node) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range nodes {
		delete(e.claimed, n.Host)
	}
}

// Act is one activation of one kind.
type Act struct {
	*Env
	ID     int
	Kind   string
	Window int
	Nodes  []*control.Node // claimed
	Rand   *rand.Rand
	Hold   time.Duration
	undo   []func(context.Context) error
}

func (a *Act) log(phase, format string, args ...any) {
	var targets []string
	for _, n := range a.Nodes {
		targets = append(targets, n.Host)
	}
	a.Env.Log(history.Fault{
		T: a.Clock.Now(), Phase: phase, ID: a.ID, Kind: a.Kind, Window: a.Window, Targets: targets, Detail: fmt.Sprintf(format, args...),
	})
}

func (a *Act) confirm(format string, args ...any) { a.log(history.Confirmed, format, args...) }

// later registers what undoes a step; the steps are undone in reverse order.
func (a *Act) later(f func(context.Context) error) { a.undo = append(a.undo, f) }

// Fault is one kind.
type Fault struct {
	Name string
	// What it does and how it is confirmed, for `jepsen list` and the README.
	What, Confirmed string
	// Nodes to claim: 0 none, -1 all, -2 a minority, -3 a majority.
	Nodes int
	// Leader prefers the leader as target in about half of the activations.
	Leader bool
	// Alone: nothing else in the same window. Damage: also waits for health before and after.
	Alone, Damage bool
	// Long: holds for most of a window. Repeat: several times in a window.
	Long, Repeat bool
	// Bound of begin, when it is not beginBound.
	Bound time.Duration

	begin func(ctx context.Context, a *Act) error
	end   func(ctx context.Context, a *Act) error // before the undo steps; may be nil
}

// Kinds lists every fault, by the order of the README.
func Kinds() []Fault {
	return slices.Concat(processFaults(), powerFaults(), networkFaults(), diskFaults(), damageFaults(), destinationFaults(), ownerFaults(), memberFaults())
}

// Find gives the fault of a name.
func Find(name string) (Fault, bool) {
	i := slices.IndexFunc(Kinds(), func(f Fault) bool { return f.Name == name })
	if i < 0 {
		return Fault{}, false
	}
	return Kinds()[i], true
}

// Groups are names for several kinds.
func Groups() map[string][]string {
	groups := map[string][]string{"all": nil, "crash": nil, "network": nil, "disk": nil, "damage": nil}
	for _, f := range Kinds() {
		groups["all"] = append(groups["all"], f.Name)
		if !f.Damage {
			groups["mixed"] = append(groups["mixed"], f.Name)
		}
	}
	for group, kinds := range map[string][]Fault{
		"crash": slices.Concat(processFaults(), powerFaults()), "network": networkFaults(), "disk": diskFaults(), "damage": damageFaults(),
	} {
		for _, f := range kinds {
			groups[group] = append(groups[group], f.Name)
		}
	}
	return groups
}

// Expand turns a list of kinds and groups into kinds, without repeats.
func Expand(names []string) ([]string, error) {
	var kinds []string
	for _, name := range names {
		members, ok := Groups()[name]
		if _, isKind := Find(name); isKind {
			members, ok = []string{name}, true
		}
		if !ok && name != "none" && name != "" {
			return nil, fmt.Errorf("no nemesis is named %q; `jepsen list` shows them", name)
		}
		for _, m := range members {
			if !slices.Contains(kinds, m) {
				kinds = append(kinds, m)
			}
		}
	}
	return kinds, nil
}
