package wal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"penstock/internal/vfs"
)

// repairer writes the file that takes a damaged segment's place: the same
// number, generation and first entry, its batches laid out anew. It is made of
// zeros and not of a spare, so its generation need not be a new one, and the
// header of the next segment goes on to fit.
type repairer struct {
	l        *Log
	old      *segment
	file     vfs.File
	enc      encoder
	hdr      segmentHeader
	made     *segment
	batch    []*raft.Log
	bytes    int
	term     uint64 // of the entry before, as far as known
	left     map[uint64]recordHeader
	repaired int
}

// openFlag is how segment files are opened: recovery may sync them.
func (s *segment) openFlag() int { return os.O_RDWR }

// write makes the file, durable under its temporary name.
func (w *repairer) write(tmp string) (err error) {
	w.hdr = w.old.segmentHeader
	w.hdr.kind = kindRepair
	w.made = &segment{segmentHeader: w.hdr, path: filepath.Join(w.l.dir, segmentName(w.hdr.number)), end: 1}
	w.enc.holes = w.left
	if w.file, err = w.l.fs.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
		return fmt.Errorf("wal: repair: %w", err)
	}
	defer func() { err = errors.Join(err, w.file.Close()) }()
	for i := w.old.start; i < w.old.next(); i++ {
		if err := w.l.usable(); err != nil {
			return err
		}
		e, err := w.entry(i)
		if err != nil {
			return err
		}
		size := entryBytes(e)
		if len(w.batch) > 0 && w.bytes+size > repairBatch {
			if err := w.flush(); err != nil {
				return err
			}
		}
		w.batch, w.bytes = append(w.batch, e), w.bytes+size
	}
	if err := w.flush(); err != nil {
		return err
	}
	for i, d := range w.made.damage {
		at, _ := posRaw(int(w.made.offsets[d.First-w.made.start]))
		w.made.damage[i].Offset = int64(at)
	}
	w.hdr.blocks = w.made.end
	w.made.segmentHeader = w.hdr
	raw := alignedBuffer(blockSize)
	return w.l.guard("repair", func() error {
		w.hdr.encode(raw)
		if _, err := w.file.WriteAt(raw, 0); err != nil {
			return err
		}
		return w.file.Sync()
	})
}

// entry is the entry to write for an index, or the hole.
func (w *repairer) entry(index uint64) (*raft.Log, error) {
	w.l.mu.RLock()
	d := w.old.damagedAt(index)
	pos, end := w.old.span(index)
	w.l.mu.RUnlock()
	e := w.l.writer.pending[index]
	switch {
	case d == nil:
		h, payload, err := readRecord(w.old.file, w.old.path, index, pos, end)
		if err != nil {
			return nil, err
		}
		e = new(raft.Log)
		h.fill(e, payload)
	case e != nil:
		w.repaired++
	default:
		e = &raft.Log{Index: index, Term: d.Term}
		hole := Damage{Kind: DamageHole, File: w.made.path, First: index, Last: index, Known: d.Known, Term: d.Term, PayloadCRC: d.PayloadCRC, Err: errHole}
		h := recordHeader{flags: recordHole, index: index, term: d.Term, payloadCRC: d.PayloadCRC}
		if d.Known {
			h.flags |= recordHoleKnown
		}
		w.left[index] = h
		w.made.damage = addDamage(w.made.damage, hole)
		if !d.Known {
			return e, nil
		}
	}
	if e.Term < w.term {
		return nil, fmt.Errorf("%w: entry %d of term %d behind one of term %d", ErrMismatch, index, e.Term, w.term)
	}
	w.term = e.Term
	return e, nil
}

func (w *repairer) flush() error {
	if len(w.batch) == 0 {
		return nil
	}
	if w.made.end > 0xffff {
		return fmt.Errorf("wal: repair of segment %d: too many blocks", w.hdr.number)
	}
	raw, offsets := w.enc.encode(&w.hdr, w.made.end, w.batch)
	err := w.l.guard("repair", func() error {
		_, err := w.file.WriteAt(raw, int64(w.made.end)*blockSize)
		return err
	})
	if err != nil {
		return err
	}
	w.made.appendLocked(offsets)
	w.made.end += uint32(len(raw) / blockSize)
	w.batch, w.bytes = w.batch[:0], 0
	return nil
}
