package emit

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"penstock/internal/spec"
	"penstock/internal/vfs/memfs"
)

// These run the whole emitter against receivers on real sockets, in real time.

// quick is a config with retries in milliseconds, for a webhook at url.
func quick(url string) Config {
	cfg := config()
	cfg.Emitter.Webhook = &spec.Webhook{URL: url, Timeout: spec.Duration(5 * time.Second)}
	cfg.Emitter.Retry.Backoff = spec.Backoff{Min: spec.Duration(20 * time.Millisecond), Max: spec.Duration(200 * time.Millisecond), Jitter: 0.2}
	return cfg
}

func webhookSink(t *testing.T, cfg Config) Sink {
	t.Helper()
	s, err := NewSink(cfg.Emitter, SinkDeps{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// target counts requests by event id and answers by it.
type target struct {
	*httptest.Server
	mu     sync.Mutex
	counts map[string]int
	hooks  map[string]map[string]bool // webhook-id and compaction id seen, by event id
	answer func(id string, w http.ResponseWriter, r *http.Request)
}

func newTarget(t *testing.T, answer func(id string, w http.ResponseWriter, r *http.Request)) *target {
	g := &target{counts: map[string]int{}, hooks: map[string]map[string]bool{}, answer: answer}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		id := r.Header.Get("ce-id")
		g.mu.Lock()
		g.counts[id]++
		if g.hooks[id] == nil {
			g.hooks[id] = map[string]bool{}
		}
		g.hooks[id][r.Header.Get("webhook-id")+" "+r.Header.Get("Penstock-Compaction-Id")] = true
		g.mu.Unlock()
		g.answer(id, w, r)
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *target) count(id string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.counts[id]
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 10*time.Second, 5*time.Millisecond, what)
}

func TestB15RefusedEventsEndAndTheOthersArrive(t *testing.T) {
	g := newTarget(t, func(id string, w http.ResponseWriter, _ *http.Request) {
		switch id {
		case "e7":
			w.WriteHeader(413)
		case "e13":
			w.WriteHeader(403)
			_, _ = io.WriteString(w, "who are you")
		}
	})
	w := newWorld(t)
	for range 20 {
		w.add(1)
	}
	cfg := quick(g.URL)
	cfg.Emitter.Retry.MaxAttempts = 3
	stop := w.startWith(cfg, webhookSink(t, cfg))
	eventually(t, "all end", func() bool {
		for seq := uint64(1); seq <= 20; seq++ {
			if w.kind(seq) == 0 {
				return false
			}
		}
		return true
	})
	time.Sleep(300 * time.Millisecond)
	noError(t, stop)
	for seq := uint64(1); seq <= 20; seq++ {
		want, sends := Delivered, 1
		switch seq {
		case 7:
			want = Dead
		case 13:
			want, sends = Dead, 3
		}
		require.Equal(t, want, w.kind(seq), "e%d", seq)
		require.Equal(t, sends, g.count(fmt.Sprint("e", seq)), "e%d", seq)
	}
	require.Len(t, w.letters, 2)
	for _, l := range w.letters {
		if l.Event.ID == "e13" {
			require.Equal(t, ClassAuth, l.Class)
			require.Equal(t, "403 Forbidden", l.Reason)
			require.Len(t, l.History, 3)
			require.Equal(t, "who are you", string(l.History[2].Body))
			continue
		}
		require.Equal(t, ClassPermanent, l.Class)
		require.Equal(t, 413, l.Status)
	}
}

func TestEveryRepeatCarriesTheSameIDs(t *testing.T) { // P6
	tries := map[string]int{}
	var mu sync.Mutex
	g := newTarget(t, func(id string, w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if tries[id]++; tries[id] < 3 {
			w.WriteHeader(503)
		}
	})
	w := newWorld(t)
	for range 10 {
		w.add(1)
	}
	cfg := quick(g.URL)
	stop := w.startWith(cfg, webhookSink(t, cfg))
	eventually(t, "delivered", func() bool { return w.kind(10) == Delivered && w.kind(1) == Delivered })
	noError(t, stop)
	for id, seen := range g.hooks {
		require.Len(t, seen, 1, "%s was sent under %v", id, seen)
	}
}

func TestB20ClosedPortIsRetriedUntilItOpens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	w := newWorld(t)
	w.add(1)
	cfg := quick("http://" + address)
	stop := w.startWith(cfg, webhookSink(t, cfg))
	eventually(t, "a failed attempt is reported", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.prior[1].Attempts >= 2
	})
	w.set(func() { require.Equal(t, ClassTransient, w.prior[1].Class) })
	l, err = net.Listen("tcp", address)
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	eventually(t, "delivered", func() bool { return w.kind(1) == Delivered })
	noError(t, stop)
}

func TestB14RetryAfterDelaysTheNextAttempt(t *testing.T) {
	var mu sync.Mutex
	var at []time.Time
	g := newTarget(t, func(_ string, w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if at = append(at, time.Now()); len(at) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(429)
		}
	})
	w := newWorld(t)
	w.add(1)
	cfg := quick(g.URL)
	cfg.Emitter.Retry.Backoff.Max = spec.Duration(10 * time.Second)
	stop := w.startWith(cfg, webhookSink(t, cfg))
	eventually(t, "delivered", func() bool { return w.kind(1) == Delivered })
	noError(t, stop)
	require.InDelta(t, 1.1, at[1].Sub(at[0]).Seconds(), 0.3)
}

func TestB56WorkingReceiverKeepsItsPaceBesideAHangingOne(t *testing.T) {
	release := make(chan struct{})
	hanging := newTarget(t, func(_ string, _ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	good := newTarget(t, func(string, http.ResponseWriter, *http.Request) {})
	bad, ok := newWorld(t), newWorld(t)
	for range 300 {
		bad.add(1)
		ok.add(1)
	}
	badConfig, okConfig := quick(hanging.URL), quick(good.URL)
	badConfig.Grace = 10 * time.Millisecond
	stopBad := bad.startWith(badConfig, webhookSink(t, badConfig))
	began := time.Now()
	stopOK := ok.startWith(okConfig, webhookSink(t, okConfig))
	eventually(t, "all delivered", func() bool { return ok.kind(300) == Delivered })
	require.Less(t, time.Since(began), 5*time.Second)
	noError(t, stopOK)
	noError(t, stopBad)
	close(release)
	require.Empty(t, bad.outcomes)
}

func TestEveryKindIsBuiltFromItsSpec(t *testing.T) {
	var out strings.Builder
	deps := SinkDeps{DataDir: "/data", NodeID: "n1", FS: memfs.New(), Stdout: &out}
	for _, e := range []spec.Emitter{
		{Name: "w", Kind: "webhook", Webhook: &spec.Webhook{URL: "http://127.0.0.1:1/"}},
		{Name: "f", Kind: "file", File: &spec.File{Directory: "out"}},
		{Name: "s", Kind: "stdout", Stdout: &spec.Stdout{}},
		{Name: "s", Kind: "stdout"},
	} {
		s, err := NewSink(e, deps)
		require.NoError(t, err, e.Kind)
		require.NoError(t, s.Close())
	}
	_, err := deps.FS.Stat("/data/out")
	require.NoError(t, err, "a relative directory stands under the data directory")
	for _, e := range []spec.Emitter{{Kind: "webhook"}, {Kind: "file"}, {Kind: "kafka"}, {}} {
		_, err := NewSink(e, deps)
		require.Error(t, err, e.Kind)
	}
}

func TestB51SeriesComeFromConfigurationAndGoWithTheEmitter(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	w := newWorld(t)
	for range 50 {
		w.add(1)
	}
	cfg := config()
	pending := uint64(42)
	cfg.Pending = func() uint64 { return pending }
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- Run(ctx, cfg, Deps{Source: w, Proposer: w, DeadLetters: w, Lease: w, Sink: w, Metrics: m})
	}()
	eventually(t, "delivered", func() bool { return w.kind(50) == Delivered })
	require.Equal(t, 50.0, testutil.ToFloat64(m.attempts.WithLabelValues("ch", "em", "delivered")))
	require.Equal(t, 42.0, testutil.ToFloat64(m.lag.WithLabelValues("ch", "em")))
	cancel()
	require.NoError(t, <-done)
	m.Forget("ch", "em")
	n, err := testutil.GatherAndCount(reg)
	require.NoError(t, err)
	require.Zero(t, n)
}
