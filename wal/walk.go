package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"penstock/internal/vfs"
)

// Record is one live entry as Walk finds it.
type Record struct {
	Index      uint64
	Term       uint64
	Type       raft.LogType
	Data       []byte // the callee's to keep
	Extensions []byte
	AppendedAt time.Time
	Segment    uint64 // number of the segment file
	Offset     int64  // byte offset of the record in it
}

const (
	walkTries      = 5    // against a live log that moves under the reader
	walkMaxDamages = 1000 // reported; the rest is counted only by their absence
)

// Walk reads a log offline, in index order, and calls fn with each live entry;
// it writes nothing, takes no lock, and may run on the folder of a live, a
// stopped or a crashed node. Of a live one it sees what was there when it
// came by.
//
// Damage does not end the walk: it goes on behind it where it can, and at the
// end returns every damage found, joined (errors.As finds the first
// *DamageError). A torn last batch is no damage, it is not there. An error of
// fn ends the walk and is returned as it is. Memory is bounded by the largest
// batch.
func Walk(fsys vfs.FS, dir string, fn func(Record) error) error {
	w := walker{fs: fsys, dir: dir, fn: fn}
	c, err := w.open()
	defer func() { closeLinks(c.chain) }()
	for _, d := range c.loose {
		w.damages = append(w.damages, d.damageError(0))
	}
	var damage *DamageError
	switch {
	case errors.As(err, &damage):
		w.damages = append(w.damages, err)
	case err != nil:
		return err
	}
	for _, k := range c.chain {
		if k.rebuilt != nil {
			w.damaged(k.rebuilt)
		}
		if k.lost() {
			continue
		}
		if err := w.segment(k, c.m, c.doubt); err != nil {
			return err
		}
	}
	return errors.Join(w.damages...)
}

type walker struct {
	fs      vfs.FS
	dir     string
	fn      func(Record) error
	damages []error
}

// open reads the mark first and the folder second, so that on a live log the
// mark never vouches for more than is there. A segment that went missing in
// between was dropped: try again.
func (w *walker) open() (c chainLoader, err error) {
	for range walkTries {
		closeLinks(c.chain)
		if c, err = w.openOnce(); err != nil && !isMissing(err) {
			break
		}
		if err == nil && !slices.ContainsFunc(c.chain, func(k link) bool { return k.rebuilt != nil && isMissing(k.rebuilt) }) {
			break
		}
	}
	return c, err
}

func isMissing(err error) bool {
	var damage *DamageError
	return errors.As(err, &damage) && damage.Kind == DamageMissing
}

func (w *walker) openOnce() (c chainLoader, err error) {
	m, doubt, merr := readMark(w.fs, w.dir)
	dir, err := list(w.fs, w.dir)
	if err != nil {
		return c, err
	}
	if errors.Is(merr, errNoMark) && len(dir.segments) > 0 {
		merr = &DamageError{File: filepath.Join(w.dir, markName), Kind: DamageMark, Err: errNoMark}
	}
	if errors.Is(merr, errNoMark) {
		return c, fmt.Errorf("wal: no log in %s: %w", w.dir, fs.ErrNotExist)
	}
	if errors.Is(merr, ErrTooNew) {
		return c, merr
	}
	c = chainLoader{fs: w.fs, dir: dir, m: m, doubt: doubt, flag: os.O_RDONLY, tolerate: true}
	return c, errors.Join(merr, c.load())
}

func (w *walker) damaged(err error) {
	if len(w.damages) < walkMaxDamages {
		w.damages = append(w.damages, err)
	}
}

// segment walks one segment, over damage where it can.
func (w *walker) segment(k link, m mark, doubt error) error {
	s, err := newScanner(k.file, k.path, k.hdr)
	if err != nil {
		return err
	}
	s.sealedAt, s.noTear = k.sealedAt, doubt
	if m.newest == k.hdr.number && k.hdr.kind != kindRepair {
		s.markEnd = m.end
	}
	if err := s.checkSize(); err != nil {
		w.damaged(err)
	}
	index, p := k.hdr.start, uint32(1)
	for p < s.limit() && (k.liveEnd == 0 || index < k.liveEnd) {
		b, ok, err := s.batchAt(p)
		if err != nil {
			return err
		}
		if ok {
			if index, err = w.batch(s, &b, index, k.liveEnd); err != nil {
				return err
			}
			p += b.blocks
			continue
		}
		err = w.judge(s, p, index)
		if err == nil {
			return nil // the end, torn or not
		}
		var damage *DamageError
		if !errors.As(err, &damage) {
			return err
		}
		if gone(w.fs, k) {
			return nil
		}
		w.damaged(err)
		if p, ok = s.resync(p + 1); !ok {
			return nil
		}
	}
	if k.liveEnd > 0 && index < k.liveEnd {
		w.damaged(s.checkSealed(index, k.liveEnd))
	}
	return nil
}

// gone: the file was dropped from a live log as it was read, and may be in use
// again as another segment.
func gone(fsys vfs.FS, k link) bool {
	now, err := openLink(fsys, k.path, k.hdr.number, os.O_RDONLY)
	if err != nil {
		_, serr := fsys.Stat(k.path)
		return errors.Is(serr, fs.ErrNotExist)
	}
	defer func() { _ = now.file.Close() }()
	return now.hdr.gen != k.hdr.gen
}

// judge gives a live log's writer the time to finish what looks like damage.
func (w *walker) judge(s *scanner, p uint32, index uint64) (err error) {
	if s.sealedAt > 0 {
		return s.badBatch(p, index, DamageBlock)
	}
	for try := range walkTries {
		if _, err = s.judgeEnd(p, index); err == nil {
			return nil
		}
		s.win = s.win[:0]
		if _, ok, _ := s.batchAt(p); ok {
			return nil // it was being written: the log ended here when we came by
		}
		time.Sleep(time.Duration(try) * 10 * time.Millisecond)
	}
	return err
}

// resync finds the next whole batch at or behind block p.
func (s *scanner) resync(p uint32) (uint32, bool) {
	for ; p < s.limit(); p++ {
		if _, ok, err := s.batchAt(p); err == nil && ok {
			return p, true
		}
	}
	return 0, false
}

// batch hands out the live records of one batch and returns the index behind
// them.
func (w *walker) batch(s *scanner, b *batch, index, liveEnd uint64) (next uint64, err error) {
	next = b.firstIndex
	if next < index {
		w.damaged(s.damage(b.start, index, DamageRecord, "batch starts at index %d", next))
	}
	var fnErr error
	err = b.records(func(h *recordHeader, pos int) error {
		if liveEnd > 0 && h.index >= liveEnd {
			return errStop
		}
		next = h.index + 1
		if h.hole() {
			w.damaged(s.damage(b.start, h.index, DamageHole, "%w", errHole))
			return nil
		}
		fnErr = w.fn(w.record(s, b, h, pos))
		return fnErr
	})
	switch {
	case fnErr != nil:
		return next, fnErr
	case errors.Is(err, errStop):
		return liveEnd, nil
	case err != nil:
		w.damaged(s.damage(b.start, next, DamageRecord, "batch at block %d: %w", b.start, err))
	}
	return next, nil
}

func (w *walker) record(s *scanner, b *batch, h *recordHeader, pos int) Record {
	payload := make([]byte, h.payload())
	gather(payload, b.raw, pos+recordHeaderSize)
	var e raft.Log
	h.fill(&e, payload)
	at, _ := posRaw(pos)
	return Record{
		Index: e.Index, Term: e.Term, Type: e.Type, Data: e.Data, Extensions: e.Extensions, AppendedAt: e.AppendedAt,
		Segment: s.hdr.number, Offset: int64(b.start)*blockSize + int64(at),
	}
}
