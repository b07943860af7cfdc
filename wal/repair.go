package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"penstock/internal/vfs"
)

// repairBatch is how many record bytes a batch of a repaired segment takes.
const repairBatch = 1 << 20

// whole says whether the end of the log is sound enough to append to it.
func (l *Log) whole() error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.mu.stuck != nil {
		return l.mu.stuck
	}
	return nil
}

// Repair takes entries that were lost, from another node; the caller has
// compared index, term and PayloadCRC where the Damage knows them (it is done
// again here), and knows that they are committed where it does not. A segment
// is written anew as soon as all of it is there, and takes the place of the
// damaged file in one step; until then its entries are kept in memory, and
// Damage goes on to tell them. So entries may come in any order, in as many
// calls as it takes; but those of an open end in order, from its First on.
// Repair(nil) mends damage that cost no entry.
//
// What is repaired when it returns is durable; a crash in it leaves the
// damage or the repair, never less than was there. An entry that is not what
// was lost, or would break the order of terms, is ErrMismatch.
func (l *Log) Repair(entries []*raft.Log) error {
	if err := l.begin(); err != nil {
		return err
	}
	defer l.end()
	for _, e := range entries {
		if err := l.accept(e); err != nil {
			return err
		}
	}
	return l.mend(0)
}

// LeaveHoles writes damaged segments anew with what is there, and marks what
// is lost at or below index (a snapshot covers it) as holes: they go on to
// answer with a *DamageError and stay in Damage, and can be repaired later.
// Segments that lack an entry above index are left alone.
func (l *Log) LeaveHoles(index uint64) error {
	if err := l.begin(); err != nil {
		return err
	}
	defer l.end()
	return l.mend(index)
}

// accept checks an entry and keeps it until its segment is complete.
func (l *Log) accept(e *raft.Log) error {
	if err := checkEntry(e); err != nil {
		return err
	}
	l.mu.RLock()
	var d *Damage
	inside := e.Index > l.mu.base && e.Index <= l.mu.last
	switch {
	case inside:
		d = l.findLocked(e.Index).damagedAt(e.Index)
	case l.mu.openEnd != nil && e.Index >= l.mu.openEnd.First:
		d = l.mu.openEnd
	}
	l.mu.RUnlock()
	if d == nil {
		var have raft.Log
		if err := l.GetLog(e.Index, &have); err != nil {
			return fmt.Errorf("wal: repair entry %d: %w", e.Index, err)
		}
		if have.Term != e.Term || PayloadCRC(&have) != PayloadCRC(e) {
			return fmt.Errorf("%w: entry %d is here, and another one", ErrMismatch, e.Index)
		}
		return nil
	}
	if d.Known && (d.Term != e.Term || d.PayloadCRC != PayloadCRC(e)) {
		return fmt.Errorf("%w: entry %d of term %d with payload CRC %08x, want term %d and %08x",
			ErrMismatch, e.Index, e.Term, PayloadCRC(e), d.Term, d.PayloadCRC)
	}
	if l.writer.pending == nil {
		l.writer.pending = map[uint64]*raft.Log{}
	}
	l.writer.pending[e.Index] = e
	return nil
}

// mend does what can be done with what is there. The turn must be held.
func (l *Log) mend(holes uint64) error {
	if err := l.mendEnd(holes); err != nil {
		return err
	}
	l.mu.RLock()
	segs := l.mu.segs
	l.mu.RUnlock()
	for _, seg := range segs[:max(len(segs)-1, 0)] {
		if !l.mendable(seg, holes) {
			continue
		}
		if err := l.rewrite(seg); err != nil {
			return err
		}
	}
	return nil
}

// mendEnd makes the newest segment one that is sealed, so that it can be
// written anew like any other, and the log one that can be appended to.
func (l *Log) mendEnd(holes uint64) error {
	l.mu.RLock()
	stuck, open, last := l.mu.stuck, l.mu.openEnd, l.mu.last
	l.mu.RUnlock()
	if stuck == nil {
		return nil
	}
	if open == nil {
		term, known := l.knownTerm(last)
		if !l.mendable(l.tail(), holes) || !known {
			return nil
		}
		return l.cutAt(kindRecover, last+1, term)
	}
	var tail []*raft.Log
	for i := open.First; l.writer.pending[i] != nil; i++ {
		tail = append(tail, l.writer.pending[i])
	}
	if len(tail) == 0 {
		return nil
	}
	term, known := l.knownTerm(open.First - 1)
	if !known {
		return nil // when what is before it has come
	}
	if tail[0].Term < term {
		return fmt.Errorf("%w: entry %d of term %d behind one of term %d", ErrMismatch, open.First, tail[0].Term, term)
	}
	if err := l.cutAt(kindCut, open.First, term); err != nil {
		return err
	}
	if err := l.store(tail); err != nil {
		return err
	}
	for _, e := range tail {
		delete(l.writer.pending, e.Index)
	}
	return l.tidy()
}

// knownTerm is the term of an entry that is here, of one that waits to be
// written, of one of which the header is here, or of the base.
func (l *Log) knownTerm(index uint64) (term uint64, known bool) {
	if e := l.writer.pending[index]; e != nil {
		return e.Term, true
	}
	l.mu.RLock()
	base := l.mu.base
	if index > base && index <= l.mu.last {
		if d := l.findLocked(index).damagedAt(index); d != nil {
			defer l.mu.RUnlock()
			return d.Term, d.Known
		}
	}
	l.mu.RUnlock()
	term, err := l.termOf(index)
	return term, err == nil
}

// mendable: the segment is damaged, and every entry of it is there or may stay
// lost. (Holes that were left before may stay too, but are no reason to write.)
func (l *Log) mendable(seg *segment, holes uint64) bool {
	l.mu.RLock()
	reason, damage := seg.unsound, seg.damage // never changed in place
	l.mu.RUnlock()
	for _, d := range damage {
		if d.First == 0 {
			continue
		}
		reason = reason || d.Kind != DamageHole
		for i := d.First; i <= d.Last; i++ {
			if l.writer.pending[i] != nil {
				reason = true
			} else if i > holes && d.Kind != DamageHole {
				return false
			}
		}
	}
	return reason
}

// rewrite makes the repaired file of a sealed segment and puts it in its place.
func (l *Log) rewrite(seg *segment) error {
	tmp := filepath.Join(l.dir, repairName(seg.number)+tmpSuffix)
	w := repairer{l: l, old: seg, term: seg.prevTerm, left: map[uint64]recordHeader{}}
	if err := w.write(tmp); err != nil {
		_ = l.fs.Remove(tmp)
		return err
	}
	var file vfs.File
	err := l.guard("repair", func() error {
		if err := l.fs.Rename(tmp, filepath.Join(l.dir, repairName(seg.number))); err != nil {
			return err
		}
		if err := l.fs.SyncDir(l.dir); err != nil { // here it happens
			return err
		}
		if err := l.putInPlace(seg.number); err != nil {
			return err
		}
		var err error
		file, err = l.fs.OpenFile(filepath.Join(l.dir, segmentName(seg.number)), seg.openFlag(), 0)
		return err
	})
	if err != nil {
		return err
	}
	fixed := w.made
	fixed.file = shareFile(file)
	l.mu.Lock()
	segs := append([]*segment(nil), l.mu.segs...)
	for i := range segs {
		if segs[i] == seg {
			segs[i] = fixed
		}
	}
	l.mu.segs = segs
	l.mu.Unlock()
	_ = seg.file.release() // it was only read
	for i := seg.start; i < seg.next(); i++ {
		delete(l.writer.pending, i)
	}
	l.metrics.repaired.Add(float64(w.repaired))
	l.log.Warn("log segment repaired", "segment", seg.number, "entries", w.repaired, "holes", len(w.left))
	return nil
}

// finishRepairs puts repaired files in place that a crash left beside the
// damaged ones. They are whole: they got their name after their sync.
func (l *Log) finishRepairs() error {
	dir, err := list(l.fs, l.dir)
	if err != nil {
		return err
	}
	for _, n := range dir.repairs {
		if err := l.putInPlace(n); err != nil {
			return fmt.Errorf("wal: %w", err)
		}
	}
	return nil
}

// putInPlace swaps a repaired file for the damaged one, which is kept apart.
// Between the two renames the repaired one stands for both (listing.pathOf).
func (l *Log) putInPlace(number uint64) error {
	path := filepath.Join(l.dir, segmentName(number))
	err := l.fs.Rename(path, filepath.Join(l.dir, quarantineName(number, time.Now())))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := l.fs.Rename(filepath.Join(l.dir, repairName(number)), path); err != nil {
		return err
	}
	return l.fs.SyncDir(l.dir)
}

// putApart keeps a damaged file that is in no chain for people to look at.
func (l *Log) putApart(number uint64, path string) {
	to := filepath.Join(l.dir, quarantineName(number, time.Now()))
	if err := l.fs.Rename(path, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Warn("damaged log file stays", "file", path, "error", err)
		return
	}
	l.log.Warn("damaged log file kept apart", "file", path, "as", to)
}

// CutAt removes everything from index on, durably, for damage that cannot be
// repaired: files that are dead by it are kept apart, not removed. The mark
// goes on to say how far the log reached (Recovery.Short at later starts)
// until it is as long again; the caller must have noted durably before that
// the node is in doubt. prevTerm is the term of index-1, needed only when that
// entry is damaged itself (a snapshot ends there), else 0. Damage below index stays.
func (l *Log) CutAt(index, prevTerm uint64) error {
	if err := l.begin(); err != nil {
		return err
	}
	defer l.end()
	l.mu.RLock()
	base, last, floor := l.mu.base, l.mu.last, l.mu.floor
	l.mu.RUnlock()
	if index <= base || index > last+1 {
		return fmt.Errorf("wal: cut at %d: the log is [%d,%d]", index, base+1, last)
	}
	if index < floor {
		return fmt.Errorf("%w: cut at %d, floor %d", ErrBelowFloor, index, floor)
	}
	term, known := l.knownTerm(index - 1)
	switch {
	case !known && prevTerm == 0:
		return fmt.Errorf("wal: cut at %d: the term of %d is not known", index, index-1)
	case known && prevTerm != 0 && term != prevTerm:
		return fmt.Errorf("%w: entry %d has term %d, not %d", ErrMismatch, index-1, term, prevTerm)
	case !known:
		term = prevTerm
	}
	return l.cutAt(kindCut, index, term)
}

// cutAt opens a segment at index: in a cut, and behind a damaged end that is
// known to the last entry (kindRecover, nothing is lost by it).
func (l *Log) cutAt(kind segmentKind, index, prevTerm uint64) error {
	seg, err := l.openSegment(kind, index, prevTerm, l.holder(index-1), 0)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.mu.owed = max(l.mu.owed, l.mu.last)
	if l.mu.owed == l.mu.last {
		l.mu.owedTerm = l.mu.lastTerm
	}
	for _, old := range l.mu.segs {
		old.quarantine = old.quarantine || old.start >= index
	}
	l.mu.stuck, l.mu.openEnd = nil, nil
	l.mu.Unlock()
	l.install(seg, &prevTerm)
	for i := range l.writer.pending {
		if i >= index {
			delete(l.writer.pending, i) // it comes as an append from here on
		}
	}
	l.log.Warn("log cut behind damage", "at", index, "term", prevTerm, "kind", kind.String())
	return l.tidy()
}
