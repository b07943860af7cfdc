package wal

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"penstock/internal/chaos"
	"penstock/internal/mutant"
)

// StoreLog implements raft.LogStore.
func (l *Log) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

// StoreLogs appends entries: one write of one aligned buffer and one
// fdatasync, and only after that are they readable and is nil returned (I1).
// (More than fits into one segment takes more than one of each; a crash in
// between leaves a prefix, which Raft allows.) The first entry must be last+1,
// also on an empty log: only Reset moves the base.
//
// The entries' Data and Extensions are kept in the tail cache: they must not
// be written to any more.
func (l *Log) StoreLogs(logs []*raft.Log) error {
	if err := l.begin(); err != nil {
		return err
	}
	defer l.end()
	if err := l.whole(); err != nil {
		return err
	}
	// Only the turn's holder changes last, so it is read without mu.
	for i, e := range logs {
		if want := l.mu.last + 1 + uint64(i); e.Index != want {
			return fmt.Errorf("%w: got index %d, want %d", ErrNotContiguous, e.Index, want)
		}
		if err := checkEntry(e); err != nil {
			return err
		}
	}
	return l.store(logs)
}

// store writes entries that were checked. The turn must be held.
func (l *Log) store(logs []*raft.Log) error {
	for len(logs) > 0 {
		tail := l.tail()
		n, blocks := l.fit(tail, logs)
		if blocks > tail.blocks-tail.end {
			if err := l.roll(blocks); err != nil {
				return err
			}
			tail = l.tail()
		}
		if err := l.storeBatch(tail, logs[:n]); err != nil {
			return err
		}
		logs = logs[n:]
	}
	return nil
}

// tail is the segment written to. The turn must be held; the lock is for the
// slice, whose front SetFloor may take away meanwhile.
func (l *Log) tail() *segment {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.segs[len(l.mu.segs)-1]
}

// fit says how many entries make the next batch, and how many blocks that
// takes: all of them, when a fresh segment can hold them.
func (l *Log) fit(tail *segment, logs []*raft.Log) (n int, blocks uint32) {
	room := max(l.cfg.blocks()-1, tail.blocks-tail.end)
	total := entryBytes(logs[0]) // an entry too large for any gets its own segment
	for n = 1; n < len(logs); n++ {
		next := total + entryBytes(logs[n])
		if blocksFor(next) > room {
			break
		}
		total = next
	}
	return n, blocksFor(total)
}

// storeBatch writes one batch that fits. The point of no return for the ack is
// the Sync inside; memory changes only behind it.
func (l *Log) storeBatch(tail *segment, logs []*raft.Log) error {
	raw, offsets := l.writer.enc.encode(&tail.segmentHeader, tail.end, logs)
	marked := l.markRolled()
	err := l.guard("append", func() error {
		if _, err := tail.file.WriteAt(raw, int64(tail.end)*blockSize); err != nil {
			return err
		}
		chaos.Point("wal.before_fsync")
		began := time.Now()
		if mutant.On(mutant.AckBeforeFsync) {
			return nil
		}
		err := tail.file.Sync()
		l.metrics.fsync.Observe(time.Since(began).Seconds())
		return err
	})
	if merr := <-marked; err == nil {
		err = merr
	}
	if err != nil {
		return err
	}
	chaos.Point("wal.after_fsync")
	l.metrics.appended.Add(float64(len(raw)))

	last := logs[len(logs)-1]
	l.mu.Lock()
	tail.appendLocked(offsets)
	tail.end += uint32(len(raw) / blockSize)
	l.mu.last, l.mu.lastTerm = last.Index, last.Term
	for _, e := range logs {
		l.mu.cache.add(e)
	}
	l.mu.Unlock()
	l.appended()
	return nil
}

// roll opens the next segment behind a full one.
func (l *Log) roll(blocks uint32) error {
	chaos.Point("wal.before_segment")
	seg, err := l.openSegment(kindRoll, l.mu.last+1, l.mu.lastTerm, l.tailOrPrev(), blocks)
	if err != nil {
		return err
	}
	l.install(seg, nil)
	l.writer.rolled = true
	return nil
}

// markRolled writes the mark beside the first batch of a segment, so that the
// mark names the segment before anything in it is acked: losing the file is
// noticed then. Both flushes run at once; it costs the ack next to nothing,
// once in a segment. The answer is nil at once when there is nothing to do.
func (l *Log) markRolled() <-chan error {
	if !l.writer.rolled {
		return nilErrors
	}
	l.writer.rolled = false
	done := make(chan error, 1)
	go func() {
		_, err := l.markNow(false)
		done <- err
		l.hurry()
	}()
	return done
}

// nilErrors answers nil at once, for ever.
var nilErrors = func() <-chan error {
	c := make(chan error)
	close(c)
	return c
}()
