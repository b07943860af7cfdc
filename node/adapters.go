package node

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"penstock/cluster"
	"penstock/emit"
	"penstock/fsm"
	"penstock/node/owner"
	"penstock/wal"

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

// repairableLog is the log as cluster repairs it.
type repairableLog struct{ *wal.Log }

var _ cluster.RepairLog = repairableLog{}

// Damage implements cluster.RepairLog.
func (l repairableLog) Damage() []cluster.LogDamage {
	list := l.Log.Damage()
	out := make([]cluster.LogDamage, len(list))
	for i, d := range list {
		out[i] = cluster.LogDamage{
			First: d.First, Last: d.Last, OpenEnd: d.OpenEnd, Known: d.Known, Term: d.Term, PayloadCRC: d.PayloadCRC,
			Hole: d.Kind == wal.DamageHole, Text: d.String(),
		}
	}
	return out
}

// Recovered implements cluster.RepairLog.
func (l repairableLog) Recovered() (mark uint64, short bool) {
	r := l.Recovery()
	return r.MarkIndex, r.Short
}

// Recheck implements cluster.RepairLog.
func (l repairableLog) Recheck(ctx context.Context, index uint64) error {
	_, err := l.Log.Recheck(ctx, index)
	return err
}

// minScrubRate is the least rate of a scrub, in bytes a second: a small log is done in no time.
const minScrubRate = 8 << 20

// Scrub implements cluster.RepairLog.
func (l repairableLog) Scrub(ctx context.Context, within time.Duration) error {
	rate := int64(float64(l.Stats().RetainedBytes) / within.Seconds())
	_, err := l.Log.Scrub(ctx, max(rate, minScrubRate))
	return err
}

// readableLog is the log as events are read from it: an entry that turns out damaged is repaired in the background.
type readableLog struct {
	*wal.Log
	mend func(index uint64)
}

// GetLog implements logread.Log.
func (l readableLog) GetLog(index uint64, out *raft.Log) error {
	err := l.Log.GetLog(index, out)
	var damage *wal.DamageError
	if errors.As(err, &damage) {
		l.mend(index)
	}
	return err
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
