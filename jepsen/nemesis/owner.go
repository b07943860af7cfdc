package nemesis

import (
	"context"
	"fmt"
	"slices"
	"time"

	"penstock/jepsen/control"
)

func ownerFaults() []Fault {
	return []Fault{{
		Name: "owner-cut", Alone: true,
		What:      "a destination refuses, so that deliveries wait; the owner of its emitter is cut off from the other nodes but not from the destination; when the log has given the emitter to another, the destination is well again: only the new owner may send",
		Confirmed: "packets were counted by the rules, and another owner was named", begin: cutOwner, end: countHits,
	}}
}

// moveBound is how long an emitter may take to move: the lease, 5 s of silence, an election, on a busy machine.
const moveBound = 30 * time.Second

func cutOwner(ctx context.Context, a *Act) error {
	emitter := "hook" // one event each: the most attempts
	if !slices.Contains(a.Emitters, emitter) || a.Rand.IntN(4) == 0 {
		emitter = a.Emitters[a.Rand.IntN(len(a.Emitters))]
	}
	a.Hold = 5 * time.Second
	if err := a.Destination(ctx, emitter, "503"); err != nil {
		return err
	}
	a.later(func(ctx context.Context) error { return a.Destination(ctx, emitter, "ok") })
	if err := sleep(ctx, 3*time.Second); err != nil {
		return err
	}
	old, err := a.Owner(ctx, emitter, "")
	if err != nil {
		return err
	}
	nodes := a.Cluster.Nodes()
	i := slices.IndexFunc(nodes, func(n *control.Node) bool { return n.Host == old })
	if i < 0 {
		return fmt.Errorf("%s has no owner (%q)", emitter, old)
	}
	a.Nodes = nodes[i : i+1 : i+1]
	if err := a.split(ctx, a.Nodes, slices.Concat(nodes[:i], nodes[i+1:])); err != nil {
		return err
	}
	for deadline := time.Now().Add(moveBound); ; {
		owner, err := a.Owner(ctx, emitter, old)
		if err == nil && owner != "" && owner != old {
			a.confirm("%s moved from %s to %s", emitter, old, owner)
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s has not moved from %s within %v: %v", emitter, old, moveBound, err)
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	return a.Destination(ctx, emitter, "ok")
}
