package wal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"penstock/internal/vfs"
)

const lockName = "LOCK"

// Open opens the log in a folder, which it creates when missing, and recovers
// it: a torn last batch is cut off by a new generation; damage is a
// *DamageError, and then nothing was changed on disk. A folder written by a
// newer version is ErrTooNew, one that is open elsewhere ErrInUse.
//
// What is durable is not taken from the page cache after an unclean stop: the
// newest segment is synced and then read around the cache before it counts.
// After Close it is: every byte was synced with success, and the mark says so.
func Open(dir string, cfg Config) (*Log, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := cfg.FS.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("wal: %w", err)
	}
	lock, err := cfg.FS.Lock(filepath.Join(dir, lockName))
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("%w: %s", ErrInUse, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("wal: %w", err)
	}
	l := &Log{
		dir: dir, cfg: cfg, fs: cfg.FS, log: cfg.Logger, lock: lock,
		closed: make(chan struct{}), turn: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		prep: newPreparer(cfg.spares()),
	}
	l.fuse = newFuse(func(err error) {
		l.log.Error("log failed; nothing is tried again", "error", err)
		cfg.Fatal(err)
	})
	l.space.free.Store(-1)
	l.mu.cache.limit = clampCache(cfg.CacheBytes)
	l.metrics = newMetrics(l)
	if err := l.recover(); err != nil {
		return nil, errors.Join(err, l.shut())
	}
	if err := l.metrics.register(cfg.Registerer); err != nil {
		return nil, errors.Join(fmt.Errorf("wal: metrics: %w", err), l.shut())
	}
	l.recovery.Duration = time.Since(began)
	l.report()
	return l, nil
}

func (l *Log) report() {
	r := &l.recovery
	st := l.Stats()
	r.First, r.Last, r.LastTerm = st.First, st.Last, st.LastTerm
	r.BaseIndex, r.BaseTerm, r.Segments = st.BaseIndex, st.BaseTerm, st.Segments
	l.metrics.truncated.Add(float64(r.TornBytes))
	l.log.Info("log opened", "dir", l.dir, "first", r.First, "last", r.Last, "term", r.LastTerm, "base", r.BaseIndex,
		"segments", r.Segments, "torn_bytes", r.TornBytes, "took", r.Duration.Round(time.Millisecond).String())
}

// recover brings the log into memory, read-only until it is known to be whole,
// and then makes the folder ready to append to. (A repair that a crash cut
// short between its two renames is finished first: repair.go.)
func (l *Log) recover() error {
	if err := l.finishRepairs(); err != nil {
		return err
	}
	ld, err := load(l.fs, l.dir, os.O_RDWR, l.cfg.AllowDamage, l.cfg.MarkLost != nil)
	if err != nil {
		return err
	}
	l.adopt(ld)
	if err := l.remark(ld); err != nil {
		return err
	}
	if l.marker, err = openMarker(l.fs, l.dir, ld.m, ld.doubt); err != nil {
		return err
	}
	if err := l.reopened(); err != nil {
		return err
	}
	if err := l.survey(ld.dir, ld.m); err != nil {
		return err
	}
	l.quarantined = len(ld.dir.apart)
	if err := l.openReserve(); err != nil {
		return err
	}
	l.loops.Add(3)
	go l.prepare()
	go l.keep()
	go l.watchSpace()
	for _, d := range l.Damage() {
		l.log.Error("log is damaged", "damage", d.String())
	}
	if l.mu.stuck != nil {
		return nil // nothing is written until it is repaired, cut off, or replaced
	}
	return l.settle(ld.dir, ld.torn)
}

// remark makes a mark where there is none: in a new folder, and anew in place
// of one that was lost, after the caller was told. It vouches for what was
// found, less what is damaged at the end, and until it is written again nothing
// may be called torn.
func (l *Log) remark(ld *loaded) error {
	slots := uint64(markSlots)
	if ld.markLost != nil {
		if err := l.cfg.MarkLost(ld.markLost); err != nil {
			return fmt.Errorf("%w: %w", err, ld.markLost)
		}
		oldest, newest := ld.segs[0], ld.segs[len(ld.segs)-1]
		l.log.Error("the log's mark is lost and made anew: what the log once held is not known", "error", ld.markLost, "last", l.mu.last)
		ld.m = mark{first: oldest.number, newest: newest.number, gen: newest.gen, end: 1, lastIndex: newest.start - 1, lastTerm: newest.prevTerm, head: newest.copy()}
		if l.mu.stuck == nil {
			ld.m.end, ld.m.lastIndex, ld.m.lastTerm = newest.end, l.mu.last, l.mu.lastTerm
		}
		slots = 1
	} else if !ld.fresh {
		return nil
	}
	if err := createMark(l.fs, l.dir, ld.m, slots); err != nil {
		return fmt.Errorf("wal: %w", err)
	}
	return nil
}

// adopt takes over what was loaded, files included.
func (l *Log) adopt(ld *loaded) {
	r := &l.recovery
	*r = ld.tornAt
	r.Entries, r.MarkIndex, r.MarkTerm, r.MarkDoubt, r.MarkLost = ld.entries, ld.m.lastIndex, ld.m.lastTerm, ld.doubt, ld.markLost
	l.mu.segs, l.mu.loose, l.mu.openEnd, l.mu.stuck = ld.segs, ld.loose, ld.openEnd, ld.stuck()
	if len(ld.segs) == 0 {
		return
	}
	oldest, newest := ld.segs[0], ld.segs[len(ld.segs)-1]
	l.mu.base, l.mu.baseTerm = oldest.start-1, oldest.prevTerm
	l.mu.last, l.mu.lastTerm = newest.next()-1, ld.lastTerm
	r.Damaged = l.Damage()
	for _, seg := range ld.segs {
		// A crash in a truncation leaves a mark above the end too, and that
		// means nothing; only a cut owes what it took.
		r.Short = r.Short || seg.kind == kindCut && ld.m.lastIndex > l.mu.last
	}
	if r.Short || l.mu.stuck != nil {
		l.mu.owed, l.mu.owedTerm = ld.m.lastIndex, ld.m.lastTerm
	}
}

// reopened takes back the mark of a closed log, before anything else is written.
func (l *Log) reopened() error {
	m := l.marker.last
	if !m.closed {
		return nil
	}
	m.closed = false
	if err := l.marker.write(m); err != nil {
		return fmt.Errorf("wal: write mark: %w", err)
	}
	return nil
}

// survey finds the highest generation and numbers in use, and the spares that
// an earlier run left; unfinished files and spares that do not fit go. It runs
// before the preparer, which makes files of the same names.
func (l *Log) survey(dir listing, m mark) error {
	l.writer.gen, l.writer.number = m.gen, m.newest
	for _, seg := range l.mu.segs {
		l.writer.gen = max(l.writer.gen, seg.gen)
	}
	if n := len(dir.segments); n > 0 {
		l.writer.number = max(l.writer.number, dir.segments[n-1])
	}
	for _, n := range l.dead(dir) {
		if _, err := l.surveyFile(filepath.Join(l.dir, segmentName(n))); err != nil {
			return err
		}
	}
	for _, path := range dir.leftover {
		l.removeFile(path)
	}
	for _, n := range dir.spares {
		l.prep.seq.Store(n)
		path := filepath.Join(l.dir, spareName(n))
		fits, err := l.surveyFile(path)
		if err != nil {
			return err
		}
		if fits && len(l.prep.ready) < l.cfg.spares() {
			l.prep.ready <- spare{path: path, blocks: l.cfg.blocks()}
			continue
		}
		l.removeFile(path)
	}
	return nil
}

// surveyFile counts the generation that a file was last written with, and says
// whether it has the size of a segment.
func (l *Log) surveyFile(path string) (fits bool, err error) {
	gen, err := highestTag(l.fs, path)
	if err != nil {
		return false, fmt.Errorf("wal: %w", err)
	}
	l.writer.gen = max(l.writer.gen, gen)
	st, err := l.fs.Stat(path)
	if err != nil {
		return false, fmt.Errorf("wal: %w", err)
	}
	return st.Size() == l.cfg.SegmentBytes, nil
}

// settle creates the first segment or cuts a torn tail off, writes the mark,
// and removes what is dead.
func (l *Log) settle(dir listing, torn bool) error {
	dead := l.dead(dir)
	// The names seen may not be durable yet.
	if err := l.fs.SyncDir(l.dir); err != nil {
		return fmt.Errorf("wal: %w", err)
	}
	switch {
	case len(l.mu.segs) == 0:
		l.recovery.Fresh = true
		seg, err := l.openSegment(kindFirst, 1, 0, nil, 0)
		if err != nil {
			return err
		}
		l.install(seg, nil)
	case torn:
		term := l.mu.lastTerm
		l.log.Warn("torn write cut off", "file", l.recovery.TornFile, "offset", l.recovery.TornOffset,
			"bytes", l.recovery.TornBytes, "last", l.mu.last)
		kind := kindRecover
		if tail := l.tail(); tail.n == 0 && tail.kind.quarantines() {
			kind = tail.kind // it takes that segment's place, and its duty
		}
		seg, err := l.openSegment(kind, l.mu.last+1, term, l.tailOrPrev(), 0)
		if err != nil {
			return err
		}
		l.install(seg, &term)
	}
	if err := l.tidy(); err != nil {
		return err
	}
	return l.removeDead(dead)
}

// removeDead lets go of segment files that are in no chain. While there is
// damage they stay: somebody may want to look.
func (l *Log) removeDead(dead []uint64) error {
	if len(l.Damage()) > len(l.mu.loose) {
		return nil
	}
	for _, n := range dead {
		path := filepath.Join(l.dir, segmentName(n))
		l.recovery.DeadFiles++
		if l.isDamagedDead(n) || l.recovery.MarkLost != nil { // without a mark nobody knows that it may go
			l.putApart(n, path)
			continue
		}
		st, err := l.fs.Stat(path)
		if err != nil {
			return fmt.Errorf("wal: %w", err)
		}
		if st.Size() != l.cfg.SegmentBytes || !l.recycle(path) {
			l.removeFile(path)
		}
	}
	l.mu.Lock()
	l.mu.loose = nil
	l.mu.Unlock()
	return l.fuse.check()
}

// isDamagedDead: what made the segment dead cut damage off, or its own header
// is bad.
func (l *Log) isDamagedDead(n uint64) bool {
	for _, d := range l.mu.loose {
		if filepath.Base(d.File) == segmentName(n) {
			return true
		}
	}
	for _, seg := range l.mu.segs {
		if seg.number > n {
			return seg.kind.quarantines() && n > seg.prev
		}
	}
	return false
}

// dead is the segment files that are in no chain.
func (l *Log) dead(dir listing) (dead []uint64) {
	live := make(map[uint64]bool, len(l.mu.segs))
	for _, seg := range l.mu.segs {
		live[seg.number] = true
	}
	for _, n := range dir.segments {
		if !live[n] {
			dead = append(dead, n)
		}
	}
	return dead
}
