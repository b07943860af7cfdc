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
		"segments", r.Segments, "torn_bytes", r.TornBytes, "took", r.Duration)
}

// recover brings the chain into memory, read-only until it is known to be
// whole, and then makes the folder ready to append to.
func (l *Log) recover() error {
	dir, err := list(l.fs, l.dir)
	if err != nil {
		return err
	}
	m, doubt, err := readMark(l.fs, l.dir)
	switch {
	case errors.Is(err, errNoMark) && len(dir.segments) == 0:
		if err := createMark(l.fs, l.dir, mark{}); err != nil {
			return fmt.Errorf("wal: %w", err)
		}
	case errors.Is(err, errNoMark):
		return &DamageError{File: filepath.Join(l.dir, markName), Kind: DamageMark, Err: err}
	case err != nil:
		return err
	}
	l.recovery.MarkIndex, l.recovery.MarkTerm, l.recovery.MarkDoubt = m.lastIndex, m.lastTerm, doubt
	chain, err := loadChain(l.fs, dir, m, os.O_RDWR)
	if err != nil {
		closeLinks(chain)
		return err
	}
	torn, err := l.load(chain, m, doubt)
	if err != nil {
		return err
	}
	if l.marker, err = openMarker(l.fs, l.dir, m, doubt); err != nil {
		return err
	}
	if err := l.survey(dir, m); err != nil {
		return err
	}
	l.loops.Add(2)
	go l.prepare()
	go l.keep()
	return l.settle(dir, torn)
}

// load scans the chain. It takes over the files, also on error.
func (l *Log) load(chain []link, m mark, doubt error) (torn bool, err error) {
	for i, k := range chain {
		seg := &segment{segmentHeader: k.hdr, path: k.path, file: shareFile(k.file)}
		l.mu.segs = append(l.mu.segs, seg)
		if err == nil {
			torn, err = l.scanSegment(seg, k, m, doubt, i == len(chain)-1)
		}
	}
	if err != nil || len(chain) == 0 {
		return false, err
	}
	oldest, newest := l.mu.segs[0], l.mu.segs[len(l.mu.segs)-1]
	l.mu.base, l.mu.baseTerm = oldest.start-1, oldest.prevTerm
	l.mu.last = newest.next() - 1
	return torn, nil
}

func (l *Log) scanSegment(seg *segment, k link, m mark, doubt error, newest bool) (torn bool, err error) {
	if newest {
		if err := settleFile(k.file); err != nil {
			return false, err
		}
	}
	sc, err := newScanner(k.file, k.path, k.hdr)
	if err != nil {
		return false, err
	}
	sc.sealedAt, sc.noTear = k.sealedAt, doubt
	if m.newest == k.hdr.number {
		sc.markEnd = m.end
	}
	out, err := sc.scan(k.liveEnd, nil)
	if err != nil {
		return false, err
	}
	seg.offsets, seg.n, seg.end = out.offsets, out.n, out.end
	l.mu.lastTerm = out.lastTerm
	l.recovery.Entries += uint64(out.n)
	if out.torn.torn {
		l.recovery.TornBytes = int64(out.torn.tornBlocks) * blockSize
		l.recovery.TornFile, l.recovery.TornOffset = k.path, int64(out.end)*blockSize
	}
	return out.torn.torn, nil
}

// settleFile makes what the last process wrote durable, and then forgets the
// cached pages: after a failed fsync the cache may show what the disk never got.
func settleFile(f vfs.File) error {
	if err := f.Sync(); err != nil {
		return fmt.Errorf("wal: %w", err)
	}
	if d, ok := f.(vfs.CacheDropper); ok {
		if err := d.DropCache(); err != nil {
			return fmt.Errorf("wal: %w", err)
		}
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
		seg, err := l.openSegment(kindRecover, l.mu.last+1, term, l.tailOrPrev(), 0)
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

// removeDead lets go of segment files that are in no chain.
func (l *Log) removeDead(dead []uint64) error {
	for _, n := range dead {
		path := filepath.Join(l.dir, segmentName(n))
		l.recovery.DeadFiles++
		st, err := l.fs.Stat(path)
		if err != nil {
			return fmt.Errorf("wal: %w", err)
		}
		if st.Size() != l.cfg.SegmentBytes || !l.recycle(path) {
			l.removeFile(path)
		}
	}
	return l.fuse.check()
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
