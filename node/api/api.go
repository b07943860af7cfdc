// Package api is the HTTP surface of a node: ingest, reading, channels, cluster, health. The routes, the shapes of answers
// and the kinds of problems are public and only ever added to (docs/api.md).
//
// It owns admission (how many requests and bytes may be under way) and the translation of each outcome into committed,
// certainly not committed, or unknown (P7). It promises an answer to every request within its deadline, a trickling body
// included. It holds no state that outlives a request, decides nothing about replication, and starts no goroutine.
package api

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"penstock/cluster"
	"penstock/event"
	"penstock/fsm"
	"penstock/node/access"
	"penstock/node/logread"
	"penstock/wal"
)

// Cluster is what the surface needs of the cluster.
type Cluster interface {
	Propose(ctx context.Context, command []byte) ([]byte, error)
	ReadIndex(ctx context.Context) (uint64, error)
	Now() time.Time
	Status() cluster.Status
	Members() []cluster.Member
	Outsiders() []cluster.Outsider
	Lease() cluster.Lease
	AddNonvoter(ctx context.Context, id string) error
	Promote(ctx context.Context, id string) error
	Demote(ctx context.Context, id string, force bool) error
	Remove(ctx context.Context, id string, force bool) error
	Transfer(ctx context.Context) error
	TransferTo(ctx context.Context, id string) error
	TakeSnapshot() error
}

// LogStats is what the surface shows of the log.
type LogStats interface {
	FirstIndex() (uint64, error)
	LastIndex() (uint64, error)
	Base() (index, term uint64)
	Stats() wal.Stats
}

// Config bounds the surface. It may change while the surface answers (SetConfig): a request keeps to what it began with or to what
// came since.
type Config struct {
	Limits event.Limits
	// Timeout is the longest a request waits for its commit; a client may ask for less (?timeout=).
	Timeout time.Duration
	// InFlight bounds the requests, InFlightBytes the bodies, that are under way at once; beyond either the answer is 429.
	InFlight      int
	InFlightBytes int64
}

// Deps are the parts the surface shows. All but Operate and Audit are required.
type Deps struct {
	NodeID  string
	Access  *access.Gate
	Cluster Cluster
	Machine *fsm.Machine
	Reader  *logread.Reader
	Log     LogStats
	Ready   func() error
	// Operate brings the handlers of replay, discard, pause and audit, by the patterns of the route table. ActorOf says who asks.
	Operate map[string]http.HandlerFunc
	Audit   Auditor
	// OpenMetrics: /metrics asks for no token.
	OpenMetrics bool
	Gatherer    prometheus.Gatherer
	Metrics     prometheus.Registerer
	Logger      *slog.Logger
}

// API answers requests. It is safe for concurrent use.
type API struct {
	cfg     atomic.Pointer[Config]
	deps    Deps
	admit   *admission
	pages   slots
	scans   slots
	drain   drainState
	metrics *metrics
	answers *rate.Limiter // of lines about answers that went wrong
	schemas schemas
	handler http.Handler
}

func (a *API) config() *Config { return a.cfg.Load() }

// SetConfig changes the bounds of a running surface.
func (a *API) SetConfig(cfg Config) {
	a.cfg.Store(&cfg)
	a.admit.resize(cfg.InFlight, cfg.InFlightBytes)
}

// Longest is the most that reading a request and answering it may take: that of a tail that waits. A server may give up on
// a connection behind it.
func (a *API) Longest() time.Duration { return a.config().Timeout + maxTailWait + maxTailWrite }

// New makes the surface.
func New(cfg Config, deps Deps) *API {
	admit := newAdmission(cfg.InFlight, cfg.InFlightBytes)
	a := &API{
		deps: deps, admit: admit, answers: rate.NewLimiter(5, 20), pages: make(slots, maxPages), scans: make(slots, maxScans),
		metrics: newMetrics(deps.Metrics, admit),
	}
	a.cfg.Store(&cfg)
	a.drain.init()
	a.handler = a.routes()
	return a
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer a.drain.run()()
	a.handler.ServeHTTP(w, r)
}
