package event

import (
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// One encoder and one decoder serve all goroutines: EncodeAll and DecodeAll are safe for that and keep their state in
// pools of their own.
var (
	zstdEncoder = sync.OnceValue(func() *zstd.Encoder {
		// No checksum: the log has one. Fastest: 900 MB/s against 2 to 4 times less for the next level.
		z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false), zstd.WithLowerEncoderMem(true))
		if err != nil {
			panic(err) // constant options
		}
		return z
	})
	zstdDecoder = sync.OnceValue(func() *zstd.Decoder {
		z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecodeAllCapLimit(true),
			zstd.WithDecoderMaxMemory(MaxPayloadBytes), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			panic(err)
		}
		return z
	})
)

// compressFrom is the size from which compression is tried at all. A smaller payload fits into one block of the log
// anyway, and starting the compressor costs more than all the rest of a request with one small event.
const compressFrom = 4096

// compress appends payload to dst, compressed if that saves at least a sixteenth.
func compress(dst, payload []byte) (out []byte, compressed bool) {
	if len(payload) >= compressFrom {
		out = zstdEncoder().EncodeAll(payload, dst)
		if len(out)-len(dst) <= len(payload)-len(payload)/16 {
			return out, true
		}
		dst = out[:len(dst)] // the room is there already
	}
	return append(dst, payload...), false
}

var errSize = errors.New("the payload has not the size its header says")

// decompress undoes compress. It never allocates more than raw, which the caller has bounded.
func decompress(b []byte, raw int) ([]byte, error) {
	var h zstd.Header
	if err := h.Decode(b); err != nil {
		return nil, fmt.Errorf("payload: %w", err)
	}
	if h.HasFCS && h.FrameContentSize != uint64(raw) {
		return nil, errSize
	}
	out, err := zstdDecoder().DecodeAll(b, make([]byte, 0, raw))
	if err != nil {
		return nil, fmt.Errorf("payload: %w", err)
	}
	if len(out) != raw {
		return nil, errSize
	}
	return out, nil
}

// payloadPool holds the buffers in which payloads are put together before they are compressed.
var payloadPool = sync.Pool{New: func() any { return new([]byte) }}

// putPayload gives a buffer back, unless a rare large one would then be kept for all the small.
func putPayload(b *[]byte) {
	if cap(*b) <= 4*DefaultBodyBytes {
		payloadPool.Put(b)
	}
}
