package event

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// SourceOffsetSize is the encoded size of a SourceOffset in bytes.
const SourceOffsetSize = 24

// SourceOffset says how far a source has been read, per (channel, source, partition).
//
//	 0        8        16       24
//	+--------+--------+--------+
//	|position| record | closed |   three little-endian u64; closed is 0 or 1
//	+--------+--------+--------+
//
// Absent is absent, never a zero value: a position of 0 is a real position.
type SourceOffset struct {
	// Position is the source's own: a byte, a Kafka offset, an LSN.
	Position uint64
	// Record counts records within Position's unit, as the source defines it.
	Record uint64
	// Closed says that the source has ended.
	Closed bool
}

// Merge gives the offset after both were committed: maximum, maximum, or. It never goes down (I7).
func (o SourceOffset) Merge(p SourceOffset) SourceOffset {
	return SourceOffset{Position: max(o.Position, p.Position), Record: max(o.Record, p.Record), Closed: o.Closed || p.Closed}
}

// Append appends the 24 bytes.
func (o SourceOffset) Append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, o.Position)
	dst = binary.LittleEndian.AppendUint64(dst, o.Record)
	closed := uint64(0)
	if o.Closed {
		closed = 1
	}
	return binary.LittleEndian.AppendUint64(dst, closed)
}

// DecodeSourceOffset reads exactly 24 bytes.
func DecodeSourceOffset(b []byte) (SourceOffset, error) {
	if len(b) != SourceOffsetSize {
		return SourceOffset{}, fmt.Errorf("source offset: %d bytes, want %d", len(b), SourceOffsetSize)
	}
	closed := binary.LittleEndian.Uint64(b[16:])
	if closed > 1 {
		return SourceOffset{}, fmt.Errorf("source offset: closed is %d, want 0 or 1", closed)
	}
	return SourceOffset{
		Position: binary.LittleEndian.Uint64(b), Record: binary.LittleEndian.Uint64(b[8:]), Closed: closed == 1,
	}, nil
}

// String gives POSITION:RECORD with :closed behind it when it is.
func (o SourceOffset) String() string {
	s := strconv.FormatUint(o.Position, 10) + ":" + strconv.FormatUint(o.Record, 10)
	if o.Closed {
		s += ":closed"
	}
	return s
}

// ParseSourceOffset reads POSITION:RECORD[:closed].
func ParseSourceOffset(s string) (SourceOffset, error) {
	bad := func() (SourceOffset, error) {
		return SourceOffset{}, fmt.Errorf("source offset %q: want POSITION:RECORD or POSITION:RECORD:closed", s)
	}
	parts := strings.Split(s, ":")
	if len(parts) < 2 || len(parts) > 3 || (len(parts) == 3 && parts[2] != "closed") {
		return bad()
	}
	position, err := strconv.ParseUint(parts[0], 10, 64)
	if err != nil {
		return bad()
	}
	record, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil {
		return bad()
	}
	return SourceOffset{Position: position, Record: record, Closed: len(parts) == 3}, nil
}
