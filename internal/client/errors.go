package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Problem is an error answer of a node (RFC 9457), or what could be made of another answer.
type Problem struct {
	Type    string `json:"type"`
	Title   string `json:"title"`
	Status  int    `json:"status"`
	Detail  string `json:"detail"`
	Ordinal *int   `json:"ordinal,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Byte    *int64 `json:"byte,omitempty"`
	Field   string `json:"field,omitempty"`
	Limit   int64  `json:"limit,omitempty"`
	First   uint64 `json:"first,omitempty"`  // first readable index, with 410
	Leader  string `json:"leader,omitempty"` // the node to try instead, where one is known
	// Committed is what is known of a write's effect: "no" or "unknown"; empty when the kind says it.
	Committed string `json:"committed,omitempty"`

	// RetryAfter is the header of that name; 0 when absent.
	RetryAfter time.Duration `json:"-"`
	typed      bool          // a Penstock node said it, not a proxy before it
}

// problemPrefix stands before the kind in Type.
const problemPrefix = "urn:penstock:problem:"

// Kind is the stable name of the problem ("bad-event", "no-leader"), empty when no node said one.
func (p *Problem) Kind() string {
	if kind, ok := strings.CutPrefix(p.Type, problemPrefix); ok {
		return kind
	}
	return ""
}

// Error is one line.
func (p *Problem) Error() string {
	title := p.Kind()
	if title == "" {
		title = p.Title
	}
	s := fmt.Sprintf("%d %s", p.Status, title)
	if p.Detail != "" {
		s += ": " + p.Detail
	}
	return s
}

// UnknownError: a write was sent and no answer says whether it was committed. Repeat it under the same ids.
type UnknownError struct{ Err error }

// Error says so.
func (e *UnknownError) Error() string { return "outcome unknown: " + e.Err.Error() }

// Unwrap gives the cause.
func (e *UnknownError) Unwrap() error { return e.Err }

// Unknown tells whether a write that failed with err may have been committed.
func Unknown(err error) bool {
	var u *UnknownError
	if errors.As(err, &u) {
		return true
	}
	var p *Problem
	return errors.As(err, &p) && (p.Kind() == "unknown-outcome" || p.Committed == "unknown")
}

// Retryable tells whether the same request may be sent again, under the same ids, with a hope: the outcome is unknown, or
// it was certainly not committed for a reason that passes (429, 503, 507, or no node reached).
func Retryable(err error) bool {
	if Unknown(err) || errors.Is(err, errNotSent) {
		return true
	}
	var p *Problem
	if !errors.As(err, &p) {
		return false
	}
	switch p.Status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInsufficientStorage:
		return true
	}
	return false
}

// RetryAfter is what the node asked for, 0 when it did not.
func RetryAfter(err error) time.Duration {
	var p *Problem
	if errors.As(err, &p) {
		return p.RetryAfter
	}
	return 0
}

// NotFound tells whether err is a node's 404.
func NotFound(err error) bool {
	var p *Problem
	return errors.As(err, &p) && p.Status == http.StatusNotFound
}

// Gone gives the first readable index when err is a 410.
func Gone(err error) (first uint64, ok bool) {
	var p *Problem
	if errors.As(err, &p) && p.Status == http.StatusGone {
		return p.First, true
	}
	return 0, false
}

// readProblem makes an error of a non-2xx answer. A 5xx to a write that no node signed (a proxy's) says nothing about the
// outcome, so that is unknown.
func readProblem(resp *http.Response, write bool) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	p := &Problem{}
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if media == "application/problem+json" && json.Unmarshal(b, p) == nil && strings.HasPrefix(p.Type, problemPrefix) {
		p.typed = true
	} else {
		*p = Problem{Title: http.StatusText(resp.StatusCode), Detail: firstLine(b)}
	}
	p.Status = resp.StatusCode
	p.RetryAfter = parseRetryAfter(resp.Header.Get("Retry-After"))
	if write && !p.typed && p.Status >= 500 {
		return &UnknownError{Err: p}
	}
	return p
}

func firstLine(b []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return line[:min(len(line), 200)]
}

// parseRetryAfter reads seconds or an HTTP date.
func parseRetryAfter(s string) time.Duration {
	if s == "" {
		return 0
	}
	if n, err := strconv.Atoi(s); err == nil && n >= 0 && n < 1<<31 {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(s); err == nil {
		return max(0, time.Until(t))
	}
	return 0
}

// AsProblem gives the node's answer in err.
func AsProblem(err error) (*Problem, bool) {
	var p *Problem
	ok := errors.As(err, &p)
	return p, ok
}
