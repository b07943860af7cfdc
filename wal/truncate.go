package wal

import (
	"fmt"

	"github.com/hashicorp/raft"
)

// DeleteRange implements raft.LogStore, for the ranges that Raft asks for:
//
//   - a prefix (min <= first, max < last) only records what Raft allows;
//     segments go when they are wholly below both that and the floor;
//   - a suffix, and the whole log, is cut off durably before the return. The
//     base stays: behind a whole-log delete the log is empty, LastIndex is
//     base, and the next entry is base+1;
//   - a range with nothing of the log in it is a no-op: compaction may race
//     an install.
//
// Any other range is refused, and so is one that would cut below the floor:
// those entries are committed and still needed (I3).
func (l *Log) DeleteRange(minIndex, maxIndex uint64) error {
	if err := l.begin(); err != nil {
		return err
	}
	defer l.end()
	l.mu.RLock()
	base, last, floor := l.mu.base, l.mu.last, l.mu.floor // base and floor may rise meanwhile, nothing else
	l.mu.RUnlock()
	switch {
	case minIndex > maxIndex || maxIndex <= base || minIndex > last:
		return nil
	case maxIndex >= last:
		if err := l.whole(); err != nil {
			return err
		}
		return l.truncateSuffix(max(minIndex, base+1), floor)
	case minIndex <= base+1:
		l.allow(maxIndex)
		return nil
	}
	return fmt.Errorf("wal: delete [%d,%d]: neither a prefix nor a suffix of [%d,%d]", minIndex, maxIndex, base+1, last)
}

// allow records that Raft needs nothing up to index any more.
func (l *Log) allow(index uint64) {
	l.mu.Lock()
	l.mu.allowed = max(l.mu.allowed, index)
	dropped := l.dropLocked()
	l.mu.Unlock()
	if dropped {
		l.hurry()
	}
}

// SetFloor says that nothing at or above index-1 may be deleted, and lets go
// of what is below. It never goes down: a lower index is ignored. Until the
// first call nothing is deleted. Files go in the background.
func (l *Log) SetFloor(index uint64) {
	l.mu.Lock()
	dropped := false
	if index > l.mu.floor {
		l.mu.floor = index
		dropped = l.dropLocked()
	}
	l.mu.Unlock()
	if dropped {
		l.hurry()
	}
}

// dropLocked takes segments out of the chain that lie wholly below both what
// Raft allows and the floor's predecessor (whose term a leader still needs),
// and moves the base up. The base is never 1: a snapshot label is at least 2.
func (l *Log) dropLocked() bool {
	if l.mu.floor < 2 || l.mu.stuck != nil || l.usable() != nil {
		return false
	}
	limit := min(l.mu.allowed+1, l.mu.floor-1)
	drop := 0
	for k := 1; k < len(l.mu.segs) && l.mu.segs[k-1].next() <= limit; k++ {
		if l.mu.segs[k].start-1 >= 2 {
			drop = k
		}
	}
	if drop == 0 {
		return false
	}
	l.mu.doomed = append(l.mu.doomed, l.mu.segs[:drop]...)
	l.mu.segs = append([]*segment(nil), l.mu.segs[drop:]...)
	l.mu.base, l.mu.baseTerm = l.mu.segs[0].start-1, l.mu.segs[0].prevTerm
	return true
}

// truncateSuffix removes entries from index on: a new generation starts there.
func (l *Log) truncateSuffix(from, floor uint64) error {
	if from < floor {
		return fmt.Errorf("%w: cut from %d, floor %d", ErrBelowFloor, from, floor)
	}
	prevTerm, err := l.termOf(from - 1)
	if err != nil {
		return err
	}
	seg, err := l.openSegment(kindTruncate, from, prevTerm, l.holder(from-1), 0)
	if err != nil {
		return err
	}
	l.install(seg, &prevTerm)
	l.mu.Lock()
	l.mu.owed = min(l.mu.owed, from-1) // a leader says that those never were
	l.mu.Unlock()
	return l.tidy()
}

// Reset makes the log empty with a new base (DESIGN 4.4): LastIndex is index,
// GetLog(index) answers a no-op of that term, the next entry is index+1, and
// all that was there before is dead, durably, when it returns. index is at
// least 2. What Raft had allowed to go is forgotten above it.
func (l *Log) Reset(index, term uint64) error {
	if index < 2 {
		return fmt.Errorf("wal: reset to index %d: a base is at least 2", index)
	}
	if err := l.begin(); err != nil {
		return err
	}
	defer l.end()
	kind := kindReset
	damaged := len(l.Damage()) > 0
	if damaged {
		kind = kindReplace
	}
	seg, err := l.openSegment(kind, index+1, term, nil, 0)
	if err != nil {
		return err
	}
	l.mu.Lock()
	for _, old := range l.mu.segs {
		old.quarantine = old.unsound || len(old.damage) > 0
	}
	l.mu.stuck, l.mu.openEnd, l.mu.owed = nil, nil, 0
	l.writer.pending = nil
	l.mu.doomed = append(l.mu.doomed, l.mu.segs...)
	l.mu.segs = []*segment{seg}
	l.mu.base, l.mu.baseTerm = index, term
	l.mu.last, l.mu.lastTerm = index, term
	l.mu.allowed = min(l.mu.allowed, index)
	l.mu.cache.clear()
	l.mu.Unlock()
	l.log.Info("log reset", "base", index, "term", term)
	return l.tidy()
}

// install puts a new segment at the end of the chain; entries at or above its
// start are dead from here on. cutTerm is the term of start-1 when something
// was cut off, nil on a roll.
func (l *Log) install(seg *segment, cutTerm *uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	keep := 0
	for keep < len(l.mu.segs) && l.mu.segs[keep].start < seg.start {
		l.mu.segs[keep].cutLocked(seg.start)
		keep++
	}
	l.mu.doomed = append(l.mu.doomed, l.mu.segs[keep:]...)
	l.mu.segs = append(append([]*segment(nil), l.mu.segs[:keep]...), seg)
	if cutTerm != nil {
		l.mu.last, l.mu.lastTerm = seg.start-1, *cutTerm
		l.mu.cache.truncate(seg.start)
	}
	if l.dropLocked() {
		l.urgent.Store(true)
	}
}

// holder is the segment of the chain that holds index, nil when index is the
// base. The turn must be held; base may rise meanwhile (then so does start).
func (l *Log) holder(index uint64) *segment {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if index <= l.mu.base {
		return nil
	}
	return l.findLocked(index)
}

// tailOrPrev is the segment that holds the last entry: the tail, or, when that
// is empty, the one before.
func (l *Log) tailOrPrev() *segment { return l.holder(l.mu.last) }

// termOf is the term of an entry, or of the base.
func (l *Log) termOf(index uint64) (uint64, error) {
	if index == 0 {
		return 0, nil
	}
	var e raft.Log
	if err := l.GetLog(index, &e); err != nil {
		return 0, fmt.Errorf("wal: term of %d: %w", index, err)
	}
	return e.Term, nil
}
