package cluster

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

var errCatchingUp = errors.New("the log has not reached the installed state yet")

// fsmAdapter is the state machine as Raft sees it. All but Persist runs on Raft's FSM goroutine.
type fsmAdapter struct {
	c     *Cluster
	abort *atomic.Bool // of the instance
}

// Apply implements raft.FSM. The response is [][]byte, one result per command, or the error that ends the process.
func (a *fsmAdapter) Apply(e *raft.Log) any {
	if err := a.c.failure(); err != nil {
		return err // in production the process is gone; nothing is applied after a failure
	}
	results, err := a.c.sm.Apply(e.Index, e.Term, e.Data)
	if err != nil {
		err = fmt.Errorf("apply entry %d: %w", e.Index, err)
		a.c.fatal(exitCodeOf(err, ExitFailed), err)
		return err
	}
	a.c.applied.fire()
	return results
}

// StoreConfiguration implements raft.ConfigurationStore: it is told each committed configuration.
func (a *fsmAdapter) StoreConfiguration(index uint64, conf raft.Configuration) {
	if err := a.c.book.configure(conf, index); err != nil {
		a.c.fatal(ExitDisk, fmt.Errorf("store the members as of %d: %w", index, err))
	}
	a.c.changed.fire()
}

// Snapshot implements raft.FSM. Raft labels what it gets with the index it handed out last; while an installation catches up the
// state is ahead of that, so there is none to be had.
func (a *fsmAdapter) Snapshot() (raft.FSMSnapshot, error) {
	if a.c.snaps.pending() != nil {
		return nil, errCatchingUp
	}
	gen := a.c.snaps.generation()
	index, _ := a.c.sm.Applied()
	newest := a.c.snaps.newest()
	if index < 2 || newest != nil && newest.StateIndex >= index {
		return nil, raft.ErrNothingNewToSnapshot
	}
	s, err := a.c.sm.Snapshot()
	if err != nil {
		return nil, fmt.Errorf("snapshot the state machine: %w", err)
	}
	return &fsmSnapshot{s: s, gen: gen, abort: a.abort}, nil
}

// Restore implements raft.FSM. It is only reached for an installation: Raft is told not to restore at start, and raft.Restore is never
// called.
func (a *fsmAdapter) Restore(data io.ReadCloser) error {
	c := a.c
	marker := c.snaps.pending()
	if marker == nil || marker.Phase != phaseInstalling {
		return errors.New("restore without an installation")
	}
	stale, err := c.snaps.completeInstall(c.sm, marker, data)
	if err != nil {
		err = fmt.Errorf("install a snapshot at %d: %w", marker.LabelIndex, err)
		c.fatal(exitCodeOf(err, ExitDisk), err)
		return err
	}
	if m := c.snaps.newest(); m != nil {
		if err := c.book.configure(raft.DecodeConfiguration(m.Configuration), m.ConfigurationIndex); err != nil {
			c.fatal(ExitDisk, err)
			return err
		}
	}
	applied, _ := c.sm.Applied()
	c.logger.Info("a snapshot was installed", "label", marker.LabelIndex, "applied", applied, "rebuild", stale)
	c.installs.Add(1)
	c.metrics.installs.WithLabelValues("received").Inc()
	c.log.grown.Store(0)
	c.applied.fire()
	if stale {
		c.askRebuild()
	}
	return nil
}

type fsmSnapshot struct {
	s     Snapshot
	gen   uint64
	abort *atomic.Bool
}

var errAborted = errors.New("raft is being stopped")

// Persist implements raft.FSMSnapshot. It runs beside Apply.
func (f *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	k, ok := sink.(*snapshotSink)
	if !ok {
		return fmt.Errorf("persist into a foreign sink %T", sink)
	}
	if err := k.local(f.s.Index(), f.s.Term(), f.gen); err != nil {
		return err
	}
	if _, err := f.s.WriteTo(abortableWriter{k, f.abort}); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	return k.Close()
}

type abortableWriter struct {
	io.Writer
	abort *atomic.Bool
}

func (w abortableWriter) Write(p []byte) (int, error) {
	if w.abort != nil && w.abort.Load() {
		return 0, errAborted
	}
	return w.Writer.Write(p)
}

// Release implements raft.FSMSnapshot.
func (f *fsmSnapshot) Release() { f.s.Close() }
