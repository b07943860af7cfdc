package api

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"penstock/event"
	"penstock/internal/spec"
	"penstock/node/access"
	"penstock/node/internal/testbed"
	"penstock/node/logread"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// surface is an API over a bed. Its requests come from loopback unless they say otherwise.
type surface struct {
	*testbed.Bed
	t   testing.TB
	api *API
}

var errNotReady = errors.New("catching up")

func newSurface(t testing.TB, change ...func(*Config)) *surface {
	return surfaceOn(t, testbed.New(t), change...)
}

func surfaceOn(t testing.TB, b *testbed.Bed, change ...func(*Config)) *surface {
	cfg := Config{
		Limits: event.Limits{}.WithDefaults(), Timeout: 5 * time.Second, InFlight: 100, InFlightBytes: 64 << 20,
	}
	for _, c := range change {
		c(&cfg)
	}
	registry := prometheus.NewRegistry()
	open, err := access.Open("", nil)
	require.NoError(t, err)
	return &surface{Bed: b, t: t, api: New(cfg, Deps{
		NodeID: "n1", Access: open,
		Cluster: b, Machine: b.Machine, Reader: logread.New(b.Log, b.Machine, 1<<20), Log: b.Log,
		Ready: func() error { return errNotReady }, Gatherer: registry, Metrics: registry, Logger: slog.New(slog.DiscardHandler),
	})}
}

func orders() spec.Channel {
	return spec.Channel{Name: "orders", Semantics: spec.AtLeastOnce, Order: spec.OrderNone, Retention: spec.Retention{Keep: spec.Duration(time.Hour)}}
}

func hook(name string) spec.Emitter {
	return spec.Emitter{Name: name, Kind: spec.KindWebhook, Webhook: &spec.Webhook{URL: "http://127.0.0.1:1/"}}
}

type answer struct {
	t      testing.TB
	code   int
	header http.Header
	body   string
}

// call makes one request. headers are "Name: value".
func (s *surface) call(method, path, body string, headers ...string) answer {
	s.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:5555"
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "RemoteAddr" {
			r.RemoteAddr = value
			continue
		}
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	s.api.ServeHTTP(w, r)
	return answer{t: s.t, code: w.Code, header: w.Header(), body: w.Body.String()}
}

func (s *surface) get(path string) answer { s.t.Helper(); return s.call("GET", path, "") }

const batchType = "Content-Type: application/cloudevents-batch+json"

// batch is a CloudEvents batch of events with these ids.
func batch(ids ...string) string {
	var all []string
	for _, id := range ids {
		id, data, _ := strings.Cut(id, "=")
		all = append(all, `{"specversion":"1.0","id":"`+id+`","source":"/s","type":"t","data":"`+data+`"}`)
	}
	return "[" + strings.Join(all, ",") + "]"
}

func (a answer) ok(into any) answer {
	a.t.Helper()
	require.Equal(a.t, 200, a.code, a.body)
	if into != nil {
		require.NoError(a.t, json.Unmarshal([]byte(a.body), into), a.body)
	}
	return a
}

// problem checks status and kind, and that the answer is in the form that every problem has.
func (a answer) problem(status int, kind string) problem {
	a.t.Helper()
	require.Equal(a.t, status, a.code, a.body)
	require.Equal(a.t, "application/problem+json", a.header.Get("Content-Type"), a.body)
	var p problem
	d := json.NewDecoder(strings.NewReader(a.body))
	d.DisallowUnknownFields()
	require.NoError(a.t, d.Decode(&p), a.body)
	require.Equal(a.t, problemPrefix+kind, p.Type, a.body)
	require.Equal(a.t, status, p.Status)
	require.NotEmpty(a.t, p.Title)
	if status == 429 || status == 503 {
		require.NotEmpty(a.t, a.header.Get("Retry-After"), "P8: %d says when to come back", status)
		require.Positive(a.t, p.RetryAfter)
	}
	return p
}

// serve runs the surface behind a real HTTP server.
func (s *surface) serve() *httptest.Server {
	server := httptest.NewServer(s.api)
	s.t.Cleanup(server.Close)
	return server
}

func answerOf(t testing.TB, resp *http.Response, err error) answer {
	t.Helper()
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return answer{t: t, code: resp.StatusCode, header: resp.Header, body: string(b)}
}
