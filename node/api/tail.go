package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"penstock/event"
	"penstock/node/logread"
)

const (
	defaultTailEvents = 1000
	maxTailEvents     = 10_000
	// maxTailBytes bounds one answer; an event that would pass it starts the next one.
	maxTailBytes = 8 << 20
	maxTailWait  = 60 * time.Second
	// maxTailEntries and maxTailLook bound the log entries that one look reads and its time, so that a channel with few
	// events costs no more than one with many: the answer then is short or empty, and Penstock-Next says where to go on.
	maxTailEntries = 50_000
	maxTailLook    = 2 * time.Second
	// tailPause lets entries gather before one who waits looks again: thousands are applied a second.
	tailPause = 10 * time.Millisecond
	// maxTailWrite is how long a client may take to read a page; slower ones are cut off, and go on from where they were.
	maxTailWrite = 30 * time.Second
)

// tail gives committed events of a channel in order. Any node answers, from its own log, up to what it has applied.
func (a *API) tail(w http.ResponseWriter, r *http.Request) {
	q, prob := tailQueryOf(r)
	if prob != nil {
		prob.write(w)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.config().Timeout+q.wait)
	defer cancel()
	ch, prob := a.channel(ctx, r.PathValue("channel"))
	if prob != nil {
		prob.write(w)
		return
	}
	first, err := a.deps.Reader.First()
	if err != nil {
		newProblem(http.StatusInternalServerError, kindInternal, "log not readable", err.Error()).write(w)
		return
	}
	slot := a.pages.holder()
	defer slot.leave()
	if !slot.enter(ctx) {
		newProblem(http.StatusTooManyRequests, kindOverloaded, "overloaded", "too many pages of events are read at once").write(w)
		return
	}
	body, next, err := a.page(ctx, slot, ch.Index, q)
	if err != nil {
		readProblem(err).write(w)
		return
	}
	applied, _ := a.deps.Machine.Applied()
	h := w.Header()
	h.Set("Content-Type", "application/x-ndjson")
	h.Set("Cache-Control", "no-store")
	h.Set("Penstock-Next", next.String())
	h.Set("Penstock-First", strconv.FormatUint(first, 10))
	h.Set("Penstock-Applied", strconv.FormatUint(applied, 10))
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(maxTailWrite))
	_, _ = w.Write(body)
}

type tailQuery struct {
	from  event.Position
	given bool
	limit int
	wait  time.Duration
}

func tailQueryOf(r *http.Request) (tailQuery, *problem) {
	bad := func(err error) (tailQuery, *problem) {
		return tailQuery{}, badRequest(err.Error())
	}
	q, v := tailQuery{limit: defaultTailEvents}, r.URL.Query()
	if s := v.Get("from"); s != "" {
		p, err := event.ParsePosition(s)
		if err != nil {
			return bad(fmt.Errorf("from: %w", err))
		}
		q.from, q.given = p, p.Index > 0
	}
	if s := v.Get("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > maxTailEvents {
			return bad(fmt.Errorf("limit %q: want a number from 1 to %d", s, maxTailEvents))
		}
		q.limit = n
	}
	if s := v.Get("wait"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			return bad(fmt.Errorf("wait %q: want a duration with a unit, as 10s", s))
		}
		q.wait = min(d, maxTailWait)
	}
	return q, nil
}

// page collects one answer, waiting for up to q.wait while there is nothing. The slot is held on entry, given back while it
// waits, and held again when there is a body.
func (a *API) page(ctx context.Context, slot *slot, channelIndex uint64, q tailQuery) ([]byte, event.Position, error) {
	deadline := time.NewTimer(q.wait)
	defer deadline.Stop()
	next := q.from
	for {
		changed := a.deps.Machine.Changed()
		body, at, err := a.collect(ctx, channelIndex, next, q)
		if err != nil || len(body) > 0 || q.wait == 0 || ctx.Err() != nil {
			return body, at, err
		}
		next = at
		if applied, _ := a.deps.Machine.Applied(); next.Index <= applied {
			continue // stopped within the bounds of one look, not at the end
		}
		if more := a.waitMore(ctx, slot, changed, deadline.C); !more {
			return nil, next, nil
		}
	}
}

// waitMore waits for the next entry to be applied; false when the request is to be answered with nothing.
func (a *API) waitMore(ctx context.Context, slot *slot, changed <-chan struct{}, deadline <-chan time.Time) bool {
	slot.leave()
	select {
	case <-changed:
	case <-deadline:
		return false
	case <-a.drain.begun:
		return false
	case <-ctx.Done():
		return false
	}
	select {
	case <-time.After(tailPause):
	case <-ctx.Done():
		return false
	}
	return slot.enter(ctx)
}

// collect makes one page of what is applied, within the bounds of one look; an empty one is no end.
func (a *API) collect(ctx context.Context, channelIndex uint64, from event.Position, q tailQuery) ([]byte, event.Position, error) {
	first, err := a.deps.Reader.First()
	if err != nil {
		return nil, from, err
	}
	applied, _ := a.deps.Machine.Applied()
	to, limit := applied, q.limit
	if begin := max(from.Index, first); applied > begin {
		to = min(applied, begin+maxTailEntries)
	}
	scan := a.deps.Reader.Scan
	if !q.given {
		scan = a.deps.Reader.Resume // whoever asks from the beginning does not mind where that is
	}
	look, cancel := context.WithTimeout(ctx, maxTailLook)
	defer cancel()
	var body []byte
	var failed error
	full := event.Position{}
	next, err := scan(look, channelIndex, from, to, func(it logread.Item) bool {
		e, err := it.Batch.Event(it.I)
		if err != nil {
			failed = err
			return false
		}
		p, before := it.Position(), len(body)
		body = e.AppendStructured(body,
			event.Extension{Name: "penstockindex", Value: strconv.FormatUint(p.Index, 10), Kind: event.ExtensionInteger},
			event.Extension{Name: "penstockordinal", Value: strconv.FormatUint(uint64(p.Ordinal), 10), Kind: event.ExtensionInteger})
		body = append(body, '\n')
		if before > 0 && len(body) > maxTailBytes {
			body, full = body[:before], p
			return false
		}
		limit--
		return limit > 0
	})
	if failed != nil {
		return nil, next, failed
	}
	if !full.IsZero() {
		next = full
	}
	if look.Err() != nil && errors.Is(err, look.Err()) {
		err = nil // the time of this look is over: what it found is an answer, and next says where to go on
	}
	return body, next, err
}

func readProblem(err error) *problem {
	var gone *logread.GoneError
	if errors.As(err, &gone) {
		p := newProblem(http.StatusGone, kindGone, "gone", err.Error())
		p.First = gone.First
		return p
	}
	return newProblem(http.StatusInternalServerError, kindInternal, "log not readable", err.Error())
}
