package event

import (
	"encoding/binary"
	"fmt"
)

// Batch is a decoded batch. Its header and envelopes are read at once; the payload stays compressed until Events.
type Batch struct {
	hdr        BatchHeader
	envelopes  []byte // count times envelopeSize
	payload    []byte // as stored
	raw        int
	compressed bool
}

// Header returns the header.
func (b *Batch) Header() BatchHeader { return b.hdr }

// Len returns the number of events.
func (b *Batch) Len() int { return len(b.envelopes) / envelopeSize }

// PayloadBytes returns the size of all events before compression.
func (b *Batch) PayloadBytes() int { return b.raw }

// Envelope returns the envelope of event i.
func (b *Batch) Envelope(i int) Envelope {
	p := b.envelopes[i*envelopeSize:][:envelopeSize]
	return Envelope{
		DedupKey:    [16]byte(p[:16]),
		IDHash:      binary.LittleEndian.Uint64(p[16:]),
		ContentHash: binary.LittleEndian.Uint64(p[24:]),
		OrderKey:    binary.LittleEndian.Uint64(p[32:]),
		Length:      binary.LittleEndian.Uint32(p[40:]),
		Flags:       Flags(p[44]),
	}
}

// DecodeBatch reads the structure of a batch. The result aliases b. It decompresses nothing and allocates nothing that
// grows with b; every length is checked against the bytes that are there. Errors wrap ErrNotBatch.
func DecodeBatch(b []byte) (*Batch, error) {
	if len(b) < batchHeader {
		return nil, fmt.Errorf("%w: %d bytes, the header has %d", ErrNotBatch, len(b), batchHeader)
	}
	if b[0] != batchVersion {
		return nil, fmt.Errorf("%w: format version %d, this build reads %d", ErrNotBatch, b[0], batchVersion)
	}
	flags := b[1]
	if flags&^knownFlags != 0 || b[2] != 0 || b[3] != 0 {
		return nil, fmt.Errorf("%w: unknown flags %#x, reserved bytes %#x", ErrNotBatch, flags, b[2:4])
	}
	count := uint64(binary.LittleEndian.Uint32(b[4:]))
	stored := uint64(binary.LittleEndian.Uint32(b[24:]))
	raw := uint64(binary.LittleEndian.Uint32(b[28:]))
	out := &Batch{
		hdr: BatchHeader{ChannelIndex: binary.LittleEndian.Uint64(b[8:]), SpecVersion: binary.LittleEndian.Uint64(b[16:])},
		raw: int(raw), compressed: flags&flagS2 != 0,
	}
	rest := b[batchHeader:]
	if flags&flagOffset != 0 {
		var err error
		if out.hdr.Offset, rest, err = decodeOffset(rest); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotBatch, err)
		}
	}
	if count*envelopeSize+stored != uint64(len(rest)) {
		return nil, fmt.Errorf("%w: %d events and %d bytes of payload do not fill %d bytes", ErrNotBatch, count, stored, len(rest))
	}
	if raw > MaxPayloadBytes || !out.compressed && raw != stored || out.compressed && stored >= raw {
		return nil, fmt.Errorf("%w: payload of %d bytes stored in %d", ErrNotBatch, raw, stored)
	}
	out.envelopes, out.payload = rest[:count*envelopeSize], rest[count*envelopeSize:]
	return out, out.checkEnvelopes()
}

func (b *Batch) checkEnvelopes() error {
	sum := uint64(0)
	for p := b.envelopes; len(p) > 0; p = p[envelopeSize:] {
		sum += uint64(binary.LittleEndian.Uint32(p[40:]))
		if Flags(p[44])&^knownEventFlag != 0 || p[45]|p[46]|p[47] != 0 {
			return fmt.Errorf("%w: an envelope with unknown flags %#x", ErrNotBatch, p[44:48])
		}
	}
	if sum != uint64(b.raw) {
		return fmt.Errorf("%w: the events have %d bytes, the payload %d", ErrNotBatch, sum, b.raw)
	}
	return nil
}

func decodeOffset(b []byte) (*Offset, []byte, error) {
	const fixed = SourceOffsetSize + 4
	if len(b) < fixed {
		return nil, nil, fmt.Errorf("%d bytes for a source offset", len(b))
	}
	so, err := DecodeSourceOffset(b[:SourceOffsetSize])
	if err != nil {
		return nil, nil, err
	}
	source := int(binary.LittleEndian.Uint16(b[SourceOffsetSize:]))
	partition := int(binary.LittleEndian.Uint16(b[SourceOffsetSize+2:]))
	b = b[fixed:]
	if source > MaxOffsetNameBytes || partition > MaxOffsetNameBytes || source+partition > len(b) {
		return nil, nil, fmt.Errorf("a source of %d and a partition of %d bytes in %d", source, partition, len(b))
	}
	names := string(b[:source+partition])
	return &Offset{Source: names[:source], Partition: names[source:], SourceOffset: so}, b[source+partition:], nil
}

// Events decompresses the payload and decodes all events. It allocates at most PayloadBytes and what the events take.
// Errors wrap ErrNotBatch.
func (b *Batch) Events() ([]Event, error) {
	payload := b.payload
	if b.compressed {
		var err error
		if payload, err = decompress(b.payload, b.raw); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotBatch, err)
		}
	}
	events := make([]Event, b.Len())
	for i := range events {
		x := b.Envelope(i)
		if err := decodeEvent(payload[:x.Length:x.Length], &events[i]); err != nil {
			return nil, fmt.Errorf("%w: event %d: %w", ErrNotBatch, i, err)
		}
		events[i].ServerID = x.Flags&FlagServerID != 0
		payload = payload[x.Length:]
	}
	return events, nil
}
