package api

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"penstock/cluster"
	"penstock/event"
)

func (p *problem) notCommitted() *problem {
	p.Committed = "no"
	return p
}

// eventProblem turns what event found wrong into the answer that names it.
func eventProblem(err error) *problem {
	var e *event.Error
	if !errors.As(err, &e) {
		return bodyProblem(err).notCommitted()
	}
	status, kind, title := http.StatusBadRequest, kindBadEvent, "bad event"
	switch e.Kind {
	case event.TooLarge:
		status, kind, title = http.StatusRequestEntityTooLarge, kindTooLarge, "too large"
	case event.UnsupportedType, event.UnsupportedEncoding:
		status, kind, title = http.StatusUnsupportedMediaType, kindUnsupportedType, "unsupported media type"
	}
	p := newProblem(status, kind, title, err.Error()).notCommitted()
	p.Field, p.Limit = e.Field, e.Limit
	if e.Ordinal >= 0 {
		p.Ordinal = &e.Ordinal
	}
	if e.Byte >= 0 {
		p.Line, p.Column, p.Byte = e.Line, e.Column, &e.Byte
	}
	return p
}

// bodyProblem says why a body was not read to its end.
func bodyProblem(err error) *problem {
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		p := newProblem(http.StatusRequestEntityTooLarge, kindTooLarge, "too large", fmt.Sprintf("the body is at most %d bytes", tooLong.Limit))
		p.Limit = tooLong.Limit
		return p
	case errors.Is(err, os.ErrDeadlineExceeded):
		return newProblem(http.StatusRequestTimeout, kindBadRequest, "body too slow", "the body did not arrive in time")
	}
	return newProblem(http.StatusBadRequest, kindBadRequest, "body not read", err.Error())
}

// proposeProblem maps a proposal's error to its answer: certainly not committed, or unknown, never in between (P7).
func (a *API) proposeProblem(err error, events int) *problem {
	var pe *cluster.ProposeError
	if !errors.As(err, &pe) || pe.Outcome == cluster.Unknown {
		return a.unknown(err, events)
	}
	p := newProblem(http.StatusServiceUnavailable, kindNotCommitted, "not committed", err.Error())
	switch pe.Reason {
	case cluster.ReasonNoLeader:
		p = newProblem(http.StatusServiceUnavailable, kindNoLeader, "no leader", err.Error())
	case cluster.ReasonOverloaded:
		p = newProblem(http.StatusTooManyRequests, kindOverloaded, "overloaded", err.Error())
	case cluster.ReasonShutdown:
		p = newProblem(http.StatusServiceUnavailable, kindShuttingDown, "shutting down", err.Error())
	case cluster.ReasonForbidden:
		return newProblem(http.StatusForbidden, kindForbidden, "not allowed", err.Error()).notCommitted()
	case cluster.ReasonTooLarge: // it would be too large tomorrow as well
		return newProblem(http.StatusRequestEntityTooLarge, kindTooLarge, "too large", err.Error()).notCommitted()
	}
	p.Leader = a.deps.Cluster.Status().Leader
	return p.notCommitted().retryAfter(time.Second)
}

func (a *API) unknown(err error, events int) *problem {
	a.metrics.events.WithLabelValues("unknown").Add(float64(events))
	p := newProblem(http.StatusGatewayTimeout, kindUnknownOutcome, "unknown outcome",
		fmt.Sprintf("the request may or may not be committed; send it again with the same ids: %v", err)).retryAfter(time.Second)
	p.Committed = "unknown"
	return p
}
