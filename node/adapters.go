package node

import (
	"encoding/json"

	"penstock/cluster"
	"penstock/emit"
	"penstock/fsm"
	"penstock/node/owner"

	"penstock/internal/mutant"
)

// stateMachine is the state machine as cluster declares it.
type stateMachine struct{ *fsm.Machine }

// Snapshot implements cluster.StateMachine.
func (s stateMachine) Snapshot() (cluster.Snapshot, error) {
	snap, err := s.Machine.Snapshot()
	if err != nil {
		return nil, err
	}
	return snap, nil
}

// members is the cluster as the placement of owners sees it.
func members(c *cluster.Cluster) owner.Members {
	return func() ([]emit.Node, bool) {
		nodes, ok := c.Owners()
		if !ok {
			return nil, false
		}
		fails := map[string]bool{}
		for _, m := range c.Members() {
			var r reported
			if len(m.Extra) > 0 && json.Unmarshal(m.Extra, &r) == nil {
				fails[m.ID] = r.VolumeFails
			}
		}
		out := make([]emit.Node, len(nodes))
		for i, n := range nodes {
			out[i] = emit.Node{ID: n.ID, Live: n.Live, Silent: n.Silent, Eligible: n.Eligible && !fails[n.ID]}
		}
		return out, true
	}
}

// lease is this node's owner lease as emit declares it.
type lease struct{ cluster *cluster.Cluster }

func leaseOf(c *cluster.Cluster) emit.Lease { return lease{c} }

// Valid implements emit.Lease.
func (l lease) Valid() bool { return mutant.On(mutant.EmitOldEpoch) || l.cluster.Lease().Valid() }

// Lost implements emit.Lease.
func (l lease) Lost() <-chan struct{} {
	if mutant.On(mutant.EmitOldEpoch) {
		return nil
	}
	return l.cluster.Lease().Lost()
}
