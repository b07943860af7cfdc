package wal

import (
	"errors"
	"io/fs"
	"time"
)

// appended tells the keeper that there is something new to mark. Only the
// first append after a mark wakes it, so the ack path pays for one atomic.
func (l *Log) appended() {
	if l.dirty.CompareAndSwap(false, true) {
		poke(l.wake)
	}
}

// hurry makes the keeper write a mark and remove doomed files now.
func (l *Log) hurry() {
	l.urgent.Store(true)
	poke(l.wake)
}

// poke wakes a goroutine that waits on a channel of capacity 1.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// keep is the keeper's goroutine: it writes the durable mark at most once an
// interval (and so also when the log falls idle), and removes files that are
// no longer part of the log. Started by Open, stopped by Close; it may block
// on disk, under the same stall limit as any write.
func (l *Log) keep() {
	defer l.loops.Done()
	for {
		select {
		case <-l.wake:
		case <-l.closed:
			return
		case <-l.fuse.blown:
			return
		}
		if !l.urgent.Load() && !l.pause(l.cfg.MarkInterval) {
			return
		}
		if l.tidy() != nil {
			return // the fuse blew and has told
		}
	}
}

// pause waits, less when something urgent comes; false means stop.
func (l *Log) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case <-l.wake:
			if l.urgent.Load() {
				return true
			}
		case <-l.closed:
			return false
		case <-l.fuse.blown:
			return false
		}
	}
}

// tidy makes the mark say what is durable now, and then lets go of the files
// that were taken out of the chain before. Never the other way round: a
// missing file that the mark still asks for would be damage.
func (l *Log) tidy() error {
	l.urgent.Store(false)
	doomed, err := l.markNow(true)
	if err != nil {
		return err
	}
	for _, seg := range doomed {
		l.retire(seg)
	}
	return nil
}

// markNow writes the mark when it says something new. With take it also hands
// over the doomed segments, all of which left the chain before that mark.
func (l *Log) markNow(take bool) (doomed []*segment, err error) {
	l.markMu.Lock()
	defer l.markMu.Unlock()
	l.dirty.Store(false)
	l.mu.Lock()
	if l.mu.stuck != nil {
		l.mu.Unlock()
		return nil, nil // the mark on disk knows better what must be here
	}
	tail := l.mu.segs[len(l.mu.segs)-1]
	m := mark{
		first: l.mu.segs[0].number, newest: tail.number, gen: tail.gen, end: tail.end,
		lastIndex: l.mu.last, lastTerm: l.mu.lastTerm, head: tail.copy(),
	}
	if l.mu.owed > m.lastIndex {
		m.lastIndex, m.lastTerm = l.mu.owed, l.mu.owedTerm
	}
	if take {
		doomed, l.mu.doomed = l.mu.doomed, nil
	}
	l.mu.Unlock()
	m.closed = l.closing
	if l.marker.covers(m) {
		return doomed, nil
	}
	if err := l.guard("write mark", func() error { return l.marker.write(m) }); err != nil {
		l.mu.Lock()
		l.mu.doomed = append(doomed, l.mu.doomed...) // for Close to let go of
		l.mu.Unlock()
		return nil, err
	}
	return doomed, nil
}

// removeFile removes a dead file. A failure costs space and nothing else: the
// next Open finds the file dead and tries again.
func (l *Log) removeFile(path string) {
	if err := l.fs.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Warn("dead log file stays", "file", path, "error", err)
	}
}
