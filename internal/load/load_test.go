package load

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"penstock/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node stands for a Penstock node: it parses as one does and answers what answer says.
type node struct {
	*httptest.Server
	mu     sync.Mutex
	ids    map[string]int
	events []event.Event
}

func startNode(t *testing.T, answer func(w http.ResponseWriter, n int)) *node {
	t.Helper()
	s := &node{ids: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		events, err := event.ParseHTTP(r.Header, r.Body, event.Limits{}, event.Defaults{Source: "/bench", Type: "bench"}, func() string { return "" })
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		for _, e := range events {
			s.ids[e.ID]++
		}
		s.events = append(s.events, events...)
		s.mu.Unlock()
		answer(w, len(events))
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *node) address() string { return strings.TrimPrefix(s.URL, "http://") }

func accept(w http.ResponseWriter, n int) {
	fmt.Fprintf(w, `{"index":1,"accepted":%d,"duplicates":0,"poisoned":0}`, n)
}

func config(s *node) Config {
	return Config{
		Addresses: []string{s.address()}, Channel: "bench", Events: 100, Duration: time.Minute, Size: 700, Batch: 1, Payload: JSON,
		Connections: 3, Timeout: 10 * time.Second,
	}
}

func TestEveryEventHasAnIDOfItsOwnAndTheSizeThatWasAsked(t *testing.T) {
	for _, payload := range []string{JSON, Random} {
		for _, batch := range []int{1, 10} {
			s := startNode(t, accept)
			cfg := config(s)
			cfg.Payload, cfg.Batch = payload, batch
			for range 2 { // a second run repeats no id of the first
				r, err := Run(context.Background(), cfg)
				require.NoError(t, err)
				require.EqualValues(t, 100, r.Accepted)
				require.EqualValues(t, 100/batch, r.Requests)
				require.False(t, r.Failed())
				require.Positive(t, r.Latency.P50)
				require.Empty(t, r.Faults)
			}
			require.Len(t, s.ids, 200)
			for _, e := range s.events {
				require.NotEmpty(t, e.ID)
				require.False(t, e.ServerID)
				require.Len(t, e.Data, cfg.Size)
			}
		}
	}
}

func TestJSONPayloadsAreJSONOfEverySize(t *testing.T) {
	p := payloads{cfg: Config{Payload: JSON}, rng: newRand(1)}
	for size := 1; size < 900; size++ {
		p.cfg.Size = size
		b := p.next()
		require.Len(t, b, size)
		require.True(t, json.Valid(b), "%s", b)
	}
}

// TestOutcomesAreCountedApart: committed, certainly not committed, unknown; a lost answer is unknown, and each event is in one place.
func TestOutcomesAreCountedApart(t *testing.T) {
	var n int
	var mu sync.Mutex
	s := startNode(t, func(w http.ResponseWriter, events int) {
		mu.Lock()
		n++
		k := n % 5
		mu.Unlock()
		switch k {
		case 0:
			w.WriteHeader(http.StatusTooManyRequests)
			io.WriteString(w, `{"type":"urn:penstock:problem:overloaded","committed":"no"}`)
		case 1:
			w.WriteHeader(http.StatusGatewayTimeout)
			io.WriteString(w, `{"type":"urn:penstock:problem:unknown-outcome","committed":"unknown"}`)
		case 2:
			panic(http.ErrAbortHandler) // the connection ends without an answer
		case 3:
			fmt.Fprintf(w, `{"accepted":%d,"duplicates":1}`, events-1)
		default:
			accept(w, events)
		}
	})
	cfg := config(s)
	cfg.Events, cfg.Batch = 500, 10
	r, err := Run(context.Background(), cfg)
	require.NoError(t, err)
	require.Equal(t, r.Events, r.Accepted+r.Duplicates+r.Refused+r.Unknown+r.NotSent)
	require.EqualValues(t, 500, r.Events)
	require.EqualValues(t, 190, r.Accepted)
	require.EqualValues(t, 10, r.Duplicates)
	require.EqualValues(t, 100, r.Refused)
	require.EqualValues(t, 200, r.Unknown)
	require.EqualValues(t, 10, r.Faults["429 overloaded"])
	require.EqualValues(t, 10, r.Faults["504 unknown-outcome"])
	require.True(t, r.Failed())
}

// TestAnOpenLoopSeesAStallInEveryRequestItHeldUp: one answer in a schedule takes long; with one connection those behind it are
// late, and count as late from when they were due.
func TestAnOpenLoopSeesAStallInEveryRequestItHeldUp(t *testing.T) {
	const stall = 400 * time.Millisecond
	var once sync.Once
	s := startNode(t, func(w http.ResponseWriter, n int) {
		once.Do(func() { time.Sleep(stall) })
		accept(w, n)
	})
	cfg := config(s)
	cfg.Connections, cfg.Rate, cfg.Events = 1, 100, 50 // due within half a second
	r, err := Run(context.Background(), cfg)
	require.NoError(t, err)
	require.EqualValues(t, 50, r.Accepted)
	require.True(t, r.Corrected)
	// Of 50 requests, one each 10 ms, those due in the first 40 waited for the stall.
	require.GreaterOrEqual(t, r.Latency.P50, 100.0, "half of the requests were held up by more than 100 ms")
	require.GreaterOrEqual(t, r.Latency.Max, 400.0)
	require.GreaterOrEqual(t, r.Seconds, 0.49, "the schedule is kept")
}

func TestARunEndsAtItsTime(t *testing.T) {
	s := startNode(t, accept)
	cfg := config(s)
	cfg.Events, cfg.Duration = 1<<40, 100*time.Millisecond
	r, err := Run(context.Background(), cfg)
	require.NoError(t, err)
	require.Equal(t, r.Events, r.Accepted)
	require.Positive(t, r.Events)

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = Run(ctx, cfg)
	require.Error(t, err)
}

func TestBadRunsAreRefused(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.Addresses = nil }, func(c *Config) { c.Events = 0 }, func(c *Config) { c.Duration = 0 },
		func(c *Config) { c.Size = MaxSize + 1 }, func(c *Config) { c.Batch = 0 }, func(c *Config) { c.Connections = MaxConnections + 1 },
		func(c *Config) { c.InFlight = 4 }, func(c *Config) { c.Rate = -1 }, func(c *Config) { c.Timeout = 0 },
		func(c *Config) { c.Payload = "xml" }, func(c *Config) { c.Payload = Files },
	} {
		cfg := Config{Addresses: []string{"127.0.0.1:1"}, Channel: "c", Events: 1, Duration: 1, Size: 1, Batch: 1, Payload: JSON, Connections: 3, Timeout: 1}
		require.NoError(t, cfg.Validate())
		change(&cfg)
		require.Error(t, cfg.Validate(), "%+v", cfg)
	}
}
