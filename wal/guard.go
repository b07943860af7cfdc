package wal

import (
	"fmt"
	"sync/atomic"
	"time"

	"penstock/internal/watchdog"
)

// fuse is the fail-stop of I11: it blows once, with the first error, and stays
// blown. Nothing here ever tries a failed operation again: a failed fsync may
// have thrown the pages away, so a second one that succeeds proves nothing.
type fuse struct {
	err   atomic.Pointer[error]
	blown chan struct{}
	fatal func(error)
}

func newFuse(fatal func(error)) *fuse {
	return &fuse{blown: make(chan struct{}), fatal: fatal}
}

// check returns the failure, if there was one.
func (f *fuse) check() error {
	if p := f.err.Load(); p != nil {
		return *p
	}
	return nil
}

// blow records the first failure and reports it; it returns the recorded one.
func (f *fuse) blow(cause error) error {
	err := fmt.Errorf("%w: %w", ErrFailed, cause)
	if f.err.CompareAndSwap(nil, &err) {
		close(f.blown)
		f.fatal(err)
	}
	return f.check()
}

// guard runs one write or fsync (or a few that belong together). An error or
// a stall blows the fuse; what returns after the fuse blew is never success,
// not even when the disk came back.
func (l *Log) guard(op string, fn func() error) error {
	return l.guardWait(op, func() error { return ErrStalled }, fn)
}

// guardWait is guard for what may take too long for another reason than a
// disk that hangs: why tells it when the time is over.
func (l *Log) guardWait(op string, why, fn func() error) error {
	if err := l.fuse.check(); err != nil {
		return err
	}
	watch := watchdog.Start(l.cfg.StallTimeout, func() {
		_ = l.fuse.blow(fmt.Errorf("%s: %w for %s", op, why(), l.cfg.StallTimeout))
	})
	err := fn()
	watch.Stop()
	if err != nil {
		return l.fuse.blow(fmt.Errorf("%s: %w", op, err))
	}
	return l.fuse.check()
}

// begin takes the writer's turn: StoreLogs, DeleteRange, Reset and Close run
// one at a time. A turn and not a mutex, so that callers behind a write that
// hangs get their error too. The turn is held across I/O; Log.mu never is.
func (l *Log) begin() error {
	select {
	case l.turn <- struct{}{}:
	case <-l.fuse.blown:
		return l.fuse.check()
	case <-l.closed:
		return ErrClosed
	}
	if err := l.usable(); err != nil {
		<-l.turn
		return err
	}
	l.since.Store(time.Now().UnixNano())
	return nil
}

func (l *Log) end() {
	l.since.Store(0)
	<-l.turn
}

// usable says whether calls may go on.
func (l *Log) usable() error {
	if err := l.fuse.check(); err != nil {
		return err
	}
	select {
	case <-l.closed:
		return ErrClosed
	default:
		return nil
	}
}
