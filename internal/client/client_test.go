package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"penstock/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a fake of one node; hits counts requests.
type node struct {
	*httptest.Server
	hits atomic.Int64
}

func serve(t *testing.T, h http.HandlerFunc) *node {
	t.Helper()
	n := &node{}
	n.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.hits.Add(1); h(w, r) }))
	t.Cleanup(n.Close)
	return n
}

func problem(w http.ResponseWriter, status int, kind, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"type":"urn:penstock:problem:%s","title":"t","status":%d,"detail":%q}`, kind, status, detail)
}

func connect(t *testing.T, addresses ...string) *Client {
	t.Helper()
	c, err := New(Config{Addresses: addresses, Timeout: 2 * time.Second})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// dead is an address nobody listens on.
func dead(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// cut drops the connection after the whole request was read.
func cut(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	panic(http.ErrAbortHandler)
}

var ctx = context.Background()

func TestAddressesAreChecked(t *testing.T) {
	for _, a := range []string{"", "nohost", "http://h:1/path", "ftp://h:1", "h:1?x=y", "http://"} {
		_, err := New(Config{Addresses: []string{a}})
		require.Error(t, err, a)
	}
	_, err := New(Config{})
	require.Error(t, err)
	require.Equal(t, []string{"a:1", "b:2"}, SplitAddresses(" a:1, b:2,"))
}

func TestWriteMovesOnOnlyWhenCertainlyNotCommitted(t *testing.T) {
	ok := serve(t, func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "k", r.Header.Get("Idempotency-Key"))
		require.Equal(t, "7:3", r.URL.Query().Get("offset"))
		require.Equal(t, "/v1/channels/a%2Fb/events", r.URL.EscapedPath())
		fmt.Fprint(w, `{"index":9,"accepted":2,"duplicates":1,"poisoned":0}`)
	})
	send := func(addresses ...string) (SendResult, error) {
		return connect(t, addresses...).Send(ctx, "a/b", []byte(`{}`), "application/json",
			SendOptions{IdempotencyKey: "k", Source: "s", Partition: "p", Offset: &event.SourceOffset{Position: 7, Record: 3}})
	}
	res, err := send(dead(t), ok.URL)
	require.NoError(t, err)
	require.Equal(t, SendResult{Index: 9, Accepted: 2, Duplicates: 1}, res)

	noLeader := serve(t, func(w http.ResponseWriter, _ *http.Request) { problem(w, 503, "no-leader", "electing") })
	_, err = send(noLeader.URL, ok.URL)
	require.NoError(t, err)

	for name, h := range map[string]http.HandlerFunc{
		"connection lost after the request": cut,
		"a node says unknown":               func(w http.ResponseWriter, _ *http.Request) { problem(w, 504, "unknown-outcome", "x") },
		"a node says so under another kind": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(500)
			fmt.Fprint(w, `{"type":"urn:penstock:problem:internal","committed":"unknown"}`)
		},
		"a proxy's 502": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "bad gateway", http.StatusBadGateway) },
		"a proxy's 503": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "unavailable", http.StatusServiceUnavailable)
		},
		"an answer cut in the middle": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte(`{"index":`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			bad, before := serve(t, h), ok.hits.Load()
			_, err := send(bad.URL, ok.URL)
			require.Error(t, err)
			require.True(t, Unknown(err), "%v", err)
			require.True(t, Retryable(err))
			require.Equal(t, before, ok.hits.Load(), "never repeated by itself")
			require.EqualValues(t, 1, bad.hits.Load())
		})
	}
}

func TestRefusalsAreFinalAndTyped(t *testing.T) {
	n := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(400)
		fmt.Fprint(w, `{"type":"urn:penstock:problem:bad-event","status":400,"detail":"no type","ordinal":0,"line":3,"column":7,"byte":41,"field":"type"}`)
	})
	other := serve(t, func(http.ResponseWriter, *http.Request) {})
	_, err := connect(t, n.URL, other.URL).Send(ctx, "c", nil, "application/json", SendOptions{})
	p, ok := AsProblem(err)
	require.True(t, ok)
	require.Equal(t, "bad-event", p.Kind())
	require.NotNil(t, p.Ordinal)
	require.Equal(t, 3, p.Line)
	require.EqualValues(t, 41, *p.Byte)
	require.False(t, Retryable(err))
	require.False(t, Unknown(err))
	require.Zero(t, other.hits.Load())
	require.Contains(t, err.Error(), "bad-event: no type")
}

func TestOverloadIsRetryableAndSaysWhen(t *testing.T) {
	n := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "2")
		problem(w, 429, "overloaded", "full")
	})
	_, err := connect(t, n.URL).Send(ctx, "c", nil, "application/json", SendOptions{})
	require.True(t, Retryable(err))
	require.False(t, Unknown(err))
	require.Equal(t, 2*time.Second, RetryAfter(err))
	require.Equal(t, time.Duration(0), RetryAfter(io.EOF))
	require.Greater(t, parseRetryAfter(time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)), 50*time.Second)
}

func TestReadsTryEveryNode(t *testing.T) {
	broken := serve(t, cut)
	failing := serve(t, func(w http.ResponseWriter, _ *http.Request) { problem(w, 500, "internal", "x") })
	ok := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"channel":"c","accepted":3,"balanced":true,"emitters":[{"emitter":"e","accepted":3,"delivered":2,"pending":1,"balanced":true}]}`)
	})
	c := connect(t, dead(t), broken.URL, failing.URL, ok.URL)
	l, err := c.Ledger(ctx, "c")
	require.NoError(t, err)
	require.Equal(t, uint64(3), l.Emitters[0].Sum())
	_, err = c.Ledger(ctx, "c")
	require.NoError(t, err)
	require.EqualValues(t, 1, failing.hits.Load(), "the node that answered is asked first from then on")

	_, err = connect(t, dead(t), failing.URL).Ledger(ctx, "c")
	require.ErrorContains(t, err, "500 internal", "a node's word counts more than a dead address")
}

func TestEveryWaitIsBounded(t *testing.T) {
	stuck := make(chan struct{})
	n := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-stuck:
		case <-r.Context().Done():
		}
	})
	defer close(stuck)
	c, err := New(Config{Addresses: []string{n.URL}, Timeout: 50 * time.Millisecond})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Send(ctx, "c", nil, "application/json", SendOptions{})
	require.True(t, Unknown(err))
	_, err = c.Cluster(ctx)
	require.Error(t, err)
	require.False(t, Unknown(err), "a read has no outcome")
}

func TestAbsentOffsetIsAbsent(t *testing.T) {
	n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.EscapedPath() {
		case "/v1/channels/c/offsets/dir%2Ffile/0":
			fmt.Fprint(w, `{"source":"dir/file","partition":"0","position":0,"record":0,"closed":false}`)
		case "/v1/channels/none/offsets/s/0":
			problem(w, 404, "no-such-channel", "none")
		default:
			problem(w, 404, "not-found", "no offset")
		}
	})
	c := connect(t, n.URL)
	o, ok, err := c.Offset(ctx, "c", "dir/file", "0")
	require.NoError(t, err)
	require.True(t, ok, "0 is a position")
	require.Equal(t, event.SourceOffset{}, o)
	_, ok, err = c.Offset(ctx, "c", "other", "0")
	require.NoError(t, err)
	require.False(t, ok)
	_, _, err = c.Offset(ctx, "none", "s", "0")
	require.True(t, NotFound(err))
}

func TestChangesCarryTheirOptions(t *testing.T) {
	var got []string
	n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = append(got, r.Method+" "+r.URL.String()+" "+string(b))
		if r.Method == http.MethodPut {
			fmt.Fprint(w, `{"name":"c","index":4,"version":2,"changed":true,"semantics":"at-least-once"}`)
		} else {
			w.WriteHeader(http.StatusNoContent)
		}
	})
	c := connect(t, n.URL)
	a, err := c.PutChannel(ctx, "c", json.RawMessage(`{"name":"c"}`), PutOptions{Discard: true})
	require.NoError(t, err)
	require.Equal(t, Applied{Name: "c", Index: 4, Version: 2, Changed: true, Semantics: "at-least-once"}, a)
	require.NoError(t, c.DeleteChannel(ctx, "c", PutOptions{}))
	require.NoError(t, c.SetMember(ctx, "n4", "nonvoter"))
	require.NoError(t, c.RemoveMember(ctx, "n4", MemberOptions{}))
	require.NoError(t, c.Transfer(ctx, ""))
	require.Equal(t, []string{
		`PUT /v1/channels/c?discard=1 {"name":"c"}`, `DELETE /v1/channels/c `,
		`POST /v1/cluster/members {"id":"n4","suffrage":"nonvoter"}`, `DELETE /v1/cluster/members/n4 `, `POST /v1/cluster/transfer {}`,
	}, got)
}

func line(index, ordinal int) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":"e%d-%d","source":"s","type":"t","penstockindex":%d,"penstockordinal":%d,"data":"%s"}`+"\n",
		index, ordinal, index, ordinal, strings.Repeat("x", 100_000))
}

func TestTailGoesOnBehindTheLastEventOfABrokenPage(t *testing.T) {
	n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Penstock-Next", "90.0")
		w.Header().Set("Penstock-First", "2")
		w.Header().Set("Penstock-Applied", "99")
		switch r.URL.Query().Get("from") {
		case "":
			fmt.Fprint(w, line(5, 0)+line(5, 1)+line(7, 0)[:5000])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case "5.2":
			fmt.Fprint(w, line(7, 0)+line(7, 2))
		case "90.0":
			problem(w, 410, "gone", "x")
		}
	})
	c := connect(t, n.URL)
	var got []event.Position
	add := func(e TailEvent) error { got = append(got, e.Position); return nil }
	end, err := c.Tail(ctx, "c", TailOptions{}, add)
	require.Error(t, err)
	require.Equal(t, event.Position{Index: 5, Ordinal: 2}, end.Next)
	end, err = c.Tail(ctx, "c", TailOptions{From: end.Next}, add)
	require.NoError(t, err)
	require.Equal(t, event.Position{Index: 90}, end.Next)
	require.Equal(t, []event.Position{{Index: 5}, {Index: 5, Ordinal: 1}, {Index: 7}, {Index: 7, Ordinal: 2}}, got)

	got = nil
	err = c.Follow(ctx, "c", TailOptions{}, add)
	_, gone := Gone(err)
	require.True(t, gone, "%v", err)
	require.Len(t, got, 4, "following shows each once over a broken page")
}

func TestFollowEndsWithItsContextAndItsReader(t *testing.T) {
	n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("from") == "" {
			fmt.Fprint(w, line(1, 0))
			return
		}
		<-r.Context().Done()
	})
	c := connect(t, n.URL)
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.Follow(short, "c", TailOptions{}, func(TailEvent) error { return nil }), context.DeadlineExceeded)
	require.ErrorIs(t, c.Follow(ctx, "c", TailOptions{}, func(TailEvent) error { return io.ErrClosedPipe }), io.ErrClosedPipe)
}
