package wal

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	segmentMagic  = "PENSTWAL"
	formatVersion = 1
	preambleSize  = 16

	segmentPrefix = "wal-"
	sparePrefix   = "spare-"
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
)

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
//
// and zeros, and the eight tags with batch start 0. The first CRC lets a newer
// version be told from a damaged version field; the first 16 bytes keep their
// meaning in every version. The second covers everything else. An unknown flag
// means a newer format.
//
// The segment holds entries from start on; entries at or above start in older
// segments are dead. (start-1, term) is the base of the log once nothing older
// is left. prev is the segment that holds start-1, and prev end its end mark:
// the block where it ended when this one was opened.
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
