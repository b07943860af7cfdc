package api

import (
	"errors"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// routes is the whole table of the public surface. A route registered with operator changes something and answers on
// loopback only while no token and no issuer is configured.
func (a *API) routes() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, h http.HandlerFunc) { mux.HandleFunc(pattern, h) }
	operator := func(pattern string, h http.HandlerFunc) { mux.HandleFunc(pattern, loopbackOnly(a.accepted(h))) }

	handle("POST /v1/channels/{channel}/events", a.accepted(a.ingest))
	handle("GET /v1/channels/{channel}/events", a.tail)
	handle("GET /v1/channels/{channel}/ledger", a.ledger)
	handle("GET /v1/channels/{channel}/offsets", a.offsets)
	handle("GET /v1/channels/{channel}/offsets/{source}/{partition}", a.offset)
	handle("GET /v1/channels", a.listChannels)
	handle("GET /v1/channels/{channel}", a.getChannel)
	operator("PUT /v1/channels/{channel}", a.putChannel)
	operator("DELETE /v1/channels/{channel}", a.deleteChannel)
	handle("GET /v1/events/{id...}", a.explain)
	handle("GET /v1/dlq", a.listDeadLetters)
	handle("GET /v1/dlq/{id}", a.getDeadLetter)
	handle("GET /v1/cluster", a.clusterStatus)
	operator("POST /v1/cluster/members", a.addMember)
	operator("DELETE /v1/cluster/members/{id}", a.removeMember)
	operator("POST /v1/cluster/transfer", a.transfer)
	operator("POST /v1/cluster/snapshot", a.snapshot)
	handle("GET /healthz", a.healthz)
	handle("GET /readyz", a.readyz)
	if a.deps.Operate != nil {
		a.deps.Operate(mux, operatorOf)
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.deps.Gatherer, promhttp.HandlerOpts{}))
	return a.metrics.instrument(mux)
}

// loopbackOnly guards an operator's route while access is not configured (DESIGN section 6).
func loopbackOnly(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !fromLoopback(r) {
			newProblem(http.StatusForbidden, kindForbidden, "operator route",
				"with no token and no issuer configured this route answers on loopback only").write(w)
			return
		}
		h(w, r)
	}
}

// operatorOf says who operates, while access is not configured: whoever is on this machine.
func operatorOf(r *http.Request) (actor string, ok bool) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = "unknown"
	}
	return "anonymous@" + host, fromLoopback(r)
}

func fromLoopback(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func (a *API) healthz(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, map[string]string{"status": "ok", "node_id": a.cfg.NodeID})
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
	writeJSON(w, map[string]string{"status": "ready", "node_id": a.cfg.NodeID})
}
