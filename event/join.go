package event

import (
	"encoding/binary"
	"fmt"
)

// Joiner makes one batch of events that lie in others, byte for byte as they are there: nothing is decoded or hashed again.
// The zero value is an empty one.
type Joiner struct {
	envelopes, payload []byte

	// The batch added from last, decompressed, and where its events begin.
	from   *Batch
	plain  []byte
	starts []int
}

// Add appends event i of a batch.
func (j *Joiner) Add(b *Batch, i int) error {
	if j.from != b {
		if err := j.open(b); err != nil {
			return err
		}
	}
	j.envelopes = append(j.envelopes, b.envelopes[i*envelopeSize:][:envelopeSize]...)
	j.payload = append(j.payload, j.plain[j.starts[i]:j.starts[i+1]]...)
	return nil
}

func (j *Joiner) open(b *Batch) error {
	j.from, j.plain, j.starts = nil, b.payload, append(j.starts[:0], 0)
	if b.compressed {
		var err error
		if j.plain, err = decompress(b.payload, b.raw); err != nil {
			return fmt.Errorf("%w: %w", ErrNotBatch, err)
		}
	}
	at := 0
	for i := range b.Len() {
		at += int(b.Envelope(i).Length)
		j.starts = append(j.starts, at)
	}
	if at != len(j.plain) {
		return fmt.Errorf("%w: the events have %d bytes, the payload %d", ErrNotBatch, at, len(j.plain))
	}
	j.from = b
	return nil
}

// Len is the number of events added.
func (j *Joiner) Len() int { return len(j.envelopes) / envelopeSize }

// Bytes is their size before compression.
func (j *Joiner) Bytes() int { return len(j.payload) }

// Reset makes it empty again.
func (j *Joiner) Reset() { j.envelopes, j.payload = j.envelopes[:0], j.payload[:0] }

// Encode gives the batch of the events added, for a channel. It has no spec version and no source offset: those were
// committed with the events.
func (j *Joiner) Encode(channelIndex uint64) []byte {
	scratch := getBuffer(0)
	defer putBuffer(scratch)
	stored, compressed := compress(scratch, j.payload)
	var flags byte
	if compressed {
		flags |= flagS2
	}
	dst := make([]byte, 0, batchHeader+len(j.envelopes)+len(stored))
	dst = append(dst, batchVersion, flags, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(j.Len()))
	dst = binary.LittleEndian.AppendUint64(dst, channelIndex)
	dst = binary.LittleEndian.AppendUint64(dst, 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(stored)))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(j.payload)))
	return append(append(dst, j.envelopes...), stored...)
}
