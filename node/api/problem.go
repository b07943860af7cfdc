package api

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// problemPrefix makes a problem's stable type from its kind.
const problemPrefix = "urn:penstock:problem:"

// The kinds of problems. They are part of the public surface: people's scripts match on them.
const (
	kindBadEvent        = "bad-event"
	kindBadRequest      = "bad-request"
	kindTooLarge        = "too-large"
	kindUnsupportedType = "unsupported-media-type"
	kindNoSuchChannel   = "no-such-channel"
	kindNotFound        = "not-found"
	kindGone            = "gone"
	kindConflict        = "conflict"
	kindUnauthorized    = "unauthorized"
	kindForbidden       = "forbidden"
	kindOverloaded      = "overloaded"
	kindNoLeader        = "no-leader"
	kindNotCommitted    = "not-committed"
	kindUnknownOutcome  = "unknown-outcome"
	kindStorageFull     = "storage-full"
	kindShuttingDown    = "shutting-down"
	kindNotReady        = "not-ready"
	kindInternal        = "internal"
)

// problem is an RFC 9457 problem. Members beside the standard ones stand only where they say something.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`

	// Of a bad event: which one (from 0), and where in the decompressed body.
	Ordinal *int   `json:"ordinal,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Byte    *int64 `json:"byte,omitempty"`
	Field   string `json:"field,omitempty"`
	Limit   int64  `json:"limit,omitempty"`

	// First is the first readable index (of gone).
	First uint64 `json:"first,omitempty"`
	// Leader is the node to try instead, where one is known.
	Leader string `json:"leader,omitempty"`
	// RetryAfter is also sent as the header of that name, in whole seconds.
	RetryAfter int `json:"retry_after_seconds,omitempty"`
	// Committed says what is known of the request's effect: "no" or "unknown".
	Committed string `json:"committed,omitempty"`
}

func newProblem(status int, kind, title, detail string) *problem {
	return &problem{Type: problemPrefix + kind, Title: title, Status: status, Detail: detail}
}

func (p *problem) retryAfter(d time.Duration) *problem {
	p.RetryAfter = max(1, int((d+time.Second-1)/time.Second))
	return p
}

func badRequest(detail string) *problem {
	return newProblem(http.StatusBadRequest, kindBadRequest, "bad request", detail)
}

// write answers with the problem. Every 429 and 503 says when to come back (P8). A write error means the client is gone;
// there is nobody left to tell.
func (p *problem) write(w http.ResponseWriter) {
	if p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable {
		p.RetryAfter = max(1, p.RetryAfter)
	}
	if rec, ok := w.(interface{ note(*problem) }); ok {
		rec.note(p)
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// RefuseConnection answers a request that came on a connection too many, and ends the connection.
func RefuseConnection(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	newProblem(http.StatusTooManyRequests, kindOverloaded, "overloaded", "too many connections are open").notCommitted().write(w)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(v)
}
