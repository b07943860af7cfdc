package replay

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"penstock/cluster"
	"penstock/dlq"
	"penstock/emit"
	"penstock/fsm"
)

const (
	maxReason    = 1024
	maxIDBytes   = 64
	replayWithin = 20 * time.Second
	auditPage    = 1000
)

// Handlers are those of the routes, by their patterns. Whether a request may operate was decided before they see it; actor says who
// asks.
func (s *Service) Handlers(actor func(*http.Request) string) map[string]http.HandlerFunc {
	act := func(action string, do func(ctx context.Context, act Act, b body) (Answer, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { s.serveAct(w, r, action, actor(r), do) }
	}
	return map[string]http.HandlerFunc{
		"POST /v1/dlq/replay": act("dlq.replay", func(ctx context.Context, act Act, b body) (Answer, error) {
			return s.Replay(ctx, act, ReplayOptions{Force: b.Force, DryRun: b.DryRun, To: b.To})
		}),
		"POST /v1/dlq/discard": act("dlq.discard", func(ctx context.Context, act Act, _ body) (Answer, error) {
			return s.Discard(ctx, act)
		}),
		"POST /v1/emitters/{channel}/{emitter}/pause":  s.servePause(true, actor),
		"POST /v1/emitters/{channel}/{emitter}/resume": s.servePause(false, actor),
		"GET /v1/audit":      s.serveAudit,
		"GET /v1/dlq/export": s.serveExport,
	}
}

// body is that of a replay or a discard.
type body struct {
	IDs    []string `json:"ids"`
	Reason string   `json:"reason"`
	Force  bool     `json:"force"`
	DryRun bool     `json:"dry_run"`
	To     string   `json:"to"`
}

// readBody reads and checks it; the error says what is wrong.
func readBody(r *http.Request, action string) (b body, err error) {
	d := json.NewDecoder(r.Body) // bounded by the route table
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		return b, fmt.Errorf("the body is no request: %w", err)
	}
	switch {
	case len(b.IDs) == 0:
		return b, fmt.Errorf("ids: want 1 to %d", emit.MaxReplayIDs)
	case len(b.IDs) > emit.MaxReplayIDs:
		return b, fmt.Errorf("ids: %d, want 1 to %d; there is no replay of all", len(b.IDs), emit.MaxReplayIDs)
	case len(b.Reason) > maxReason:
		return b, fmt.Errorf("reason: %d bytes, at most %d", len(b.Reason), maxReason)
	case action == "dlq.discard" && b.Reason == "":
		return b, errors.New("reason: a discard needs one")
	}
	for _, id := range b.IDs {
		if id == "" || len(id) > maxIDBytes {
			return b, fmt.Errorf("ids: an id is 1 to %d bytes", maxIDBytes)
		}
	}
	return b, nil
}

type statusAnswer struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	Detail string `json:"detail,omitempty"`
}

type actAnswer struct {
	Intent    string         `json:"intent,omitempty"`
	RequestID string         `json:"request_id"`
	Counts    map[string]int `json:"counts"`
	Results   []statusAnswer `json:"results"`
}

func (s *Service) serveAct(w http.ResponseWriter, r *http.Request, action, actor string, do func(context.Context, Act, body) (Answer, error)) {
	act := Act{Actor: actor, Action: action, RequestID: requestID(r)}
	w.Header().Set("X-Request-Id", act.RequestID)
	b, err := readBody(r, action)
	act.Targets, act.Reason = b.IDs, b.Reason
	if len(act.Reason) > maxReason {
		act.Reason = act.Reason[:maxReason]
	}
	if err != nil {
		s.audit.reject(r.Context(), act, err.Error())
		status, kind := http.StatusBadRequest, "bad-request"
		if tooLong := new(http.MaxBytesError); errors.As(err, &tooLong) {
			status, kind = http.StatusRequestEntityTooLarge, "too-large"
		}
		problem(w, status, kind, err.Error())
		return
	}
	within := replayWithin
	if d, err := time.ParseDuration(r.URL.Query().Get("timeout")); err == nil && d > 0 {
		within = min(d, replayWithin)
	}
	ctx, cancel := context.WithTimeout(r.Context(), within)
	defer cancel()
	a, err := do(ctx, act, b)
	if err != nil {
		s.actProblem(w, err)
		return
	}
	out := actAnswer{RequestID: act.RequestID, Counts: map[string]int{}}
	if a.Intent != [16]byte{} {
		out.Intent = hex.EncodeToString(a.Intent[:])
	}
	for _, st := range a.Statuses {
		out.Results = append(out.Results, statusAnswer{ID: st.ID, Status: string(st.State), Detail: st.Detail})
	}
	for state, n := range a.Counts {
		out.Counts[string(state)] = n
	}
	writeJSON(w, out)
}

// actProblem answers an act that was not begun, or may not have been: the error says which.
func (s *Service) actProblem(w http.ResponseWriter, err error) {
	var pe *cluster.ProposeError
	if errors.As(err, &pe) && pe.Reason == cluster.ReasonForbidden {
		problem(w, http.StatusForbidden, "forbidden", err.Error())
		return
	}
	if errors.As(err, &pe) && pe.Outcome != cluster.Unknown {
		w.Header().Set("Retry-After", "1")
		problem(w, http.StatusServiceUnavailable, "no-leader", err.Error())
		return
	}
	problem(w, http.StatusGatewayTimeout, "unknown-outcome", "look at the audit trail before it is repeated: "+err.Error())
}

// requestID is the client's, when it is short and plain, else a new one.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	if id == "" || len(id) > 128 {
		return uuid.NewString()
	}
	for _, c := range id {
		if c <= ' ' || c > '~' {
			return uuid.NewString()
		}
	}
	return id
}

type auditAnswer struct {
	Seq       uint64   `json:"seq"`
	ID        string   `json:"id"`
	At        string   `json:"at"`
	Actor     string   `json:"actor"`
	Action    string   `json:"action"`
	Reason    string   `json:"reason,omitempty"`
	RequestID string   `json:"request_id,omitempty"`
	IDs       []string `json:"ids,omitempty"`
	Open      bool     `json:"open"`
	Result    string   `json:"result,omitempty"`
	Detail    string   `json:"detail,omitempty"`
	ClosedAt  string   `json:"closed_at,omitempty"`
}

func auditOf(r fsm.AuditRecord) auditAnswer {
	return auditAnswer{
		Seq: r.Seq, ID: hex.EncodeToString(r.ID[:]), At: stamp(r.At), Actor: r.Actor, Action: r.Action, Reason: r.Reason,
		RequestID: r.RequestID, IDs: r.Targets, Open: r.Open, Result: r.Result, Detail: r.Detail, ClosedAt: stamp(r.ClosedAt),
	}
}

func stamp(ns int64) string {
	if ns == 0 {
		return ""
	}
	return time.Unix(0, ns).UTC().Format(time.RFC3339Nano)
}

// serveAudit lists the trail: ?after=SEQ&limit=N&order=newest&open=1&action=dlq.*
func (s *Service) serveAudit(w http.ResponseWriter, r *http.Request) {
	v := r.URL.Query()
	q := fsm.AuditQuery{Limit: 100, Newest: v.Get("order") == "newest", OpenOnly: v.Get("open") == "1", Action: v.Get("action")}
	for name, to := range map[string]*uint64{"after": &q.After} {
		if t := v.Get(name); t != "" {
			n, err := strconv.ParseUint(t, 10, 64)
			if err != nil {
				problem(w, http.StatusBadRequest, "bad-request", name+": no number")
				return
			}
			*to = n
		}
	}
	if t := v.Get("limit"); t != "" {
		n, err := strconv.Atoi(t)
		if err != nil || n < 1 || n > auditPage {
			problem(w, http.StatusBadRequest, "bad-request", fmt.Sprintf("limit: want 1 to %d", auditPage))
			return
		}
		q.Limit = n
	}
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	if v.Get("stale") != "1" {
		if _, err := s.deps.Cluster.ReadIndex(ctx); err != nil {
			w.Header().Set("Retry-After", "1")
			problem(w, http.StatusServiceUnavailable, "no-leader", err.Error()+"; ?stale=1 shows what this node knows")
			return
		}
	}
	out := []auditAnswer{}
	for _, rec := range s.deps.Machine.Audit(q) {
		out = append(out, auditOf(rec))
	}
	answer := map[string]any{"records": out}
	if len(out) == q.Limit && !q.Newest {
		answer["next"] = out[len(out)-1].Seq
	}
	writeJSON(w, answer)
}

// serveExport streams this node's records byte for byte, payloads included: ?channel=&emitter=&state=
func (s *Service) serveExport(w http.ResponseWriter, r *http.Request) {
	v := r.URL.Query()
	var keep func(*dlq.Record) bool
	if v.Get("channel")+v.Get("emitter")+v.Get("state") != "" {
		want := func(filter, value string) bool { return filter == "" || filter == value }
		keep = func(rec *dlq.Record) bool {
			return want(v.Get("channel"), rec.Channel) && want(v.Get("emitter"), rec.Emitter) && want(v.Get("state"), string(rec.State))
		}
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	if n, err := s.deps.Volume.Export(r.Context(), w, keep); err != nil {
		s.deps.Logger.Warn("export of dead letters ended early", "records", n, "error", err)
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(v)
}

// problem answers in the form of all problems (docs/api.md).
func problem(w http.ResponseWriter, status int, kind, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"type": "urn:penstock:problem:" + kind, "title": http.StatusText(status), "status": status, "detail": detail,
	})
}
