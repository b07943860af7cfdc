package wal

import (
	"math"
	"unsafe"

	"github.com/hashicorp/raft"
)

// maxKeptBuffer is the largest write buffer kept between batches.
const maxKeptBuffer = 8 << 20

// encoder lays out one write batch in an aligned buffer that it reuses.
// Not safe for concurrent use: it belongs to the writer.
type encoder struct {
	buf     []byte
	offsets []uint32
	firsts  []uint16 // of each block: where the first record in it starts
	header  [recordHeaderSize]byte
	holes   map[uint64]recordHeader // only in a repair: what is written for entries that stay lost
}

// entryBytes is how many record bytes an entry takes.
func entryBytes(l *raft.Log) int {
	return recordHeaderSize + len(l.Data) + len(l.Extensions)
}

func blocksFor(bytes int) uint32 {
	return uint32((bytes + blockData - 1) / blockData)
}

// encode returns the blocks of one batch that starts at block start of the
// segment, and the position of each record plus the end of the last. Both are
// valid until the next call. The payload is copied: the caller's slices are
// not kept.
func (e *encoder) encode(seg *segmentHeader, start uint32, logs []*raft.Log) (raw []byte, offsets []uint32) {
	total := 0
	for _, l := range logs {
		total += entryBytes(l)
	}
	n := blocksFor(total)
	raw = e.buffer(int(n) * blockSize)
	e.offsets = e.offsets[:0]
	firsts := e.firsts[:0]
	for range n {
		firsts = append(firsts, noRecord)
	}
	e.firsts = firsts
	base, pos := int(start)*blockData, 0
	for _, l := range logs {
		e.offsets = append(e.offsets, uint32(base+pos))
		if b := pos / blockData; firsts[b] == noRecord {
			firsts[b] = uint16(pos % blockData)
		}
		pos = e.appendRecord(raw, pos, l)
	}
	e.offsets = append(e.offsets, uint32(base+pos))
	zeroFrom(raw, pos)
	t := tag{gen: seg.gen, start: uint16(start)}
	records := uint16(0)
	if len(logs) <= math.MaxUint16 {
		records = uint16(len(logs))
	}
	for b := range n {
		h := blockHeader{
			segment:     seg.number,
			firstIndex:  logs[0].Index,
			batchBlocks: n,
			used:        uint16(min(blockData, total-int(b)*blockData)),
			firstRecord: firsts[b],
			records:     records,
		}
		sealBlock(raw[int(b)*blockSize:][:blockSize], h, t, start+b)
	}
	return raw, e.offsets
}

// appendRecord writes one record at pos and returns the position behind it.
func (e *encoder) appendRecord(raw []byte, pos int, l *raft.Log) int {
	h := headerOf(l)
	if hole, ok := e.holes[l.Index]; ok {
		h = hole
	}
	h.encode(&e.header)
	scatter(raw, pos, e.header[:])
	scatter(raw, pos+recordHeaderSize, l.Data)
	scatter(raw, pos+recordHeaderSize+len(l.Data), l.Extensions)
	return pos + h.size()
}

// zeroFrom clears what an earlier batch left behind the last record.
func zeroFrom(raw []byte, pos int) {
	if pos%blockData == 0 {
		return
	}
	at, _ := posRaw(pos)
	clear(raw[at:])
}

// buffer returns n bytes that start on a 4 KiB boundary of memory, so that
// the same code can write around the page cache.
func (e *encoder) buffer(n int) []byte {
	if cap(e.buf) >= n {
		return e.buf[:n]
	}
	b := alignedBuffer(max(n, 64<<10))
	if len(b) <= maxKeptBuffer {
		e.buf = b
	}
	return b[:n]
}

func alignedBuffer(n int) []byte {
	b := make([]byte, n+blockSize)
	off := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (blockSize - 1))
	return b[off : off+n : off+n]
}
