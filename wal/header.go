package wal

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	segmentMagic  = "PENSTWAL"
	formatVersion = 1
	preambleSize  = 16

	segmentPrefix = "wal-"
	sparePrefix   = "spare-"
	repairPrefix  = "repair-"
	lostPrefix    = "quarantine-"
	segmentSuffix = ".seg"
	tmpSuffix     = ".tmp"
)

// segmentKind says why a segment was opened. It is for people and tools:
// recovery follows start and prev alone.
type segmentKind uint8

// Zero is never a kind.
const (
	kindFirst    segmentKind = 1 // a fresh log
	kindRoll     segmentKind = 2 // the one before is full
	kindRecover  segmentKind = 3 // behind a torn tail
	kindTruncate segmentKind = 4 // a suffix, or everything, was removed
	kindReset    segmentKind = 5 // a new base
	kindRepair   segmentKind = 6 // written again in place of a damaged one
	kindCut      segmentKind = 7 // damage was cut off: what it makes dead is kept apart
	kindReplace  segmentKind = 8 // a new base over damage: likewise
)

// quarantines says that what the segment makes dead may be damaged, and is
// kept for people to look at, not removed.
func (k segmentKind) quarantines() bool { return k == kindCut || k == kindReplace }

func (k segmentKind) String() string {
	switch k {
	case kindFirst:
		return "first"
	case kindRoll:
		return "roll"
	case kindRecover:
		return "recover"
	case kindTruncate:
		return "truncate"
	case kindReset:
		return "reset"
	case kindRepair:
		return "repair"
	case kindCut:
		return "cut"
	case kindReplace:
		return "replace"
	}
	return "kind " + strconv.Itoa(int(k))
}

// segmentHeader is block 0 of a segment, written and synced before the file
// gets its name, so that a named segment with a bad header is always damage.
//
//	byte   0                 8         12        16        20     21     22    24
//	       +-----------------+---------+---------+---------+------+------+-----+
//	       | "PENSTWAL"      | version | CRC32C  | CRC32C  | kind | flags|  0  |
//	       |                 |         | of 0-12 | of rest |      |      |     |
//	       +-----------------+---------+---------+---------+------+------+-----+
//	      24                32         36        40                48
//	       +-----------------+---------+---------+-----------------+
//	       | segment number  | gener-  | blocks  | start index     |
//	       |                 | ation   |         |                 |
//	       +-----------------+---------+---------+-----------------+
//	      48                56                64       68         72        80
//	       +-----------------+-----------------+--------+----------+---------+
//	       | term of start-1 | prev segment    | prev   | prev end | created |
//	       |                 | number, 0 none  | gener- | block    | unix ns |
//	       |                 |                 | ation  |          |         |
//	       +-----------------+-----------------+--------+----------+---------+
//	      80                88                96                104      108   112
//	       +-----------------+-----------------+-----------------+--------+-----+
//	       | prev's start    | prev's term of  | prev's prev     | its    | its |
//	       |                 | start-1         |                 | gen.   | end |
//	       +-----------------+-----------------+-----------------+--------+-----+
//
// and zeros, and the eight tags with batch start 0. The first CRC lets a newer
// version be told from a damaged version field; the first 16 bytes keep their
// meaning in every version. The second covers everything else. An unknown flag
// means a newer format.
//
// The segment holds entries from start on; entries at or above start in older
// segments are dead. (start-1, term) is the base of the log once nothing older
// is left. prev is the segment that holds start-1, and prev end its end mark:
// the block where it ended when this one was opened. Bytes 80 to 112 repeat
// what prev's own header says, so that it can be lost without losing more
// (prev's start 0: not known).
//
// A segment of kind repair stands in for a damaged one under the same number
// and generation; its batches are laid out anew and fill the file, so that
// prev end of the next segment does not hold for it.
type segmentHeader struct {
	kind     segmentKind
	number   uint64
	gen      uint32
	blocks   uint32
	start    uint64
	prevTerm uint64
	prev     uint64
	prevGen  uint32
	prevEnd  uint32
	created  int64
	prevCopy headerCopy
}

// headerCopy is what makes a lost header of a known number and generation
// whole again.
type headerCopy struct {
	start    uint64 // 0: there is no copy
	prevTerm uint64
	prev     uint64
	prevGen  uint32
	prevEnd  uint32
}

func (h *segmentHeader) copy() headerCopy {
	return headerCopy{start: h.start, prevTerm: h.prevTerm, prev: h.prev, prevGen: h.prevGen, prevEnd: h.prevEnd}
}

func (c *headerCopy) encode(raw []byte) {
	le.PutUint64(raw[0:], c.start)
	le.PutUint64(raw[8:], c.prevTerm)
	le.PutUint64(raw[16:], c.prev)
	le.PutUint32(raw[24:], c.prevGen)
	le.PutUint32(raw[28:], c.prevEnd)
}

func (c *headerCopy) decode(raw []byte) {
	*c = headerCopy{
		start: le.Uint64(raw[0:]), prevTerm: le.Uint64(raw[8:]), prev: le.Uint64(raw[16:]),
		prevGen: le.Uint32(raw[24:]), prevEnd: le.Uint32(raw[28:]),
	}
}

// header is the header of a segment of which nothing but the copy is left.
func (c *headerCopy) header(number uint64, gen, blocks uint32) segmentHeader {
	return segmentHeader{
		number: number, gen: gen, blocks: blocks,
		start: c.start, prevTerm: c.prevTerm, prev: c.prev, prevGen: c.prevGen, prevEnd: c.prevEnd,
	}
}

func (h *segmentHeader) encode(raw []byte) {
	clear(raw[:blockSize])
	copy(raw, segmentMagic)
	le.PutUint32(raw[8:], formatVersion)
	le.PutUint32(raw[12:], crcOf(raw[:12]))
	raw[20] = byte(h.kind)
	le.PutUint64(raw[24:], h.number)
	le.PutUint32(raw[32:], h.gen)
	le.PutUint32(raw[36:], h.blocks)
	le.PutUint64(raw[40:], h.start)
	le.PutUint64(raw[48:], h.prevTerm)
	le.PutUint64(raw[56:], h.prev)
	le.PutUint32(raw[64:], h.prevGen)
	le.PutUint32(raw[68:], h.prevEnd)
	le.PutUint64(raw[72:], uint64(h.created))
	h.prevCopy.encode(raw[80:])
	putTags(raw, tag{gen: h.gen}, 0)
	le.PutUint32(raw[16:], crcOf(raw[20:blockSize]))
}

// checkPreamble tells "newer than this program" from damage.
func checkPreamble(raw []byte, magic string) error {
	if string(raw[:8]) != magic {
		return fmt.Errorf("no magic %q", magic)
	}
	if got, want := le.Uint32(raw[12:]), crcOf(raw[:12]); got != want {
		return fmt.Errorf("preamble CRC is %08x, want %08x", got, want)
	}
	if v := le.Uint32(raw[8:]); v > formatVersion {
		return fmt.Errorf("%w: version %d, this program knows %d", ErrTooNew, v, formatVersion)
	} else if v == 0 {
		return fmt.Errorf("version 0")
	}
	return nil
}

func (h *segmentHeader) decode(raw []byte) error {
	if err := checkPreamble(raw, segmentMagic); err != nil {
		return err
	}
	if got, want := le.Uint32(raw[16:]), crcOf(raw[20:blockSize]); got != want {
		return fmt.Errorf("header CRC is %08x, want %08x", got, want)
	}
	if raw[21] != 0 || le.Uint16(raw[22:]) != 0 {
		return fmt.Errorf("%w: unknown segment flags %02x %04x", ErrTooNew, raw[21], le.Uint16(raw[22:]))
	}
	*h = segmentHeader{
		kind:     segmentKind(raw[20]),
		number:   le.Uint64(raw[24:]),
		gen:      le.Uint32(raw[32:]),
		blocks:   le.Uint32(raw[36:]),
		start:    le.Uint64(raw[40:]),
		prevTerm: le.Uint64(raw[48:]),
		prev:     le.Uint64(raw[56:]),
		prevGen:  le.Uint32(raw[64:]),
		prevEnd:  le.Uint32(raw[68:]),
		created:  int64(le.Uint64(raw[72:])),
	}
	h.prevCopy.decode(raw[80:])
	for s := range uint32(sectorsPerBlock) {
		if t, state := readTag(raw[s*sectorSize:], h.gen, s); state != sectorCurrent || t.start != 0 {
			return fmt.Errorf("header sector %d has a wrong tag", s)
		}
	}
	if h.kind == 0 || h.number == 0 || h.blocks < 2 || h.start == 0 || h.prev >= h.number {
		return fmt.Errorf("header holds a value that no version wrote")
	}
	return nil
}

func segmentName(number uint64) string {
	return fmt.Sprintf("%s%020d%s", segmentPrefix, number, segmentSuffix)
}

func spareName(number uint64) string {
	return fmt.Sprintf("%s%020d%s", sparePrefix, number, segmentSuffix)
}

func repairName(number uint64) string {
	return fmt.Sprintf("%s%020d%s", repairPrefix, number, segmentSuffix)
}

// quarantineName is unique: a segment can be damaged, repaired, and damaged again.
func quarantineName(number uint64, at time.Time) string {
	return fmt.Sprintf("%s%020d-%d%s", lostPrefix, number, at.UnixNano(), segmentSuffix)
}

// parseName reads the number out of a segment's or spare's file name.
func parseName(path, prefix string) (uint64, bool) {
	s, ok := strings.CutPrefix(filepath.Base(path), prefix)
	if !ok {
		return 0, false
	}
	s, ok = strings.CutSuffix(s, segmentSuffix)
	if !ok || len(s) != 20 {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil && n > 0
}
