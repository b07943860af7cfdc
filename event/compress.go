package event

import (
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/compress/s2"
)

// The compressor of payloads is S2: on batches of webhooks it takes a seventh of the CPU of zstd's fastest level, and a third
// to decompress, for payloads that are a third to a half larger (docs/benchmarks.md). Compression is done once, by one node, but it stood
// first in every profile of ingest; the bytes it leaves cost each node less than it does.

// compressFrom is the size from which compression is tried at all. A smaller payload fits into one block of the log
// anyway.
const compressFrom = 4096

// compress gives payload as it is to be stored: compressed, in the room of scratch, if that saves at least a sixteenth.
func compress(scratch *buffer, payload []byte) (stored []byte, compressed bool) {
	if len(payload) < compressFrom {
		return payload, false
	}
	if n := s2.MaxEncodedLen(len(payload)); cap(scratch.b) < n {
		scratch.b = make([]byte, n)
	}
	out := s2.Encode(scratch.b[:cap(scratch.b)], payload)
	if len(out) > len(payload)-len(payload)/16 {
		return payload, false
	}
	return out, true
}

var errSize = errors.New("the payload has not the size its header says")

// decompress undoes compress. It never allocates more than raw, which the caller has bounded.
func decompress(b []byte, raw int) ([]byte, error) {
	switch n, err := s2.DecodedLen(b); {
	case err != nil:
		return nil, fmt.Errorf("payload: %w", err)
	case n != raw:
		return nil, errSize
	}
	out, err := s2.Decode(make([]byte, raw), b)
	if err != nil {
		return nil, fmt.Errorf("payload: %w", err)
	}
	return out, nil
}

// buffers are what batches are put together in. None outlives the call that got it.
var buffers = sync.Pool{New: func() any { return new(buffer) }}

type buffer struct{ b []byte }

// getBuffer gives an empty buffer with room for n bytes.
func getBuffer(n int) *buffer {
	x := buffers.Get().(*buffer)
	if cap(x.b) < n {
		x.b = make([]byte, 0, n)
	}
	x.b = x.b[:0]
	return x
}

// putBuffer gives a buffer back, unless a rare large one would then be kept for all the small.
func putBuffer(x *buffer) {
	if cap(x.b) <= 4*DefaultBodyBytes {
		buffers.Put(x)
	}
}
