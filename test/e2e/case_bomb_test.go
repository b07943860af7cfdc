package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// gzipOf compresses n bytes of a JSON string that is all one letter.
func gzipOf(t *testing.T, n int) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	piece := bytes.Repeat([]byte("a"), 1<<20)
	_, err := w.Write([]byte{'"'})
	require.NoError(t, err)
	for range n >> 20 {
		_, err = w.Write(piece)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

func zstdOf(t *testing.T, n int) []byte {
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b)
	require.NoError(t, err)
	for range n >> 20 {
		_, err = w.Write(bytes.Repeat([]byte("a"), 1<<20))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

// bomb posts an encoded body.
func (a *abuse) bomb(t *testing.T, p *proc, token, encoding string, body []byte) (int, string) {
	t.Helper()
	return postEncoded(t, p, token, encoding, body, false)
}

func postEncoded(t *testing.T, p *proc, token, encoding string, body []byte, chunked bool) (int, string) {
	t.Helper()
	req, err := http.NewRequest("POST", "http://"+p.http+"/v1/channels/orders/events", bytes.NewReader(body))
	require.NoError(t, err)
	if chunked {
		req.ContentLength = -1
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Content-Encoding", encoding)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return roundTrip(t, req)
}

// cpu is the processor time the process has used.
func (p *proc) cpu() time.Duration {
	p.mu.Lock()
	pid := p.cmd.Process.Pid
	p.mu.Unlock()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(p.g.t, err)
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	user, err := strconv.Atoi(f[11])
	require.NoError(p.g.t, err)
	system, err := strconv.Atoi(f[12])
	require.NoError(p.g.t, err)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// TestB53SmallBodiesThatExpandAreRefusedAsTheyDo: the limit is on the decoded bytes while they are decoded: 413 as soon as it is
// passed, with bounded memory and time, 10 at once, with and without credentials; 415 for an unknown encoding; 400 for a wrong
// checksum, and nothing stored.
func TestB53SmallBodiesThatExpandAreRefusedAsTheyDo(t *testing.T) {
	t.Parallel()
	g, k := startGuarded(t, options{nodes: 1, single: true}, oneOfEach)
	p, ctx := g.nodes[0], context.Background()
	_, err := g.client().PutChannel(ctx, "orders", channelSpec("orders", ""), client.PutOptions{})
	require.NoError(t, err)
	const limit, parallel = 4 << 20, 10
	large := scale(t, 2<<30, 256<<20)
	inner := gzipOf(t, 64<<20)
	var nested bytes.Buffer
	w := gzip.NewWriter(&nested)
	_, err = w.Write(inner)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	wrong := bytes.Clone(gzipOf(t, 0))
	small := bytes.Buffer{}
	w = gzip.NewWriter(&small)
	_, err = w.Write([]byte(`{"n":1}`))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	badSum := bytes.Clone(small.Bytes())
	badSum[len(badSum)-8] ^= 1
	for _, c := range []struct {
		name, encoding string
		body           []byte
		want           int
	}{
		{"gzip of 128 MiB", "gzip", gzipOf(t, 128<<20), 413},
		{"gzip of much more", "gzip", gzipOf(t, large), 413},
		{"zstd of 128 MiB", "zstd", zstdOf(t, 128<<20), 413},
		{"gzip in gzip, said once", "gzip", nested.Bytes(), 400},
		{"gzip in gzip, said twice", "gzip, gzip", nested.Bytes(), 415},
		{"cut off", "gzip", small.Bytes()[:small.Len()-1], 400},
		{"no JSON in it", "gzip", wrong, 400},
		{"wrong checksum", "gzip", badSum, 400},
		{"unknown encoding", "br", small.Bytes(), 415},
		{"deflate", "deflate", small.Bytes(), 415},
	} {
		for _, chunked := range []bool{false, true} {
			rss, cpu := p.rss(), p.cpu()
			var wg sync.WaitGroup
			for range parallel {
				wg.Go(func() {
					status, answer := postEncoded(t, p, k.tokens["producer"], c.encoding, c.body, chunked)
					if status != c.want && (status != 429 || c.want != 413) { // admission counts the most that a compressed body may be
						t.Errorf("%s: %d %s", c.name, status, answer)
					}
				})
				wg.Go(func() {
					if status, answer := postEncoded(t, p, "", c.encoding, c.body, chunked); status != 401 {
						t.Errorf("%s without a token: %d %s", c.name, status, answer)
					}
				})
			}
			wg.Wait()
			require.Less(t, p.rss()-rss, int64(2*limit*parallel), c.name)
			require.Less(t, p.cpu()-cpu, parallel*time.Second, c.name)
		}
	}
	ledger, err := g.client().Ledger(ctx, "orders")
	require.NoError(t, err)
	require.Zero(t, ledger.Accepted, "nothing was stored")
	status, answer := postEncoded(t, p, k.tokens["producer"], "gzip", small.Bytes(), true)
	require.Equal(t, 200, status, answer)
}
