package event

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// compressedSlack is how much longer than the limit a compressed body may be. It stops streams that decompress to nothing
// for ever (empty gzip members, skippable zstd frames).
const compressedSlack = 64 << 10

// maxHint bounds what is allocated on the word of a Content-Length alone; from there the buffer doubles as bytes arrive.
const maxHint = 512 << 10

// maxWindow bounds the memory of a zstd decoder. RFC 8878 asks decoders to support 8 MiB.
const maxWindow = 8 << 20

// readBody reads a body to its end and undoes one Content-Encoding. The bound is on the decompressed bytes, and reading
// stops one byte behind it: a small body that would grow to gigabytes is never inflated.
func readBody(h http.Header, body io.Reader, limit int, what string) ([]byte, error) {
	encoding, refused := contentEncoding(h)
	if refused != nil {
		return nil, refused
	}
	over := func() error {
		return tooLarge(limit, "the %s is larger than the limit of %d bytes after decompression", what, limit)
	}
	hint := 0
	if n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64); err == nil && n > 0 {
		if encoding == "" && n > int64(limit) {
			return nil, over()
		}
		hint = int(min(n, maxHint))
		if encoding != "" {
			hint *= 4 // a guess
		}
	}
	src := &source{r: body, left: int64(limit) + compressedSlack}
	in, done, err := decoder(encoding, src)
	if err == nil {
		var b []byte
		b, err = readAtMost(in, limit, hint)
		done()
		if err == nil {
			return b, nil
		}
	}
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(src.err, &tooLong), errors.Is(err, errLimit), errors.Is(src.err, errLimit):
		return nil, over()
	case src.err != nil: // the connection, not the content
		return nil, fmt.Errorf("read body: %w", src.err)
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		return nil, tooLarge(maxWindow, "the zstd window is larger than the limit of %d bytes", maxWindow)
	}
	return nil, refuse(BadEvent, "", "the body is no valid %s stream: %v", encoding, err)
}

// contentEncoding returns "gzip", "zstd" or "" for none. Several encodings are not unwrapped.
func contentEncoding(h http.Header) (string, *Error) {
	raw := strings.ToLower(strings.TrimSpace(strings.Join(h["Content-Encoding"], ",")))
	switch raw {
	case "", "identity":
		return "", nil
	case "gzip", "x-gzip":
		return "gzip", nil
	case "zstd":
		return "zstd", nil
	}
	return "", refuse(UnsupportedEncoding, "Content-Encoding", "%q is not supported; send gzip, zstd or identity, one of them", shown(raw))
}

var errLimit = errors.New("limit passed")

// source keeps the first error of the connection apart from the errors of the decoder above it, and bounds what the
// decoder may take.
type source struct {
	r    io.Reader
	left int64
	err  error
}

func (s *source) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	if s.left <= 0 {
		s.err = errLimit
		return 0, s.err
	}
	n, err := s.r.Read(p[:min(int64(len(p)), s.left)])
	s.left -= int64(n)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// readAtMost reads to the end, or fails with errLimit one byte behind limit. Reading on to the end of the stream is what
// checks its trailer.
func readAtMost(r io.Reader, limit, hint int) ([]byte, error) {
	b := make([]byte, 0, min(max(hint, 511), limit, maxHint)+1)
	for {
		n, err := r.Read(b[len(b):min(cap(b), limit+1)])
		b = b[:len(b)+n]
		if len(b) > limit {
			return nil, errLimit
		}
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return nil, err
		}
		if len(b) == cap(b) {
			b = append(make([]byte, 0, min(2*cap(b), limit+1)), b...)
		}
	}
}

// Decoders are pooled: each holds its window (at most maxWindow) and tables.
var (
	gzipPool sync.Pool
	zstdPool sync.Pool
)

func decoder(encoding string, src io.Reader) (r io.Reader, done func(), err error) {
	switch encoding {
	case "gzip":
		z, ok := gzipPool.Get().(*gzip.Reader)
		if !ok {
			z = new(gzip.Reader)
		}
		if err := z.Reset(src); err != nil {
			return nil, nil, err
		}
		return z, func() { gzipPool.Put(z) }, nil
	case "zstd":
		z, ok := zstdPool.Get().(*zstd.Decoder)
		if !ok {
			// Concurrency 1 decodes in the calling goroutine: nothing to leak when the pool drops a decoder.
			z, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
				zstd.WithDecoderMaxMemory(maxWindow), zstd.WithDecoderMaxWindow(maxWindow))
			if err != nil {
				return nil, nil, err
			}
		}
		if err := z.Reset(src); err != nil {
			return nil, nil, err
		}
		return z, func() { _ = z.Reset(nil); zstdPool.Put(z) }, nil
	}
	return src, func() {}, nil
}
