package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of the surface. Labels come from the route table and the status code alone, never from a request (B51).
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	events   *prometheus.CounterVec
	refusals *prometheus.CounterVec
	panics   prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, admit *admission) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_node_requests_total", Help: "HTTP requests by route and status code.",
		}, []string{"route", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "penstock_node_request_seconds", Help: "Time to answer an HTTP request, by route.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 12),
		}, []string{"route"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_node_ingest_events_total", Help: "Events of answered ingest requests by what became of them.",
		}, []string{"result"}),
	}
	m.refusals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_node_refused_requests_total", Help: "Requests refused for want of a valid token (unauthorized) or of a role (forbidden).",
	}, []string{"reason"})
	m.panics = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "penstock_node_panics_total", Help: "Handlers that panicked; anything but 0 is a bug.",
	})
	for _, r := range []string{"unauthorized", "forbidden"} {
		m.refusals.WithLabelValues(r)
	}
	for _, r := range []string{"accepted", "duplicate", "poisoned", "rejected", "unknown"} {
		m.events.WithLabelValues(r)
	}
	reg.MustRegister(m.requests, m.seconds, m.events, m.refusals, m.panics,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_node_in_flight_requests", Help: "Ingest requests under way.",
		}, func() float64 { requests, _ := admit.load(); return float64(requests) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_node_in_flight_bytes", Help: "What admission counts for the bodies of ingest requests under way.",
		}, func() float64 { _, bytes := admit.load(); return float64(bytes) }))
	return m
}

func (m *metrics) refused(known bool) {
	reason := "unauthorized"
	if known {
		reason = "forbidden"
	}
	m.refusals.WithLabelValues(reason).Inc()
}

func (a *API) instrument(mux *http.ServeMux) http.Handler {
	m := a.metrics
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		unrouted, route := mux.Handler(r)
		start := time.Now()
		rec := &statusRecorder{ResponseWriter: w, status: http.StatusOK}
		if route == "" {
			route = "other"
			noRoute(rec, r, unrouted)
		} else {
			func() {
				defer a.recovered(rec, r, route)
				mux.ServeHTTP(rec, r)
			}()
		}
		took := time.Since(start)
		m.requests.WithLabelValues(route, strconv.Itoa(rec.status)).Inc()
		m.seconds.WithLabelValues(route).Observe(took.Seconds())
		a.logged(r, route, rec.status, took)
	})
}

// noRoute answers a request that no route takes: 405 where the path exists with another method, else 404.
func noRoute(w http.ResponseWriter, r *http.Request, fallback http.Handler) {
	probe := &statusProbe{header: make(http.Header)}
	fallback.ServeHTTP(probe, r)
	if probe.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", probe.header.Get("Allow"))
		newProblem(http.StatusMethodNotAllowed, kindBadRequest, "method not allowed", "allowed: "+probe.header.Get("Allow")).write(w)
		return
	}
	newProblem(http.StatusNotFound, kindNotFound, "no such route", "see docs/api.md for the routes").write(w)
}

// statusProbe takes an answer's status and headers and throws its body away.
type statusProbe struct {
	header http.Header
	status int
}

func (p *statusProbe) Header() http.Header         { return p.header }
func (p *statusProbe) Write(b []byte) (int, error) { return len(b), nil }
func (p *statusProbe) WriteHeader(code int)        { p.status = code }

type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (s *statusRecorder) WriteHeader(code int) {
	s.status = code
	s.ResponseWriter.WriteHeader(code)
}

// Unwrap lets http.ResponseController reach the connection.
func (s *statusRecorder) Unwrap() http.ResponseWriter { return s.ResponseWriter }
