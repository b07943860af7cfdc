package wal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"penstock/internal/vfs"
)

const (
	zeroChunk    = 1 << 20
	zeroSync     = 8 << 20 // sync this often, so that no flush is long
	noSpaceRetry = time.Second
)

// preparer keeps segments ready: dropped ones to be used again (recycle.go),
// and when there is none, one of zeros.
type preparer struct {
	ready chan spare    // never blocks: room for the bound and one being made
	taken chan struct{} // the goroutine: look whether one must be made; capacity 1
	// waiting: a writer cannot go on without one.
	waiting atomic.Bool
	// noSpace is why none can be made just now, nil when nothing is known.
	noSpace atomic.Pointer[error]
	seq     atomic.Uint64 // highest number given to a spare's name
}

func newPreparer(spares int) preparer {
	return preparer{ready: make(chan spare, spares+1), taken: make(chan struct{}, 1)}
}

// spare is a file of zeros (or, recycled, of older generations), durable under
// its spare name.
type spare struct {
	path   string
	blocks uint32
}

// prepare is the goroutine that makes a spare whenever none is ready. Started
// by Open, stopped by Close; blocks on disk, and on the writer taking one.
func (l *Log) prepare() {
	defer l.loops.Done()
	for {
		for len(l.prep.ready) == 0 {
			s, err := l.makeSpare(l.cfg.blocks())
			switch {
			case err == nil:
				l.prep.noSpace.Store(nil)
				l.prep.ready <- s
			case errors.Is(err, syscall.ENOSPC):
				l.prep.noSpace.Store(&err)
				// Nothing of the log is touched by this: a new file is tried
				// again. A writer that needs it meanwhile runs into its stall limit,
				// which then names the lack of space.
				if l.prep.waiting.Load() && l.ReleaseReserve() {
					continue
				}
				l.log.Error("no space for the next log segment", "error", err)
				if !l.sleep(noSpaceRetry, l.prep.taken) {
					return
				}
			case l.usable() != nil:
				return
			default:
				_ = l.fuse.blow(fmt.Errorf("prepare segment: %w", err))
				return
			}
		}
		select {
		case <-l.prep.taken:
		case <-l.closed:
			return
		case <-l.fuse.blown:
			return
		}
	}
}

// sleep waits, until woken at the longest; false means stop.
func (l *Log) sleep(d time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-wake:
		return true
	case <-l.closed:
	case <-l.fuse.blown:
	}
	return false
}

// makeSpare writes zeros for real: space that is only reserved would make each
// first write change metadata and the fdatasync twice as slow.
func (l *Log) makeSpare(blocks uint32) (s spare, err error) {
	path := filepath.Join(l.dir, spareName(l.prep.seq.Add(1)))
	tmp := path + tmpSuffix
	defer func() {
		if err != nil {
			_ = l.fs.Remove(tmp)
		}
	}()
	if err := l.writeZeros(tmp, int64(blocks)*blockSize); err != nil {
		return spare{}, err
	}
	if err := l.fs.Rename(tmp, path); err != nil {
		return spare{}, err
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		return spare{}, err
	}
	return spare{path: path, blocks: blocks}, nil
}

// writeZeros makes a file of that many zeros, durable on return.
func (l *Log) writeZeros(path string, size int64) (err error) {
	f, err := l.fs.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	zeros := alignedBuffer(int(min(size, zeroChunk)))
	for off := int64(0); off < size; {
		if err := l.usable(); err != nil {
			return err // closing, or failed: leave it
		}
		n := min(size-off, int64(len(zeros)))
		if _, err := f.WriteAt(zeros[:n], off); err != nil {
			return err
		}
		if off += n; off%zeroSync == 0 || off == size {
			if err := f.Sync(); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeSpare returns a prepared segment with room for a batch of that many
// blocks. The turn must be held.
func (l *Log) takeSpare(batchBlocks uint32) (s spare, err error) {
	if want := batchBlocks + 1; want > l.cfg.blocks() {
		err = l.guard("prepare large segment", func() (err error) {
			if s, err = l.makeSpare(want); errors.Is(err, syscall.ENOSPC) && l.ReleaseReserve() {
				s, err = l.makeSpare(want)
			}
			return err
		})
		return s, err
	}
	select {
	case s = <-l.prep.ready:
		poke(l.prep.taken)
		return s, l.fuse.check()
	default:
		l.prep.waiting.Store(true)
		defer l.prep.waiting.Store(false)
		poke(l.prep.taken)
	}
	err = l.guardWait("wait for a prepared segment", l.whyNoSpare, func() error {
		select {
		case s = <-l.prep.ready:
			poke(l.prep.taken)
			return nil
		case <-l.fuse.blown:
			return l.fuse.check()
		}
	})
	return s, err
}

// whyNoSpare is why a writer has waited too long for a spare. Only a disk that
// answers says that it is full, so that is no stall.
func (l *Log) whyNoSpare() error {
	if p := l.prep.noSpace.Load(); p != nil {
		return fmt.Errorf("no space left in %s (%w)", l.dir, *p)
	}
	return ErrStalled
}

// openSegment turns a spare into the newest segment. Its header is durable
// before the file gets its name, and the name before this returns: from then
// on the header decides what is live. prev is the segment that holds start-1,
// nil when none does. The turn must be held. On error nothing changed but that
// the fuse blew.
func (l *Log) openSegment(kind segmentKind, start, prevTerm uint64, prev *segment, batchBlocks uint32) (*segment, error) {
	s, err := l.takeSpare(batchBlocks)
	if err != nil {
		return nil, err
	}
	l.writer.gen++
	l.writer.number++
	h := segmentHeader{
		kind: kind, number: l.writer.number, gen: l.writer.gen, blocks: s.blocks,
		start: start, prevTerm: prevTerm, created: time.Now().UnixNano(),
	}
	if prev != nil {
		h.prev, h.prevGen, h.prevEnd = prev.number, prev.gen, prev.end
		h.prevCopy = prev.copy()
	}
	path := filepath.Join(l.dir, segmentName(h.number))
	var file vfs.File
	err = l.guard("open segment", func() error {
		if err := l.writeHeader(s.path, &h); err != nil {
			return err
		}
		if err := l.fs.Rename(s.path, path); err != nil {
			return err
		}
		if err := l.fs.SyncDir(l.dir); err != nil {
			return err
		}
		// Opened under its new name, so that errors and tools tell the right one.
		file, err = l.fs.OpenFile(path, os.O_RDWR, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	l.log.Info("log segment opened", "segment", h.number, "generation", h.gen, "kind", kind.String(), "start", start)
	return &segment{segmentHeader: h, path: path, file: shareFile(file), end: 1}, nil
}

// writeHeader makes block 0 of a spare durable.
func (l *Log) writeHeader(path string, h *segmentHeader) (err error) {
	f, err := l.fs.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	raw := alignedBuffer(blockSize)
	h.encode(raw)
	if _, err := f.WriteAt(raw, 0); err != nil {
		return err
	}
	return f.Sync()
}
