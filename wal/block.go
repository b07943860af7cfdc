package wal

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// Sizes of the format. They never change; a new version would have its own.
const (
	sectorSize      = 512
	tagSize         = 8
	sectorData      = sectorSize - tagSize // 504
	blockSize       = 4096
	sectorsPerBlock = blockSize / sectorSize
	blockHeaderSize = 32
	blockData       = sectorsPerBlock*sectorData - blockHeaderSize // 4000
)

// Types of block. Zero is never one, so zeroed disk is never a block. The
// first block of a segment is a segment header (header.go), not one of these.
const blockRecords = 1

// noRecord in a block header: no record starts in this block.
const noRecord = 0xffff

var (
	le     = binary.LittleEndian
	castag = crc32.MakeTable(crc32.Castagnoli)
)

func crcOf(b []byte) uint32 { return crc32.Checksum(b, castag) }

// tag is the last eight bytes of every sector ever written to a segment:
//
//	byte   0        4        6        8
//	       +--------+--------+--------+
//	       | gener- | batch  | check  |   little endian
//	       | ation  | start  |        |
//	       +--------+--------+--------+
//
// generation is that of the segment at the time, batch start the block number
// where the write batch that the sector belongs to starts, and check binds
// both to the sector's place in the file. A sector is judged by its tag alone:
// all eight bytes zero = never written since the file was made; a right check
// and a lower generation = left from an earlier use of the file; a right check
// and the segment's own generation = current. Anything else no write of ours
// can have left. One or two flipped bits never make one right tag of another
// (TestTagFlipsAreNoticed).
type tag struct {
	gen   uint32
	start uint16
}

type sectorState uint8

const (
	sectorZero sectorState = iota
	sectorOld
	sectorCurrent
	sectorBad
)

// seed is the CRC32C state behind generation and batch start; check goes on
// with the sector's number and folds the result to 16 bits. Table-driven and in
// two steps because it is done for every sector: crc32.Update would cost an
// allocation and a call for each.
func (t tag) seed() uint32 {
	c := crcWord(^uint32(0), t.gen)
	c = castag[byte(c)^byte(t.start)] ^ c>>8
	return castag[byte(c)^byte(t.start>>8)] ^ c>>8
}

func crcWord(c, w uint32) uint32 {
	for range 4 {
		c = castag[byte(c)^byte(w)] ^ c>>8
		w >>= 8
	}
	return c
}

func tagCheck(seed, sector uint32) uint16 {
	c := ^crcWord(seed, sector)
	return uint16(c>>16) ^ uint16(c)
}

func putTag(sec []byte, t tag, seed, sector uint32) {
	b := sec[sectorData:sectorSize]
	le.PutUint32(b[0:], t.gen)
	le.PutUint16(b[4:], t.start)
	le.PutUint16(b[6:], tagCheck(seed, sector))
}

// readTag judges a sector against the generation of its segment.
func readTag(sec []byte, gen, sector uint32) (tag, sectorState) {
	b := sec[sectorData:sectorSize]
	if le.Uint64(b) == 0 {
		return tag{}, sectorZero
	}
	t := tag{gen: le.Uint32(b[0:]), start: le.Uint16(b[4:])}
	switch {
	case t.gen == 0 || le.Uint16(b[6:]) != tagCheck(t.seed(), sector) || t.gen > gen:
		return t, sectorBad
	case t.gen < gen:
		return t, sectorOld
	}
	return t, sectorCurrent
}

// blockHeader starts every block but the first of a segment:
//
//	byte   0        4      5      6        8                16
//	       +--------+------+------+--------+----------------+
//	       | CRC32C | type | flags| used   | segment number |
//	       +--------+------+------+--------+----------------+
//	      16                24             28       30       32
//	       +----------------+--------------+--------+--------+
//	       | first index    | batch blocks | first  | records|
//	       | of the batch   |              | record |        |
//	       +----------------+--------------+--------+--------+
//
// records counts those of the batch, 0 when they are more than 65535 (or the
// block was written before the field was): so one good block says which
// indexes a damaged batch held. The CRC covers the other 4092 bytes of the block, tags included; generation
// and batch start are in the tags. used counts the record bytes in this block
// (4000 in all but the last of a batch); first record is the place among them
// where the first record that starts here does, so that a reader can take up
// again behind a lost block.
type blockHeader struct {
	segment     uint64
	firstIndex  uint64
	batchBlocks uint32
	used        uint16
	firstRecord uint16
	records     uint16
}

// sealBlock writes header, tags and CRC around record bytes already in place.
func sealBlock(raw []byte, h blockHeader, t tag, block uint32) {
	raw[4] = blockRecords
	raw[5] = 0
	le.PutUint16(raw[6:], h.used)
	le.PutUint64(raw[8:], h.segment)
	le.PutUint64(raw[16:], h.firstIndex)
	le.PutUint32(raw[24:], h.batchBlocks)
	le.PutUint16(raw[28:], h.firstRecord)
	le.PutUint16(raw[30:], h.records)
	putTags(raw, t, block)
	le.PutUint32(raw[0:], crcOf(raw[4:blockSize]))
}

func putTags(raw []byte, t tag, block uint32) {
	seed := t.seed()
	for s := range uint32(sectorsPerBlock) {
		putTag(raw[s*sectorSize:], t, seed, block*sectorsPerBlock+s)
	}
}

// openBlock reports whether raw is a whole, good block of the batch that
// starts at t.start in the given segment, and returns its header.
func openBlock(raw []byte, segment uint64, t tag, block uint32) (blockHeader, bool) {
	var want [tagSize]byte
	seed := t.seed()
	le.PutUint32(want[0:], t.gen)
	le.PutUint16(want[4:], t.start)
	for s := range uint32(sectorsPerBlock) {
		le.PutUint16(want[6:], tagCheck(seed, block*sectorsPerBlock+s))
		if [tagSize]byte(raw[s*sectorSize+sectorData:]) != want {
			return blockHeader{}, false
		}
	}
	if le.Uint32(raw[0:]) != crcOf(raw[4:blockSize]) || raw[4] != blockRecords || raw[5] != 0 {
		return blockHeader{}, false
	}
	h := blockHeader{
		used:        le.Uint16(raw[6:]),
		segment:     le.Uint64(raw[8:]),
		firstIndex:  le.Uint64(raw[16:]),
		batchBlocks: le.Uint32(raw[24:]),
		firstRecord: le.Uint16(raw[28:]),
		records:     le.Uint16(raw[30:]),
	}
	ok := h.segment == segment && h.used > 0 && h.used <= blockData && h.batchBlocks > 0
	return h, ok
}

// A position in a segment is counted in record bytes: block*blockData plus the
// place among the block's 4000. posRaw says where that byte lies in a buffer
// that starts at block 0 of the count, and how many more follow in its sector.
func posRaw(pos int) (raw, contiguous int) {
	block, x := pos/blockData, pos%blockData+blockHeaderSize
	return block*blockSize + x/sectorData*sectorSize + x%sectorData, sectorData - x%sectorData
}

// scatter copies src to record position pos of raw, stepping over headers and tags.
func scatter(raw []byte, pos int, src []byte) {
	for len(src) > 0 {
		at, room := posRaw(pos)
		n := copy(raw[at:at+min(room, len(src))], src)
		src, pos = src[n:], pos+n
	}
}

// gather copies record bytes from position pos of raw into dst.
func gather(dst, raw []byte, pos int) {
	for len(dst) > 0 {
		at, room := posRaw(pos)
		n := copy(dst, raw[at:at+min(room, len(dst))])
		dst, pos = dst[n:], pos+n
	}
}

// isZero is for headers, where "never written" and "bad" differ.
func isZero(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 })
}
