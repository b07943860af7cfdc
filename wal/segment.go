package wal

import (
	"fmt"
	"sync/atomic"

	"penstock/internal/vfs"
)

// segment is one file of the chain. The header and path never change.
type segment struct {
	segmentHeader
	path string
	file *sharedFile

	// end is the block behind the last batch. The writer moves it in the
	// newest segment while holding the writer's turn; elsewhere it is fixed.
	end uint32

	// Guarded by Log.mu.
	//
	// offsets holds the position of each record (see posRaw) and one more:
	// a position at or behind the end of the last. n is how many of them are
	// live: a suffix truncation lowers n and leaves the file alone.
	//
	// The offset of an entry that damage covers is the end of the one before.
	offsets []uint32
	n       int
	damage  []Damage // in order of the entries; first those that cost none
	// unsound: the file must be written again before it can be trusted whole.
	unsound bool
	// quarantine: when it has left the chain, the file is kept apart, not removed.
	quarantine bool
}

// next is the index behind the last live entry; equal to start when empty.
func (s *segment) next() uint64 { return s.start + uint64(s.n) }

func (s *segment) bytes() int64 { return int64(s.blocks) * blockSize }

// append records what a batch added. Log.mu must be held for writing.
func (s *segment) appendLocked(offsets []uint32) {
	if len(s.offsets) > 0 {
		s.offsets = s.offsets[:len(s.offsets)-1] // the old end
	}
	s.offsets = append(s.offsets, offsets...)
	s.n += len(offsets) - 1
}

// cutLocked makes entries at and above index dead.
func (s *segment) cutLocked(index uint64) {
	if index >= s.next() {
		return
	}
	s.n = int(index - s.start)
	s.offsets = s.offsets[:s.n+1]
	s.damage = cutDamage(s.damage, index)
}

// span says where record index lies: its position and one at or behind its end.
func (s *segment) span(index uint64) (pos, end int) {
	i := index - s.start
	return int(s.offsets[i]), int(s.offsets[i+1])
}

// sharedFile is a file that readers may hold while its segment is removed from
// the log: the last one out closes it. (And a recycled file must not be written
// while a reader still has it.)
type sharedFile struct {
	vfs.File
	refs atomic.Int64
}

func shareFile(f vfs.File) *sharedFile {
	s := &sharedFile{File: f}
	s.refs.Store(1)
	return s
}

// acquire must be called while the segment is known to be in the log (Log.mu).
func (s *sharedFile) acquire() { s.refs.Add(1) }

// held: somebody else has the file too. Nil (a lost file) is nobody's.
func (s *sharedFile) held() bool { return s != nil && s.refs.Load() > 1 }

// release closes the file when nobody has it any more. The close error of a
// file whose every write was synced tells nothing about what is on disk.
func (s *sharedFile) release() error {
	if s == nil || s.refs.Add(-1) > 0 {
		return nil
	}
	return s.Close()
}

// readRecord reads and verifies one record of a segment. The payload is a
// fresh slice.
func readRecord(f vfs.File, path string, index uint64, pos, end int) (recordHeader, []byte, error) {
	damage := func(kind DamageKind, err error) (recordHeader, []byte, error) {
		raw, _ := posRaw(pos)
		return recordHeader{}, nil, &DamageError{File: path, Offset: int64(raw), Index: index, Kind: kind, Err: err}
	}
	first := pos / blockData
	raw := readBuffers.get((end-1)/blockData - first + 1)
	defer readBuffers.put(raw)
	if n, err := f.ReadAt(raw.b, int64(first)*blockSize); n < len(raw.b) {
		if isEOF(err) {
			return damage(DamageShort, err)
		}
		return recordHeader{}, nil, fmt.Errorf("wal: read entry %d: %w", index, err)
	}
	at := pos - first*blockData
	var hb [recordHeaderSize]byte
	gather(hb[:], raw.b, at)
	var h recordHeader
	if err := h.decode(&hb); err != nil {
		return damage(DamageRecord, err)
	}
	if h.index != index || pos+h.size() > end {
		return damage(DamageRecord, fmt.Errorf("record is of index %d and %d bytes", h.index, h.size()))
	}
	payload := make([]byte, h.payload())
	gather(payload, raw.b, at+recordHeaderSize)
	if crcOf(payload) != h.payloadCRC {
		return damage(DamagePayload, errPayloadCRC)
	}
	return h, payload, nil
}
