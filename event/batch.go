package event

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// A batch, version 1 (docs/format/batch.md). Integers are little-endian.
//
//	 0         1         2         4         8                  16                 24         28         32
//	+---------+---------+---------+---------+------------------+------------------+----------+----------+
//	| version | flags   | 0       | count   | channel index    | spec version     | stored   | raw      |
//	| u8 = 1  | u8      | u16     | u32     | u64              | u64              | u32      | u32      |
//	+---------+---------+---------+---------+------------------+------------------+----------+----------+
//	| source offset, if flags say so: 24 bytes, u16, u16, source, partition                             |
//	+---------------------------------------------------------------------------------------------------+
//	| count envelopes of 48 bytes                                                                       |
//	+---------------------------------------------------------------------------------------------------+
//	| payload, stored bytes: count events one behind the other, raw bytes; S2 if flags say so           |
//	+---------------------------------------------------------------------------------------------------+
//
// An envelope:
//
//	 0                16        24             32          40       44      45   48
//	+----------------+---------+--------------+-----------+--------+-------+----+
//	| dedup key      | id hash | content hash | order key | length | flags | 0  |
//	| 16 bytes       | u64     | u64          | u64       | u32    | u8    | 3  |
//	+----------------+---------+--------------+-----------+--------+-------+----+
//
// The batch has no checksum of its own: it never leaves a log record, a Raft message or a peer message, and each of those
// has one. What DecodeBatch checks is the structure: every length adds up, nothing is left over, nothing reserved is set.
const (
	batchVersion   = 1
	batchHeader    = 32
	envelopeSize   = 48
	flagS2         = 1 << 0
	flagOffset     = 1 << 1
	knownFlags     = flagS2 | flagOffset
	knownEventFlag = FlagServerID | FlagPoison
)

// MaxPayloadBytes bounds the events of one batch before compression, and so what a reader allocates for a batch. Requests
// that would pass it (thousands of small events that each carry kilobytes of attributes) are refused by EncodeBatch.
const MaxPayloadBytes = 128 << 20

// MaxOffsetNameBytes bounds the source and the partition of a source offset.
const MaxOffsetNameBytes = 1024

// Offset is a source offset with the source and partition it belongs to.
type Offset struct {
	Source, Partition string
	SourceOffset
}

// BatchHeader is what a batch says about all its events.
type BatchHeader struct {
	// ChannelIndex is the creation index of the channel, SpecVersion the version of its spec that validated the events.
	ChannelIndex, SpecVersion uint64
	// Offset is committed together with the events, if there is one.
	Offset *Offset
}

// Flags say what an event is apart from its content.
type Flags uint8

const (
	// FlagServerID: the id was made by the server; the event is not deduplicated and its dedup key is zero.
	FlagServerID Flags = 1 << 0
	// FlagPoison: the event is kept, but invalid on its channel: poison at every emitter.
	FlagPoison Flags = 1 << 1
)

// Envelope is what the state machine needs to know of an event. It stands uncompressed in the batch.
type Envelope struct {
	// DedupKey is DedupKeyOf the event, or zero with FlagServerID.
	DedupKey [16]byte
	// IDHash and ContentHash are IDHashOf and ContentHashOf; OrderKey is the hash of the order key, 0 for none.
	IDHash, ContentHash, OrderKey uint64
	// Length is the size of the event in the payload before compression.
	Length uint32
	Flags  Flags
}

// EncodeBatch appends the batch of the events. poison, if not nil, says for each event whether it is poison. The payload
// is compressed here, once; stored as it is when that does not save a sixteenth. dst grows once, to the size of the whole.
func EncodeBatch(dst []byte, hdr BatchHeader, key HashKey, events []Event, poison []bool) ([]byte, error) {
	if poison != nil && len(poison) != len(events) {
		return nil, fmt.Errorf("encode batch: %d events, %d poison marks", len(events), len(poison))
	}
	size, flags, offset := 0, byte(0), []byte(nil)
	for i := range events {
		if size += recordBound(&events[i]); size > MaxPayloadBytes {
			return nil, tooLarge(MaxPayloadBytes, "the events with their attributes are larger than the limit of %d bytes", MaxPayloadBytes)
		}
	}
	if hdr.Offset != nil {
		flags |= flagOffset
		var err error
		if offset, err = appendOffset(nil, hdr.Offset); err != nil {
			return nil, fmt.Errorf("encode batch: %w", err)
		}
	}
	envelopes, payload, scratch := getBuffer(len(events)*envelopeSize), getBuffer(size), getBuffer(0)
	defer func() { putBuffer(envelopes); putBuffer(payload); putBuffer(scratch) }()
	for i := range events {
		e, before := &events[i], len(payload.b)
		payload.b = appendEvent(payload.b, e)
		envelopes.b = appendEnvelope(envelopes.b, envelopeOf(hdr.ChannelIndex, key, e, poison != nil && poison[i], len(payload.b)-before))
	}
	stored, compressed := compress(scratch, payload.b)
	if compressed {
		flags |= flagS2
	}
	dst = slices.Grow(dst, batchHeader+len(offset)+len(envelopes.b)+len(stored))
	dst = append(dst, batchVersion, flags, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(events)))
	dst = binary.LittleEndian.AppendUint64(dst, hdr.ChannelIndex)
	dst = binary.LittleEndian.AppendUint64(dst, hdr.SpecVersion)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(stored)))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(payload.b)))
	dst = append(append(dst, offset...), envelopes.b...)
	return append(dst, stored...), nil
}

func envelopeOf(channelIndex uint64, key HashKey, e *Event, poison bool, length int) Envelope {
	x := Envelope{
		IDHash: IDHashOf(e.ID), ContentHash: ContentHashOf(e), OrderKey: orderKeyOf(e), Length: uint32(length),
	}
	if e.ServerID {
		x.Flags |= FlagServerID
	} else {
		x.DedupKey = DedupKeyOf(key, channelIndex, e.Source, e.ID)
	}
	if poison {
		x.Flags |= FlagPoison
	}
	return x
}

func appendEnvelope(dst []byte, x Envelope) []byte {
	dst = append(dst, x.DedupKey[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, x.IDHash)
	dst = binary.LittleEndian.AppendUint64(dst, x.ContentHash)
	dst = binary.LittleEndian.AppendUint64(dst, x.OrderKey)
	dst = binary.LittleEndian.AppendUint32(dst, x.Length)
	return append(dst, byte(x.Flags), 0, 0, 0)
}

func appendOffset(dst []byte, o *Offset) ([]byte, error) {
	for _, name := range []string{o.Source, o.Partition} {
		if len(name) > MaxOffsetNameBytes {
			return nil, fmt.Errorf("the source or partition of an offset has %d bytes, more than %d", len(name), MaxOffsetNameBytes)
		}
	}
	dst = o.SourceOffset.Append(dst)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(o.Source)))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(o.Partition)))
	dst = append(dst, o.Source...)
	return append(dst, o.Partition...), nil
}
