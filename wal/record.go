package wal

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/hashicorp/raft"
)

const (
	recordHeaderSize = 48
	recordHasTime    = 1 << 0
	recordHole       = 1 << 1
	recordHoleKnown  = 1 << 2
	recordFlags      = recordHasTime | recordHole | recordHoleKnown
	// MaxEntryBytes bounds Data plus Extensions of one entry.
	MaxEntryBytes = 128 << 20
)

// recordHeader starts every record; data and then extensions follow it. A
// record may span blocks, also in the middle of its header.
//
//	byte   0        4        8      9      10       12       16       20
//	       +--------+--------+------+------+--------+--------+--------+
//	       | header | payload| type | flags| group  | data   | exten- |
//	       | CRC32C | CRC32C |      |      |        | length | sions l|
//	       +--------+--------+------+------+--------+--------+--------+
//	      20       24                32               40              48
//	       +--------+----------------+----------------+----------------+
//	       | nano-  | index          | term           | appended at,   |
//	       | seconds|                |                | unix seconds   |
//	       +--------+----------------+----------------+----------------+
//
// The header CRC covers bytes 4 to 48, the payload CRC data and extensions.
// type is Raft's plus one: zero is never a type. group is 0 (one Raft group).
// flags: 1 = appended-at is set; 2 = a hole: the entry was lost and could not
// be repaired, a reader gets a *DamageError; 4 = and its term and payload CRC
// are known. A hole has no data and no extensions.
type recordHeader struct {
	payloadCRC uint32
	typ        raft.LogType
	flags      uint8
	dataLen    uint32
	extLen     uint32
	nanos      uint32
	index      uint64
	term       uint64
	seconds    int64
}

func (h *recordHeader) size() int { return recordHeaderSize + h.payload() }

func (h *recordHeader) payload() int { return int(h.dataLen) + int(h.extLen) }

// headerOf describes an entry; the caller checked its size.
func headerOf(l *raft.Log) recordHeader {
	h := recordHeader{
		typ:     l.Type,
		dataLen: uint32(len(l.Data)),
		extLen:  uint32(len(l.Extensions)),
		index:   l.Index,
		term:    l.Term,
	}
	h.payloadCRC = crc32.Update(crcOf(l.Data), castag, l.Extensions)
	if !l.AppendedAt.IsZero() {
		h.flags |= recordHasTime
		h.seconds = l.AppendedAt.Unix()
		h.nanos = uint32(l.AppendedAt.Nanosecond())
	}
	return h
}

func (h *recordHeader) encode(b *[recordHeaderSize]byte) {
	le.PutUint32(b[4:], h.payloadCRC)
	b[8] = byte(h.typ) + 1
	b[9] = h.flags
	le.PutUint16(b[10:], 0)
	le.PutUint32(b[12:], h.dataLen)
	le.PutUint32(b[16:], h.extLen)
	le.PutUint32(b[20:], h.nanos)
	le.PutUint64(b[24:], h.index)
	le.PutUint64(b[32:], h.term)
	le.PutUint64(b[40:], uint64(h.seconds))
	le.PutUint32(b[0:], crcOf(b[4:]))
}

var (
	errRecordCRC   = errors.New("record header fails its CRC")
	errRecordField = errors.New("record header holds a value that no version wrote")
	errPayloadCRC  = errors.New("payload fails its CRC")
	errHole        = errors.New("the entry was lost before, and could not be repaired yet")
)

func (h *recordHeader) decode(b *[recordHeaderSize]byte) error {
	if le.Uint32(b[0:]) != crcOf(b[4:]) {
		return errRecordCRC
	}
	if b[8] == 0 || b[9]&^recordFlags != 0 || le.Uint16(b[10:]) != 0 {
		return errRecordField
	}
	*h = recordHeader{
		payloadCRC: le.Uint32(b[4:]),
		typ:        raft.LogType(b[8] - 1),
		flags:      b[9],
		dataLen:    le.Uint32(b[12:]),
		extLen:     le.Uint32(b[16:]),
		nanos:      le.Uint32(b[20:]),
		index:      le.Uint64(b[24:]),
		term:       le.Uint64(b[32:]),
		seconds:    int64(le.Uint64(b[40:])),
	}
	if h.payload() > MaxEntryBytes || h.hole() && h.payload() > 0 {
		return errRecordField
	}
	return nil
}

func (h *recordHeader) hole() bool { return h.flags&recordHole != 0 }

// fill makes the entry; payload is data followed by extensions, already
// checked, and becomes the entry's.
func (h *recordHeader) fill(l *raft.Log, payload []byte) {
	*l = raft.Log{Index: h.index, Term: h.term, Type: h.typ}
	if h.dataLen > 0 {
		l.Data = payload[:h.dataLen:h.dataLen]
	}
	if h.extLen > 0 {
		l.Extensions = payload[h.dataLen:]
	}
	if h.flags&recordHasTime != 0 {
		l.AppendedAt = time.Unix(h.seconds, int64(h.nanos))
	}
}

// checkEntry refuses what the format cannot hold, before anything is written.
func checkEntry(l *raft.Log) error {
	switch {
	case l.Type == math.MaxUint8:
		return fmt.Errorf("wal: entry %d: type %d cannot be stored", l.Index, l.Type)
	case len(l.Data)+len(l.Extensions) > MaxEntryBytes:
		return fmt.Errorf("%w: entry %d has %d bytes, the limit is %d",
			ErrTooLarge, l.Index, len(l.Data)+len(l.Extensions), MaxEntryBytes)
	}
	return nil
}
