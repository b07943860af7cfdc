package event

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

func gzipped(t testing.TB, b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err := z.Write(b)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return out.Bytes()
}

func zstded(t testing.TB, b []byte) []byte {
	z, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	return z.EncodeAll(b, nil)
}

func TestBodiesMayBeCompressed(t *testing.T) {
	body := []byte(`{"a":"` + strings.Repeat("x", 10_000) + `"}`)
	for range 3 { // pooled decoders too
		for encoding, b := range map[string][]byte{"": body, "identity": body, "gzip": gzipped(t, body), "X-GZIP": gzipped(t, body), "zstd": zstded(t, body)} {
			events, err := parse(t, header("Content-Type", "application/json", "Content-Encoding", encoding), b)
			require.NoError(t, err, encoding)
			require.Equal(t, body, events[0].Data, encoding)
		}
	}
}

// counting counts what is read of an endless or long stream.
type counting struct {
	r io.Reader
	n int
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}

// Case B53: a small body that grows to gigabytes is refused as soon as the limit is passed, without inflating the rest.
func TestB53CompressionBombStopsAtTheLimit(t *testing.T) {
	const grown = 256 << 20
	bombs := map[string][]byte{}
	{
		var out bytes.Buffer
		z, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
		require.NoError(t, err)
		zeros := make([]byte, 1<<20)
		for range 128 {
			_, _ = z.Write(zeros)
		}
		require.NoError(t, z.Close())
		bombs["gzip"] = out.Bytes()
	}
	{
		var out bytes.Buffer
		z, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
		require.NoError(t, err)
		zeros := make([]byte, 1<<20)
		for range grown >> 20 {
			_, _ = z.Write(zeros)
		}
		require.NoError(t, z.Close())
		bombs["zstd"] = out.Bytes()
	}
	for encoding, bomb := range bombs {
		for _, contentType := range []string{"application/json", "application/x-ndjson", structuredType} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			src := &counting{r: bytes.NewReader(bomb)}
			_, err := ParseHTTP(header("Content-Type", contentType, "Content-Encoding", encoding), src, Limits{}, testDefaults, counter())
			runtime.ReadMemStats(&after)
			e := requireRefused(t, err, TooLarge, encoding)
			require.Contains(t, []int64{DefaultBodyBytes, DefaultEventBytes}, e.Limit)
			require.Contains(t, e.Reason, "after decompression")
			require.Less(t, src.n, len(bomb)/2+64<<10, "%s: read on behind the limit", encoding)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(48<<20), encoding)
		}
	}
}

func TestB53BadStreamsAre400AndUnknownEncodings415(t *testing.T) {
	body := []byte(strings.Repeat(`{"a":1}`+"\n", 1000))
	for encoding, good := range map[string][]byte{"gzip": gzipped(t, body), "zstd": zstded(t, body)} {
		flipped := bytes.Clone(good)
		flipped[len(flipped)-5] ^= 1 // the checksum of gzip; the last block or checksum of zstd
		for name, b := range map[string][]byte{
			"trailer": flipped, "cut": good[:len(good)-3], "empty": {}, "not compressed": body,
			"rubbish behind": append(bytes.Clone(good), "rubbish"...),
		} {
			if encoding == "zstd" && name == "empty" {
				continue // an empty zstd stream is an empty body
			}
			_, err := parse(t, header("Content-Type", "application/x-ndjson", "Content-Encoding", encoding), b)
			require.Contains(t, requireRefused(t, err, BadEvent, encoding, name).Reason, "no valid "+encoding+" stream", name)
		}
	}
	for _, encoding := range []string{"br", "deflate", "gzip, gzip", "gzip,zstd", "compress", "aes128gcm", "gzip;q=1"} {
		_, err := parse(t, header("Content-Type", "application/x-ndjson", "Content-Encoding", encoding), body)
		requireRefused(t, err, UnsupportedEncoding, encoding)
	}
	h := header("Content-Type", "application/x-ndjson", "Content-Encoding", "gzip", "Content-Encoding", "gzip")
	_, err := parse(t, h, gzipped(t, gzipped(t, body)))
	requireRefused(t, err, UnsupportedEncoding)
	_, err = parse(t, header("Content-Type", "application/x-ndjson", "Content-Encoding", "gzip"), gzipped(t, gzipped(t, body)))
	requireRefused(t, err, BadEvent, "the inner stream is no JSON, and is not unwrapped")
}

// A stream that decompresses to nothing for ever must not be read for ever.
func TestB53EndlessEmptyStreamsAreBounded(t *testing.T) {
	empty := gzipped(t, nil)
	skippable := append([]byte{0x50, 0x2A, 0x4D, 0x18, 0, 4, 0, 0}, make([]byte, 1024)...)
	for encoding, unit := range map[string][]byte{"gzip": empty, "zstd": skippable} {
		src := &counting{r: &endless{unit: unit}}
		_, err := ParseHTTP(header("Content-Type", "application/x-ndjson", "Content-Encoding", encoding), src, Limits{}, testDefaults, counter())
		requireRefused(t, err, TooLarge, encoding)
		require.LessOrEqual(t, src.n, DefaultBodyBytes+compressedSlack)
	}
}

type endless struct {
	unit []byte
	at   int
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		k := copy(p[n:], e.unit[e.at:])
		e.at = (e.at + k) % len(e.unit)
		n += k
	}
	return n, nil
}

// A frame that asks for a window of more than 8 MiB is refused before the window is allocated.
func TestB53ZstdWindowIsBounded(t *testing.T) {
	frame := []byte{0x28, 0xB5, 0x2F, 0xFD, 0x00, 21 << 3, 0x01, 0x00, 0x00} // window 2^31, one empty last block
	_, err := parse(t, header("Content-Type", "application/json", "Content-Encoding", "zstd"), frame)
	require.Equal(t, int64(maxWindow), requireRefused(t, err, TooLarge).Limit)
}

// Case B08: a body over the limit is refused early, by its Content-Length or as soon as the limit is passed; one just under
// it is taken whole.
func TestB08BodiesOverTheLimitAreRefusedEarly(t *testing.T) {
	limits := Limits{EventBytes: 1 << 20, BodyBytes: 2 << 20, Events: 1 << 20}
	line := []byte(`{"n":1234567890}` + "\n")
	under := bytes.Repeat(line, (2<<20)/len(line))
	h := header("Content-Type", "application/x-ndjson")
	events, err := ParseHTTP(h, bytes.NewReader(under), limits, testDefaults, counter())
	requireRefused(t, err, TooLarge, "more events than the highest limit")
	require.Nil(t, events)

	wide := bytes.Repeat([]byte(`{"pad":"`+strings.Repeat("x", 198)+"\"}\n"), 10_000) // 209 bytes each
	require.Less(t, len(wide), 2<<20)
	events, err = ParseHTTP(h, bytes.NewReader(wide), limits, testDefaults, counter())
	require.NoError(t, err)
	require.Len(t, events, 10_000)

	src := &counting{r: &endless{unit: line}}
	_, err = ParseHTTP(h, src, limits, testDefaults, counter())
	require.Equal(t, int64(2<<20), requireRefused(t, err, TooLarge).Limit)
	require.LessOrEqual(t, src.n, 2<<20+1)

	src = &counting{r: &endless{unit: line}}
	_, err = ParseHTTP(header("Content-Type", "application/x-ndjson", "Content-Length", "314572800"), src, limits, testDefaults, counter())
	requireRefused(t, err, TooLarge)
	require.Zero(t, src.n, "refused before a byte was read")

	_, err = ParseHTTP(h, http.MaxBytesReader(nil, io.NopCloser(bytes.NewReader(under)), 100), limits, testDefaults, counter())
	requireRefused(t, err, TooLarge)
}

// Case B01: a line has no limit but that of an event; the over-long one is refused with its place, and nothing behind any
// line is ever lost.
func TestB01LongLinesAreTakenWhole(t *testing.T) {
	for _, encoding := range []string{"", "gzip", "zstd"} {
		for _, size := range []int{65_535, 65_536, 65_537, 1 << 20, 1<<20 + 1} {
			long := `{"pad":"` + strings.Repeat("x", size-len(`{"pad":""}`)) + `"}`
			lines := []string{`{"n":1}`, `{"n":2}`, long, `{"n":4}`, `{"n":5}`}
			body := []byte(strings.Join(lines, "\n"))
			switch encoding {
			case "gzip":
				body = gzipped(t, body)
			case "zstd":
				body = zstded(t, body)
			}
			events, err := parse(t, header("Content-Type", "application/x-ndjson", "Content-Encoding", encoding), body)
			if size > 1<<20 {
				e := requireRefused(t, err, TooLarge)
				require.Equal(t, []any{2, 3, 1, int64(16), int64(1 << 20)}, []any{e.Ordinal, e.Line, e.Column, e.Byte, e.Limit})
				continue
			}
			require.NoError(t, err)
			require.Len(t, events, 5)
			for i := range lines {
				require.True(t, lines[i] == string(events[i].Data), "line %d of size %d", i, size)
			}
		}
	}
}

func TestEventLimitHoldsInEachMode(t *testing.T) {
	big := `"` + strings.Repeat("x", 100) + `"`
	limits := Limits{EventBytes: 100, BodyBytes: 10_000, Events: 2}
	attributes := `{"specversion":"1.0","id":"1","source":"s","type":"t"`
	for _, c := range []struct {
		h    http.Header
		body string
	}{
		{header("Content-Type", "application/json"), big},
		{header("Content-Type", "application/x-ndjson"), "1\n" + big},
		{header("Content-Type", structuredType), attributes + `,"data":` + big + "}"},
		{header("Content-Type", "application/cloudevents-batch+json"), "[" + attributes + "}," + attributes + `,"data":` + big + "}]"},
		{header("ce-specversion", "1.0", "ce-id", "1", "ce-source", "s", "ce-type", "t"), big},
	} {
		_, err := ParseHTTP(c.h, strings.NewReader(c.body), limits, testDefaults, counter())
		require.Equal(t, int64(100), requireRefused(t, err, TooLarge, c.body).Limit)
	}
	_, err := ParseHTTP(header("Content-Type", "application/x-ndjson"), strings.NewReader("1\n2\n3"), limits, testDefaults, counter())
	require.Equal(t, int64(2), requireRefused(t, err, TooLarge).Limit)
	batch := "[" + attributes + "}," + attributes + "}," + attributes + "}]"
	_, err = ParseHTTP(header("Content-Type", "application/cloudevents-batch+json"), strings.NewReader(batch), limits, testDefaults, counter())
	require.Equal(t, int64(2), requireRefused(t, err, TooLarge).Limit)
}

// A body that comes in pieces of any size is the same body.
func TestPiecesOfAnySizeMakeTheSameBody(t *testing.T) {
	body := bytes.Repeat([]byte("{\"a\":1}\n"), 500)
	for _, b := range [][]byte{body, gzipped(t, body), zstded(t, body)} {
		encoding := map[byte]string{'{': "", 0x1f: "gzip", 0x28: "zstd"}[b[0]]
		events, err := ParseHTTP(header("Content-Type", "application/x-ndjson", "Content-Encoding", encoding),
			&pieces{b: b, r: rand.New(rand.NewPCG(1, 2))}, Limits{}, testDefaults, counter())
		require.NoError(t, err)
		require.Len(t, events, 500)
	}
}

type pieces struct {
	b []byte
	r *rand.Rand
}

func (p *pieces) Read(dst []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(dst[:min(len(dst), 1+p.r.IntN(50))], p.b)
	p.b = p.b[n:]
	return n, nil
}

func TestTruncatedChunksAreAConnectionError(t *testing.T) {
	_, err := ParseHTTP(header("Content-Type", "application/json"), io.MultiReader(strings.NewReader("{"), errorReader{io.ErrUnexpectedEOF}),
		Limits{}, testDefaults, counter())
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	var e *Error
	require.False(t, errors.As(err, &e))
}
