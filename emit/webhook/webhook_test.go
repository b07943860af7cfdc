package webhook

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"penstock/emit/sink"
	"penstock/emit/sink/sinktest"
	"penstock/event"
	"penstock/internal/spec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	secretOne = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	secretTwo = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
)

// receiver records requests and answers as it is told.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	got    []request
	answer http.HandlerFunc
}

type request struct {
	header http.Header
	body   []byte
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.got = append(r.got, request{req.Header, body})
		answer := r.answer
		r.mu.Unlock()
		if answer != nil {
			answer(w, req)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) all() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]request(nil), r.got...)
}

func (r *receiver) last(t *testing.T) request {
	t.Helper()
	all := r.all()
	require.NotEmpty(t, all)
	return all[len(all)-1]
}

func newSink(t *testing.T, url string, change ...func(*Config)) *Sink {
	t.Helper()
	cfg := Config{Webhook: spec.Webhook{URL: url, Timeout: spec.Duration(5 * time.Second)}}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func secrets(s ...string) func(*Config) { return func(c *Config) { c.Webhook.Secrets = s } }

func TestSinkContract(t *testing.T) {
	r := newReceiver(t)
	sinktest.Run(t, newSink(t, r.URL), func() (bodies []string) {
		for _, req := range r.all() {
			bodies = append(bodies, string(req.body))
		}
		return bodies
	})
}

func TestOneEventIsBinaryModeWithItsDataByteForByte(t *testing.T) { // B03
	r := newReceiver(t)
	s := newSink(t, r.URL)
	for _, data := range append([]string{"\x00\xff not text"}, sinktest.Awkward...) {
		c := sinktest.Compaction("c1", data)
		require.True(t, s.Deliver(t.Context(), c).OK)
		got := r.last(t)
		require.Equal(t, data, string(got.body))
		require.Equal(t, "id-0", got.header.Get("ce-id"))
		require.Equal(t, "1.0", got.header.Get("ce-specversion"))
		require.Equal(t, "k%201", got.header.Get("ce-partitionkey"))
		require.Equal(t, "application/json", got.header.Get("Content-Type"))
		require.Equal(t, "c1", got.header.Get(HeaderCompactionID))
		require.Equal(t, "12.0", got.header.Get(HeaderPosition))
		require.Empty(t, got.header.Get(HeaderSignature))
	}
}

func TestSeveralEventsAreBatchMode(t *testing.T) {
	r := newReceiver(t)
	s := newSink(t, r.URL)
	c := sinktest.Compaction("c1", `1`, `{"a":2}`)
	require.True(t, s.Deliver(t.Context(), c).OK)
	got := r.last(t)
	require.Contains(t, got.header.Get("Content-Type"), "application/cloudevents-batch+json")
	require.Equal(t, event.AppendBatchJSON(nil, []event.Event{c.Deliveries[0].Event, c.Deliveries[1].Event}), got.body)
	require.Equal(t, "c1", got.header.Get(HeaderID))
	require.Empty(t, got.header.Get("ce-id"))
}

func TestSignatureIsWhatStandardWebhooksVerifies(t *testing.T) {
	r := newReceiver(t)
	s := newSink(t, r.URL, secrets(secretOne, secretTwo))
	for _, c := range []*sink.Compaction{sinktest.Compaction("c1", sinktest.Awkward[0]), sinktest.Compaction("c2", sinktest.Awkward...)} {
		require.True(t, s.Deliver(t.Context(), c).OK)
		got := r.last(t)
		for _, secret := range []string{secretOne, secretTwo} {
			wh, err := standardwebhooks.NewWebhook(secret)
			require.NoError(t, err)
			require.NoError(t, wh.Verify(got.body, got.header))
			require.Error(t, wh.Verify(append([]byte(" "), got.body...), got.header))
		}
		other, err := standardwebhooks.NewWebhook(base64.StdEncoding.EncodeToString([]byte("another secret of 24 byte")))
		require.NoError(t, err)
		require.Error(t, other.Verify(got.body, got.header))
	}
}

func TestMessageIDIsStableUniqueAndWithoutADot(t *testing.T) {
	c := sinktest.Compaction("c1", "1")
	e := &c.Deliveries[0].Event
	e.ID = "order.1 \r\n ä"
	id := messageID(c)
	require.Regexp(t, `^evt_[0-9a-f]{32}$`, id)
	require.Equal(t, id, messageID(c))
	c.ID = "another compaction, of the same event sent again after the dedup window"
	require.Equal(t, id, messageID(c))
	e.Source = "/other"
	require.NotEqual(t, id, messageID(c), "two sources may use the same ids")
	a, b := sinktest.Compaction("c1", "1"), sinktest.Compaction("c1", "1")
	a.Deliveries[0].Event.Source, a.Deliveries[0].Event.ID = "/s", "xid"
	b.Deliveries[0].Event.Source, b.Deliveries[0].Event.ID = "/sx", "id"
	require.NotEqual(t, messageID(a), messageID(b))
}

func TestEveryAttemptHasItsOwnTimestampAndTheSameID(t *testing.T) {
	r := newReceiver(t)
	s := newSink(t, r.URL, secrets(secretOne))
	c := sinktest.Compaction("c1", "1")
	require.True(t, s.Deliver(t.Context(), c).OK)
	time.Sleep(1100 * time.Millisecond)
	require.True(t, s.Deliver(t.Context(), c).OK)
	all := r.all()
	require.Equal(t, all[0].header.Get(HeaderID), all[1].header.Get(HeaderID))
	require.NotEqual(t, all[0].header.Get(HeaderTimestamp), all[1].header.Get(HeaderTimestamp))
}

func TestStatusesBecomeClasses(t *testing.T) {
	r := newReceiver(t)
	s := newSink(t, r.URL, func(c *Config) { c.Classes = map[string]string{"418": "transient"} })
	for status, want := range map[int]sink.Class{
		400: sink.Permanent, 401: sink.Auth, 403: sink.Auth, 404: sink.Permanent, 408: sink.Transient, 410: sink.Permanent,
		413: sink.Permanent, 418: sink.Transient, 425: sink.Transient, 429: sink.Transient, 500: sink.Transient, 503: sink.Transient,
		599: sink.Transient, 300: sink.Permanent, 304: sink.Permanent,
	} {
		r.answer = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
		res := s.Deliver(t.Context(), sinktest.Compaction("c", "1"))
		require.False(t, res.OK, "%d", status)
		require.Equal(t, want, res.Class, "%d", status)
		require.Equal(t, status, res.Status)
		require.Contains(t, res.Reason, fmt.Sprint(status))
	}
	for _, status := range []int{200, 201, 202, 204, 206} {
		r.answer = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
		require.True(t, s.Deliver(t.Context(), sinktest.Compaction("c", "1")).OK, "%d", status)
	}
}

func TestS03RedirectsAreNotFollowed(t *testing.T) {
	other, r := newReceiver(t), newReceiver(t)
	s := newSink(t, r.URL, secrets(secretOne), func(c *Config) { c.Webhook.Headers = map[string]string{"Authorization": "Bearer x"} })
	for _, status := range []int{301, 302, 303, 307, 308} {
		r.answer = func(w http.ResponseWriter, req *http.Request) { http.Redirect(w, req, other.URL, status) }
		res := s.Deliver(t.Context(), sinktest.Compaction("c", "1"))
		require.False(t, res.OK)
		require.Equal(t, sink.Permanent, res.Class)
	}
	require.Empty(t, other.all(), "nothing reached the other host")
}

func TestB14RetryAfterForms(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	for name, c := range map[string]struct {
		values []string
		date   string
		want   time.Duration
	}{
		"seconds":         {values: []string{"7"}, want: 7 * time.Second},
		"zero":            {values: []string{"0"}},
		"date":            {values: []string{now.Add(7 * time.Second).Format(http.TimeFormat)}, want: 7 * time.Second},
		"date, its clock": {values: []string{"Fri, 02 Jan 2026 10:00:07 GMT"}, date: "Fri, 02 Jan 2026 10:00:00 GMT", want: 7 * time.Second},
		"past":            {values: []string{now.Add(-time.Hour).Format(http.TimeFormat)}},
		"negative":        {values: []string{"-5"}},
		"junk":            {values: []string{"1000abc"}},
		"fraction":        {values: []string{"1.5"}},
		"empty":           {values: []string{""}},
		"spaces":          {values: []string{" 7 "}, want: 7 * time.Second},
		"repeated":        {values: []string{"3", "7", "x"}, want: 7 * time.Second},
		"week":            {values: []string{"604800"}, want: 7 * 24 * time.Hour},
	} {
		h := http.Header{"Retry-After": c.values}
		if c.date != "" {
			h.Set("Date", c.date)
		}
		require.Equal(t, c.want, parseRetryAfter(h, now), name)
	}
	for _, huge := range []string{"99999999999", strings.Repeat("9", 19), strings.Repeat("9", 5000)} {
		require.Greater(t, parseRetryAfter(http.Header{"Retry-After": {huge}}, now), 365*24*time.Hour, huge[:11])
	}
	require.Zero(t, parseRetryAfter(http.Header{}, now))
}

func TestRetryAfterOfAnAnswerIsReported(t *testing.T) {
	r := newReceiver(t)
	r.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", time.Now().Add(7*time.Second).UTC().Format(http.TimeFormat))
		w.WriteHeader(429)
	}
	res := newSink(t, r.URL).Deliver(t.Context(), sinktest.Compaction("c", "1"))
	require.InDelta(t, 7, res.RetryAfter.Seconds(), 1)
}

func TestB20NetworkFaultsAreTransientAndNameTheFault(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	resets := serveRaw(t, func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) })
	silent := serveRaw(t, func(c net.Conn) { time.Sleep(400 * time.Millisecond) })
	garbage := serveRaw(t, func(c net.Conn) { _, _ = io.WriteString(c, "hello\r\n\r\n") })
	wrongCertificate := httptest.NewTLSServer(http.NotFoundHandler())
	wrongCertificate.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(wrongCertificate.Close)
	for name, c := range map[string]struct{ url, reason string }{
		"closed port":       {"http://" + closed.Addr().String(), "refused"},
		"unknown host":      {"http://no-such-host.invalid/", "no-such-host.invalid"},
		"reset":             {resets, ""},
		"hangs":             {silent, "no answer within 200ms"},
		"no HTTP":           {garbage, ""},
		"wrong certificate": {wrongCertificate.URL, "certificate"},
	} {
		s := newSink(t, c.url+"?token=hush", func(cfg *Config) {
			if name == "hangs" {
				cfg.Webhook.Timeout = spec.Duration(200 * time.Millisecond)
			}
		})
		res := s.Deliver(t.Context(), sinktest.Compaction("c", "1"))
		require.False(t, res.OK, name)
		require.Equal(t, sink.Transient, res.Class, name)
		require.Contains(t, res.Reason, c.reason, name)
		require.NotContains(t, res.Reason, "hush", name)
		require.Zero(t, res.Status, name)
	}
}

// serveRaw answers each connection with do, after the request's first bytes, and closes it.
func serveRaw(t *testing.T, do func(net.Conn)) (url string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_, _ = c.Read(make([]byte, 64<<10))
				do(c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return "http://" + l.Addr().String()
}

func TestStatusDecidesWhateverBecomesOfTheBody(t *testing.T) {
	const head = "HTTP/1.1 %d x\r\nContent-Length: 100000\r\n\r\nbegin"
	for _, status := range []int{200, 503} {
		for name, after := range map[string]func(net.Conn){
			"reset":           func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) },
			"a byte a second": func(c net.Conn) { time.Sleep(1500 * time.Millisecond) },
		} {
			url := serveRaw(t, func(c net.Conn) {
				_, _ = fmt.Fprintf(c, head, status)
				after(c)
			})
			began := time.Now()
			res := newSink(t, url).Deliver(t.Context(), sinktest.Compaction("c", "1"))
			require.Equal(t, status == 200, res.OK, "%d %s", status, name)
			require.Equal(t, status, res.Status)
			require.Less(t, time.Since(began), 3*time.Second)
		}
	}
}

func TestAnswerIsReadWithABound(t *testing.T) {
	r := newReceiver(t)
	wrote := make(chan int64, 1)
	r.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(500)
		n, _ := io.Copy(w, io.LimitReader(zeros{}, 64<<20))
		wrote <- n
	}
	res := newSink(t, r.URL).Deliver(t.Context(), sinktest.Compaction("c", "1"))
	require.Len(t, res.Body, sink.BodyKept)
	require.Less(t, <-wrote, int64(32<<20))
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestCutOffEndsSoon(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	url := serveRaw(t, func(net.Conn) { <-release })
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	began := time.Now()
	require.False(t, newSink(t, url).Deliver(ctx, sinktest.Compaction("c", "1")).OK)
	require.Less(t, time.Since(began), 2*time.Second)
}

func TestConnectionsAreBoundedAndReused(t *testing.T) {
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(5 * time.Millisecond)
		_, _ = w.Write(bytes.Repeat([]byte("x"), 2000))
	}))
	server.Config.ConnState = func(c net.Conn, s http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if s == http.StateNew {
			conns[c] = true
		}
	}
	server.Start()
	defer server.Close()
	s := newSink(t, server.URL, func(c *Config) { c.Concurrency = 4 })
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() { s.Deliver(context.Background(), sinktest.Compaction("c", "1")) })
	}
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	require.LessOrEqual(t, len(conns), 4)
}

func TestMovedNameIsResolvedAgainAfterAFailure(t *testing.T) {
	r := newReceiver(t)
	s := newSink(t, r.URL)
	require.True(t, s.Deliver(t.Context(), sinktest.Compaction("c", "1")).OK)
	s.lastRefresh.Store(time.Now().Add(-2 * refreshEvery).UnixNano())
	before := s.lastRefresh.Load()
	require.True(t, s.Deliver(t.Context(), sinktest.Compaction("c", "1")).OK)
	require.NotEqual(t, before, s.lastRefresh.Load(), "idle connections were dropped")
}

func TestSecretsAreReferencesResolvedAtEachAttempt(t *testing.T) {
	r := newReceiver(t)
	file := filepath.Join(t.TempDir(), "secret")
	s := newSink(t, r.URL, secrets("${file:"+file+"}"), func(c *Config) {
		c.Webhook.Headers = map[string]string{"Authorization": "Bearer ${env:PENSTOCK_TEST_TOKEN}"}
	})
	t.Setenv("PENSTOCK_TEST_TOKEN", "tok")
	c := sinktest.Compaction("c", "1")
	res := s.Deliver(t.Context(), c)
	require.Equal(t, sink.Auth, res.Class, "a secret that is not there holds back like a refused one")
	require.Contains(t, res.Reason, file)
	require.Empty(t, r.all(), "nothing is sent unsigned")
	for _, secret := range []string{secretOne, secretTwo} { // rotation
		require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
		require.True(t, s.Deliver(t.Context(), c).OK)
		wh, err := standardwebhooks.NewWebhook(secret)
		require.NoError(t, err)
		got := r.last(t)
		require.NoError(t, wh.Verify(got.body, got.header))
		require.Equal(t, "Bearer tok", got.header.Get("Authorization"))
	}
	require.NoError(t, os.WriteFile(file, []byte("whsec_!!! hush"), 0o600))
	res = s.Deliver(t.Context(), c)
	require.Equal(t, sink.Auth, res.Class)
	require.NotContains(t, res.Reason, "hush")
}

func TestHeaderThatCannotBeSentIsPoison(t *testing.T) {
	r := newReceiver(t)
	c := sinktest.Compaction("c", "1")
	c.Deliveries[0].Event.DataContentType = "text/plain\r\nX-Evil: 1"
	res := newSink(t, r.URL).Deliver(t.Context(), c)
	require.Equal(t, sink.Poison, res.Class)
	require.Empty(t, r.all())
}

func TestBadConfigurationIsRefused(t *testing.T) {
	for _, cfg := range []Config{
		{}, {Webhook: spec.Webhook{URL: "/path"}}, {Webhook: spec.Webhook{URL: "ftp://x/"}}, {Webhook: spec.Webhook{URL: "http://\x00"}},
		{Webhook: spec.Webhook{URL: "http://x/", Secrets: []string{"a", "b", "c"}}},
		{Webhook: spec.Webhook{URL: "http://x/"}, Classes: map[string]string{"2xx": "auth"}},
	} {
		_, err := New(cfg)
		require.Error(t, err)
	}
}
