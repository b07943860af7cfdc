package api

import (
	"errors"
	"maps"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"penstock/node/access"
)

// route is one line of the public surface, with all that is checked before its handler sees a request.
type route struct {
	pattern string
	// need is who may ask; the zero value is everybody. A channel in the pattern is the channel the role is needed on.
	need access.Need
	// query are the parameters it knows; nil: any, and they are not looked at.
	query []string
	// body is the most bytes its body may have on the wire; 0: it is not read; eventsBody: what the limits say.
	body int64
	// change: it may change something, so it is answered before the node stops, and not begun once the node is stopping.
	change bool
	// action is its name in the audit trail, also of a refusal. audit: its intent and outcome are recorded here, not by the handler.
	action string
	audit  bool
	handle http.HandlerFunc
}

// Who may do what, by what it is. Every route names one of these, or is everybody's in so many words.
var (
	everybody = access.Need{}
	produces  = access.NeedAny(access.Producer)
	consumes  = access.NeedAny(access.Consumer)
	follows   = access.NeedAny(access.Producer, access.Consumer, access.Viewer) // what a producer needs to resume, without payload
	views     = access.NeedAny(access.Viewer)
	operates  = access.NeedAny(access.Operator)
	audits    = access.NeedAny(access.Operator, access.Admin)
	administs = access.NeedAny(access.Admin)
	exports   = access.Need{Any: []access.Role{access.Operator}, Also: []access.Role{access.Consumer}} // dead letters with payload
)

const (
	eventsBody   = -1
	maxSmallBody = 64 << 10 // of a request that is a few ids or a reason
	maxWireExtra = 64 << 10 // what an encoding may add to a body of events
)

// table is the whole public surface (docs/api.md, docs/access.md).
func (a *API) table() []route {
	own := []route{
		{pattern: "POST /v1/channels/{channel}/events", need: produces, query: q("source", "partition", "offset", "detail", "timeout"), body: eventsBody, change: true, handle: a.ingest},
		{pattern: "GET /v1/channels/{channel}/events", need: consumes, query: q("from", "limit", "wait"), handle: a.tail},
		{pattern: "GET /v1/channels/{channel}/ledger", need: views, query: q("stale"), handle: a.ledger},
		{pattern: "GET /v1/channels/{channel}/offsets", need: follows, query: q("stale"), handle: a.offsets},
		{pattern: "GET /v1/channels/{channel}/offsets/{source}/{partition}", need: follows, query: q("stale"), handle: a.offset},
		{pattern: "GET /v1/channels", need: views, query: q("stale"), handle: a.listChannels},
		{pattern: "GET /v1/channels/{channel}", need: views, query: q("stale"), handle: a.getChannel},
		{pattern: "PUT /v1/channels/{channel}", need: administs, query: q("discard", "dry_run", "timeout"), body: maxSpecBytes, change: true, action: "channel.put", audit: true, handle: a.putChannel},
		{pattern: "DELETE /v1/channels/{channel}", need: administs, query: q("discard", "timeout"), change: true, action: "channel.delete", audit: true, handle: a.deleteChannel},
		{pattern: "GET /v1/events/{id...}", need: views, query: q("source", "stale"), handle: a.explain},
		{pattern: "GET /v1/dlq", need: views, query: q("channel", "emitter", "state", "after", "stale"), handle: a.listDeadLetters},
		{pattern: "GET /v1/dlq/{id}", need: views, query: q("stale"), handle: a.getDeadLetter},
		{pattern: "GET /v1/cluster", need: views, query: q(), handle: a.clusterStatus},
		{pattern: "POST /v1/cluster/members", need: administs, query: q("timeout"), body: maxSmallBody, change: true, action: "cluster.join", handle: a.addMember},
		{pattern: "DELETE /v1/cluster/members/{id}", need: administs, query: q("timeout", "force", "reason"), change: true, action: "cluster.remove", handle: a.removeMember},
		{pattern: "POST /v1/cluster/members/{id}/demote", need: administs, query: q("timeout"), body: maxSmallBody, change: true, action: "cluster.demote", handle: a.demoteMember},
		{pattern: "POST /v1/cluster/transfer", need: administs, query: q("timeout"), body: maxSmallBody, change: true, action: "cluster.transfer", handle: a.transfer},
		{pattern: "POST /v1/cluster/snapshot", need: administs, query: q("timeout"), change: true, action: "cluster.snapshot", handle: a.snapshot},
		{pattern: "GET /healthz", need: everybody, handle: a.healthz},
		{pattern: "GET /readyz", need: everybody, handle: a.readyz},
	}
	metrics := route{pattern: "GET /metrics", need: views, handle: promhttp.HandlerFor(a.deps.Gatherer, promhttp.HandlerOpts{}).ServeHTTP}
	if a.deps.OpenMetrics {
		metrics.need = everybody
	}
	return append(append(own, metrics), a.operateRoutes()...)
}

// operated are the routes whose handlers another part brings (Deps.Operate), declared here with all the others.
var operated = []route{
	{pattern: "POST /v1/dlq/replay", need: operates, query: q("timeout"), body: maxSmallBody, action: "dlq.replay"},
	{pattern: "POST /v1/dlq/discard", need: operates, query: q("timeout"), body: maxSmallBody, action: "dlq.discard"},
	{pattern: "GET /v1/dlq/export", need: exports, query: q("channel", "emitter", "state")},
	{pattern: "POST /v1/emitters/{channel}/{emitter}/pause", need: operates, query: q("timeout"), body: maxSmallBody, action: "emitter.pause"},
	{pattern: "POST /v1/emitters/{channel}/{emitter}/resume", need: operates, query: q("timeout"), body: maxSmallBody, action: "emitter.resume"},
	{pattern: "GET /v1/audit", need: audits, query: q("after", "limit", "order", "open", "action", "stale")},
}

// operateRoutes gives the declared routes their handlers. One without the other is a mistake of the program.
func (a *API) operateRoutes() (out []route) {
	if a.deps.Operate == nil {
		return nil
	}
	handlers := maps.Clone(a.deps.Operate)
	for _, r := range operated {
		h, ok := handlers[r.pattern]
		if !ok {
			panic("api: no handler of " + r.pattern)
		}
		delete(handlers, r.pattern)
		r.handle = h
		out = append(out, r)
	}
	if len(handlers) > 0 {
		panic("api: a route that declares no role: " + slices.Sorted(maps.Keys(handlers))[0])
	}
	return out
}

// q is a list of known parameters, which an empty one is too.
func q(names ...string) []string { return append([]string{}, names...) }

func (a *API) routes() http.Handler {
	mux := http.NewServeMux()
	for _, r := range a.table() {
		mux.Handle(r.pattern, a.guard(r))
	}
	return a.identified(a.instrument(mux))
}

func (a *API) healthz(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, map[string]string{"status": "ok", "node_id": a.deps.NodeID})
}

// readyz is 200 only when this node has caught up and can answer requests, its drain has not begun, and a leader is known.
func (a *API) readyz(w http.ResponseWriter, r *http.Request) {
	err := a.deps.Ready()
	if a.drain.draining() {
		err = errors.New("shutting down")
	}
	if err != nil {
		newProblem(http.StatusServiceUnavailable, kindNotReady, "not ready", err.Error()).write(w)
		return
	}
	writeJSON(w, map[string]string{"status": "ready", "node_id": a.deps.NodeID})
}
