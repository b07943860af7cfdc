package destination

import (
	"encoding/json"
	"errors"
	"os"
	"sync"
)

// syncLog appends lines and returns after the fsync that covers them; appends that wait together share one.
type syncLog struct {
	mu      sync.Mutex
	cond    *sync.Cond
	f       *os.File
	pending []byte
	written uint64 // generation of the last line handed in
	synced  uint64 // generation of the last line on disk
	syncing bool
	err     error
}

func newSyncLog(f *os.File) *syncLog {
	l := &syncLog{f: f}
	l.cond = sync.NewCond(&l.mu)
	return l
}

func (l *syncLog) append(a Attempt) error {
	line, err := json.Marshal(a)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = append(append(l.pending, line...), '\n')
	l.written++
	for mine := l.written; l.synced < mine && l.err == nil; {
		if l.syncing {
			l.cond.Wait()
			continue
		}
		l.flushLocked()
	}
	return l.err
}

// flushLocked writes and syncs all that is pending; the lock is released meanwhile.
func (l *syncLog) flushLocked() {
	l.syncing = true
	batch, upTo := l.pending, l.written
	l.pending = nil
	l.mu.Unlock()
	_, err := l.f.Write(batch)
	err = errors.Join(err, l.f.Sync())
	l.mu.Lock()
	l.syncing = false
	l.err = errors.Join(l.err, err)
	if err == nil {
		l.synced = upTo
	}
	l.cond.Broadcast()
}

func (l *syncLog) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.err, l.f.Close())
}
