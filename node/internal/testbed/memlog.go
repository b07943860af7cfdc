package testbed

import (
	"sync"

	"github.com/hashicorp/raft"

	"penstock/wal"
)

// MemLog is a log in memory.
type MemLog struct {
	// BeforeRead is asked before each read of an entry.
	BeforeRead func(index uint64) error

	mu    sync.Mutex
	first uint64
	logs  map[uint64]raft.Log
	last  uint64
	reads int
}

// StoreLogs appends.
func (l *MemLog) StoreLogs(logs []*raft.Log) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.logs == nil {
		l.logs, l.first = map[uint64]raft.Log{}, 1
	}
	for _, x := range logs {
		l.logs[x.Index], l.last = *x, x.Index
	}
	return nil
}

// Stats says that there is room.
func (l *MemLog) Stats() wal.Stats { return wal.Stats{} }

// GetLog reads an entry.
func (l *MemLog) GetLog(index uint64, out *raft.Log) error {
	if l.BeforeRead != nil {
		if err := l.BeforeRead(index); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	x, ok := l.logs[index]
	if !ok || index < l.first {
		return raft.ErrLogNotFound
	}
	*out = x
	return nil
}

// Reads is how many entries were read.
func (l *MemLog) Reads() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reads
}

// DropBefore forgets every entry below index.
func (l *MemLog) DropBefore(index uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first = index
}

// FirstIndex is the lowest index that can be read.
func (l *MemLog) FirstIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, nil
}

// LastIndex is the highest.
func (l *MemLog) LastIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last, nil
}

// Base is just below the first.
func (l *MemLog) Base() (index, term uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first - 1, 1
}
