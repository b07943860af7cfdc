package cluster

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

const (
	shutdownWait = 15 * time.Second // above rpcTimeout, though every connection is closed first
	rebuildGrace = 300 * time.Millisecond
)

// raftInstance is one run of the Raft library over log, stable store and snapshots. It can be replaced: see rebuild.
type raftInstance struct {
	raft   *raft.Raft
	trans  *transport
	stream *streamLayer
	obs    *raft.Observer
	events chan raft.Observation
	abort  atomic.Bool
	// running is raft for those that may ask before newInstance has returned.
	running atomic.Pointer[raft.Raft]
}

// leads tells whether this instance leads in a term.
func (in *raftInstance) leads(term uint64) bool {
	r := in.running.Load()
	return r != nil && r.State() == raft.Leader && r.CurrentTerm() == term
}

func (c *Cluster) raftConfig() *raft.Config {
	t := c.cfg.Timers
	return &raft.Config{
		ProtocolVersion: raft.ProtocolVersionMax, LocalID: raft.ServerID(c.cfg.NodeID),
		HeartbeatTimeout: t.Heartbeat, ElectionTimeout: t.Election, LeaderLeaseTimeout: t.Lease, CommitTimeout: t.Commit,
		MaxAppendEntries: 64, BatchApplyCh: true, ShutdownOnRemove: false,
		// Snapshots are ours to trigger. TrailingLogs keeps a compaction from ever being a whole-log delete.
		SnapshotInterval: 24 * time.Hour, SnapshotThreshold: math.MaxUint64, TrailingLogs: c.cfg.TrailingLogs,
		NoSnapshotRestoreOnStart: true, NoLegacyTelemetry: true, Logger: c.raftLogger,
	}
}

func (c *Cluster) newInstance() (*raftInstance, error) {
	in := &raftInstance{stream: newStreamLayer(c.cfg.NodeID, c.dialRaft), events: make(chan raft.Observation, 64)}
	in.trans = newTransport(transportConfig{
		stream: in.stream, maxBytes: c.cfg.AppendBytes, silent: c.log.silent, gate: c.gate, logger: c.raftLogger,
		mayStand: c.mayStand, leads: func(peer string, term uint64) bool { return in.leads(term) && c.book.configured(peer) },
		onInstall: func(peer string) {
			c.logger.Info("sending a snapshot", "peer", peer)
			c.metrics.installs.WithLabelValues("sent").Inc()
		},
	})
	index, term := c.snaps.start()
	c.log.standIn = raft.Log{Index: index, Term: term, Type: raft.LogNoop}
	c.log.grown.Store(0)
	c.log.scan.Store(true) // NewRaft reads all entries after the snapshot
	r, err := raft.NewRaft(c.raftConfig(), &fsmAdapter{c: c, abort: &in.abort}, c.log, c.stable, c.snaps, in.trans)
	c.log.scan.Store(false)
	if err != nil {
		in.trans.Close()
		return nil, fmt.Errorf("start raft: %w", err)
	}
	in.raft = r
	in.running.Store(r)
	in.obs = raft.NewObserver(in.events, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.RaftState, raft.LeaderObservation:
			return true
		}
		return false
	})
	r.RegisterObserver(in.obs)
	return in, nil
}

// stop ends the instance. The connections go before the wait: Raft's goroutines may sit in an RPC.
//
// A local snapshot that is being written ends with an error: a large one would hold the wait.
func (in *raftInstance) stop() error {
	in.abort.Store(true)
	in.raft.DeregisterObserver(in.obs)
	future := in.raft.Shutdown()
	in.trans.Close()
	done := make(chan error, 1)
	go func() { done <- future.Error() }()
	select {
	case err := <-done:
		return err
	case <-time.After(shutdownWait):
		return fmt.Errorf("raft did not stop within %s", shutdownWait)
	}
}

func (c *Cluster) instance() *raftInstance { return c.current.Load() }

// startRaft runs the first instance.
func (c *Cluster) startRaft() error {
	in, err := c.newInstance()
	if err != nil {
		return &ExitError{Code: exitCodeOf(err, ExitDisk), Err: err}
	}
	c.current.Store(in)
	c.wg.Go(func() { c.watch(in) })
	c.changed.fire()
	return nil
}

// askRebuild stops every answer of the present instance and has it replaced.
func (c *Cluster) askRebuild() {
	c.stale.Store(true)
	select {
	case c.rebuilds <- struct{}{}:
	default:
	}
}

// rebuild replaces the instance after an installation that found a last index at or above its label: Raft's copy of the last index is
// then above the end of the log, and every append would fail for ever (hashicorp/raft#697).
func (c *Cluster) rebuild(ctx context.Context) {
	old := c.instance()
	if old == nil {
		return
	}
	select { // let the answer to the installation go out
	case <-time.After(rebuildGrace):
	case <-ctx.Done():
		return
	}
	c.logger.Info("raft starts anew over the installed snapshot")
	c.current.Store(nil)
	if err := c.stopInstance(old); err != nil {
		c.fatal(ExitFailed, fmt.Errorf("rebuild raft: %w", err))
		return
	}
	if ctx.Err() != nil {
		return
	}
	c.stale.Store(false)
	if err := c.startRaft(); err != nil {
		c.fatal(exitCodeOf(err, ExitDisk), err)
	}
}

// await waits for a future no longer than ctx. Some futures of Raft are never answered when it shuts down; such a one costs a goroutine.
func await(ctx context.Context, f raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
