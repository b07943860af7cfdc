package cluster

import (
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// silentAfter is how long a write to the log may be outstanding before the node stops sending.
const silentAfter = 500 * time.Millisecond

// logStore is the log as Raft sees it. It knows whether a write hangs, and counts what was appended since the last snapshot.
type logStore struct {
	Log
	writing atomic.Int64 // monotonic nanoseconds since epoch when the running write began, 0 when none runs
	epoch   time.Time
	grown   atomic.Int64 // bytes stored since the last snapshot
	scan    atomic.Bool  // the log is being read from the last snapshot on: count it as grown
	// heal is asked when an entry is damaged, and reads it again once it is repaired; nil when the log cannot be repaired.
	heal func(index uint64, e *raft.Log, err error) error
	// standIn is what Raft starts from. Its entry may be a hole at the end of the log, of which Raft, while it starts, wants the term
	// and nothing else.
	standIn raft.Log
}

func newLogStore(l Log) *logStore { return &logStore{Log: l, epoch: time.Now()} }

// IsMonotonic implements raft.MonotonicLogStore: after an install Raft must clear the log instead of leaving a gap in it.
func (s *logStore) IsMonotonic() bool { return true }

// StoreLog implements raft.LogStore.
func (s *logStore) StoreLog(e *raft.Log) error { return s.StoreLogs([]*raft.Log{e}) }

// StoreLogs implements raft.LogStore. Raft calls it from its main goroutine only.
func (s *logStore) StoreLogs(entries []*raft.Log) error {
	s.begin()
	defer s.writing.Store(0)
	if err := s.Log.StoreLogs(entries); err != nil {
		return err
	}
	n := int64(0)
	for _, e := range entries {
		n += int64(len(e.Data)) + 64
	}
	s.grown.Add(n)
	return nil
}

func (s *logStore) begin() { s.writing.Store(max(1, int64(time.Since(s.epoch)))) }

// silent tells whether a write has been outstanding for too long.
func (s *logStore) silent() bool {
	began := s.writing.Load()
	return began != 0 && time.Since(s.epoch)-time.Duration(began) > silentAfter
}

// GetLog implements raft.LogStore.
func (s *logStore) GetLog(index uint64, e *raft.Log) error {
	err := s.Log.GetLog(index, e)
	if s.heal != nil && isDamage(err) {
		if s.scan.Load() && index == s.standIn.Index {
			*e = s.standIn
			return nil
		}
		err = s.heal(index, e, err)
	}
	if err == nil && s.scan.Load() {
		s.grown.Add(int64(len(e.Data)) + 64)
	}
	return err
}

// holds tells whether the log has (index, term), as an entry or as its base.
func (s *logStore) holds(index, term uint64) bool {
	if bi, bt := s.Base(); index == bi {
		return bt == term
	}
	var e raft.Log
	return s.Log.GetLog(index, &e) == nil && e.Term == term
}

// rawTermOf is termOf that takes damage for what it is, and waits for no repair.
func (s *logStore) rawTermOf(index uint64) (uint64, error) {
	if bi, bt := s.Base(); index == bi {
		return bt, nil
	}
	var e raft.Log
	err := s.Log.GetLog(index, &e)
	return e.Term, err
}

// termOf gives the term at index, which must be the base or above it.
func (s *logStore) termOf(index uint64) (uint64, error) {
	if bi, bt := s.Base(); index == bi {
		return bt, nil
	}
	var e raft.Log
	if err := s.GetLog(index, &e); err != nil {
		return 0, err
	}
	return e.Term, nil
}
