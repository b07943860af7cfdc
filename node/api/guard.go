package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"penstock/cluster"
	"penstock/fsm"
	"penstock/node/access"
	"penstock/node/replay"
)

// requestHeader carries the id by which a request is found in the log and in the audit trail.
const requestHeader = "X-Request-Id"

// identified gives each request an id, the client's own when it is short and plain, and says it in the answer and the log.
func (a *API) identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(requestHeader)
		if !plainID(id) {
			id = uuid.NewString()
			r.Header.Set(requestHeader, id)
		}
		w.Header().Set(requestHeader, id)
		next.ServeHTTP(w, r)
	})
}

func plainID(id string) bool {
	return id != "" && len(id) <= 128 && !strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c > '~' })
}

// guard is everything between a route and its handler, in this order: who asks and whether they may, what they ask, how much.
// Nothing of the body is read, and no place among those that are bounded is taken, before it is known who asks.
func (a *API) guard(r route) http.Handler {
	handle := r.handle
	if r.audit {
		handle = a.audited(r, handle)
	}
	if r.change {
		handle = a.accepted(handle)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		actor, err := a.deps.Access.Identify(q)
		if err == nil || r.need.Public() {
			err = a.deps.Access.Allow(actor, r.need, r.channelOf(q))
		}
		if err != nil {
			a.refuse(w, q, r, actor, err)
			return
		}
		if err := r.checkQuery(q.URL.RawQuery); err != nil {
			closeUnread(w, q)
			badRequest(err.Error()).notCommitted().write(w)
			return
		}
		a.bound(w, q, r)
		ctx := context.WithValue(q.Context(), actorKey{}, actor.Name)
		if !r.need.Public() {
			ctx = cluster.WithGrant(ctx, a.deps.Access.Grant(actor, r.need, r.channelOf(q)))
		}
		handle(w, q.WithContext(ctx))
	})
}

// channelOf is the channel that a role is needed on.
func (r route) channelOf(q *http.Request) string {
	if c := q.PathValue("channel"); c != "" {
		return c
	}
	if len(r.need.Also) > 0 { // of dead letters with payload: of one channel, or of all of them
		return q.URL.Query().Get("channel")
	}
	return ""
}

type actorKey struct{}

// ActorOf says who asks, for the audit trail. It is known to every handler.
func ActorOf(r *http.Request) string {
	name, _ := r.Context().Value(actorKey{}).(string)
	return name
}

// refuse answers 401 or 403. The refusal of an act leaves a record when it is known who asked for it; whoever is nobody does not
// get to write to the trail.
func (a *API) refuse(w http.ResponseWriter, q *http.Request, r route, actor access.Actor, err error) {
	closeUnread(w, q)
	known := errors.Is(err, access.ErrForbidden)
	a.metrics.refused(known)
	a.deps.Logger.Debug("request refused", "route", r.pattern, "actor", actor.Name, "request", q.Header.Get(requestHeader), "remote", q.RemoteAddr, "error", err)
	if !known {
		w.Header().Set("WWW-Authenticate", `Bearer realm="penstock"`)
		newProblem(http.StatusUnauthorized, kindUnauthorized, "no valid token", "this route needs "+r.need.String()+": Authorization: Bearer TOKEN").notCommitted().write(w)
		return
	}
	if r.action != "" && a.deps.Audit != nil {
		a.deps.Audit.Rejected(q.Context(), replay.Act{Actor: actor.Name, Action: r.action, RequestID: q.Header.Get(requestHeader), Targets: targetsOf(q, nil)}, "forbidden")
	}
	newProblem(http.StatusForbidden, kindForbidden, "not allowed", err.Error()).notCommitted().write(w)
}

// closeUnread ends the connection behind an answer to a request whose body is not read.
func closeUnread(w http.ResponseWriter, q *http.Request) {
	if q.ContentLength != 0 {
		w.Header().Set("Connection", "close")
	}
}

// checkQuery refuses what the route does not know: a parameter with a typing error in it must not be taken for none.
func (r route) checkQuery(raw string) error {
	if r.query == nil || raw == "" {
		return nil
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return fmt.Errorf("query: %w", err)
	}
	var unknown []string
	for name, list := range values {
		switch {
		case !slices.Contains(r.query, name):
			unknown = append(unknown, fmt.Sprintf("%.64q", name))
		case len(list) > 1:
			return fmt.Errorf("query: %s is given %d times", name, len(list))
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	known := "none"
	if len(r.query) > 0 {
		known = strings.Join(r.query, ", ")
	}
	return fmt.Errorf("query: unknown parameter %s; known: %s", strings.Join(unknown[:min(len(unknown), 10)], ", "), known)
}

// bound bounds the body in bytes and, unless accepted does, in time.
func (a *API) bound(w http.ResponseWriter, q *http.Request, r route) {
	most := r.body
	if most == eventsBody {
		most = int64(a.config().Limits.BodyBytes) + maxWireExtra
	}
	q.Body = http.MaxBytesReader(w, q.Body, most)
	if !r.change && most > 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(a.config().Timeout))
	}
}

// Auditor keeps the trail of operators' acts; *replay.Service is one.
type Auditor interface {
	// Audited commits the intent, then calls do, then commits the outcome that do returns. After an error do was not called.
	Audited(ctx context.Context, act replay.Act, do func(ctx context.Context) (result, detail string)) error
	// Rejected leaves a record of an act that was refused; a flood of them is not recorded.
	Rejected(ctx context.Context, act replay.Act, why string)
}

// audited does an act between its intent and its outcome (P9). The outcome is read off the answer that the handler gives.
func (a *API) audited(r route, handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, q *http.Request) {
		if a.deps.Audit == nil || q.URL.Query().Get("dry_run") == "1" { // which is no act
			handle(w, q)
			return
		}
		body, err := io.ReadAll(q.Body)
		if err != nil {
			bodyProblem(err).notCommitted().write(w)
			return
		}
		q.Body = io.NopCloser(bytes.NewReader(body))
		act := replay.Act{Actor: ActorOf(q), Action: r.action, RequestID: q.Header.Get(requestHeader), Targets: targetsOf(q, body)}
		ctx, cancel := a.changeContext(q)
		defer cancel()
		err = a.deps.Audit.Audited(ctx, act, func(ctx context.Context) (result, detail string) {
			rec := &outcomeRecorder{ResponseWriter: w}
			handle(rec, q)
			return rec.outcome()
		})
		if err != nil {
			a.proposeProblem(err, 0).write(w)
		}
	}
}

// targetsOf names what an act is about: the channel, emitter or node of its path, or of its body.
func targetsOf(q *http.Request, body []byte) []string {
	var named struct{ ID, To string }
	_ = json.Unmarshal(body, &named) // the handler says what is wrong with it
	channel := q.PathValue("channel")
	if emitter := q.PathValue("emitter"); emitter != "" {
		channel += "/" + emitter
	}
	var out []string
	for _, t := range []string{channel, q.PathValue("id"), named.ID, named.To} {
		if t != "" {
			out = append(out, t[:min(len(t), 256)])
		}
	}
	return out
}

// outcomeRecorder keeps what an answer says of the act it answers.
type outcomeRecorder struct {
	http.ResponseWriter
	status int
	said   *problem
}

// Unwrap lets http.ResponseController reach the connection.
func (o *outcomeRecorder) Unwrap() http.ResponseWriter { return o.ResponseWriter }

func (o *outcomeRecorder) WriteHeader(status int) {
	o.status = status
	o.ResponseWriter.WriteHeader(status)
}

func (o *outcomeRecorder) note(p *problem) { o.said = p }

func (o *outcomeRecorder) outcome() (result, detail string) {
	if o.said == nil {
		return fsm.AuditSuccess, ""
	}
	detail = strings.TrimPrefix(o.said.Type, problemPrefix) + ": " + o.said.Detail
	if o.said.Committed == "unknown" {
		return fsm.AuditUnknown, detail
	}
	return fsm.AuditFailure, detail
}

// recovered answers a request whose handler panicked, and makes sure that it is seen: a broken invariant must not pass for a lost
// connection.
func (a *API) recovered(w http.ResponseWriter, q *http.Request, route string) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so, too
		panic(p)
	}
	a.metrics.panics.Inc()
	a.deps.Logger.Error("a handler panicked: this is a bug", "route", route, "request", q.Header.Get(requestHeader), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	prob := newProblem(http.StatusInternalServerError, kindInternal, "internal error", "a bug; the log has it under this request id")
	if q.Method != http.MethodGet && q.Method != http.MethodHead {
		prob.Committed = "unknown"
	}
	closeUnread(w, q)
	prob.write(w)
}

// logged is one line for each answer that the operator of the node may have to do something about, and for every one at debug.
func (a *API) logged(q *http.Request, route string, status int, took time.Duration) {
	level := slog.LevelDebug
	if status >= 500 && status != http.StatusServiceUnavailable && a.answers.Allow() {
		level = slog.LevelWarn
	}
	a.deps.Logger.Log(q.Context(), level, "answered", "route", route, "status", status, "took", took.Round(time.Microsecond).String(),
		"request", q.Header.Get(requestHeader), "remote", q.RemoteAddr)
}
