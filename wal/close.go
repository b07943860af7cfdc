package wal

import (
	"errors"
	"time"
)

// failedWait is how long Close waits, after a failure, for goroutines that may
// hang in the disk.
const failedWait = time.Second

// Close writes a last mark, waits for the goroutines and gives the folder up.
// It may be called again; calls in progress end first.
func (l *Log) Close() error {
	err := l.begin()
	if errors.Is(err, ErrClosed) {
		return nil
	}
	if err == nil {
		defer l.end()
		// The turn is held for good: whatever was stored is synced, and nothing more will be.
		l.markMu.Lock()
		l.closing = true
		l.markMu.Unlock()
		err = l.tidy()
	}
	if errors.Is(err, ErrFailed) {
		err = nil // it has been told; what is left is to let go
	}
	return errors.Join(err, l.shut())
}

// shut stops the goroutines and closes the files.
func (l *Log) shut() error {
	l.mu.Lock()
	select {
	case <-l.closed:
		l.mu.Unlock()
		return nil
	default:
	}
	close(l.closed)
	l.mu.Unlock()
	l.waitLoops()
	l.mu.Lock()
	segs := append(append([]*segment(nil), l.mu.segs...), l.mu.doomed...)
	l.mu.Unlock()
	l.metrics.unregister(l.cfg.Registerer)
	var errs []error
	for _, seg := range segs {
		errs = append(errs, seg.file.release())
	}
	if l.marker != nil {
		errs = append(errs, l.marker.file.Close())
	}
	return errors.Join(append(errs, l.lock.Close())...)
}

func (l *Log) waitLoops() {
	done := make(chan struct{})
	go func() { l.loops.Wait(); close(done) }()
	if l.fuse.check() == nil {
		<-done
		return
	}
	select {
	case <-done:
	case <-time.After(failedWait):
	}
}
