package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/google/uuid"

	"penstock/event"
	"penstock/fsm"
	"penstock/fsm/command"
)

// staleSpecRetries bounds how often a batch is validated anew because the channel changed under it.
const staleSpecRetries = 3

// ingestAnswer is the 200 of an ingest request.
type ingestAnswer struct {
	Index      uint64        `json:"index"`
	Accepted   uint32        `json:"accepted"`
	Duplicates uint32        `json:"duplicates"`
	Poisoned   uint32        `json:"poisoned"`
	Events     []eventAnswer `json:"events,omitempty"`
}

type eventAnswer struct {
	ID       string         `json:"id"`
	Source   string         `json:"source"`
	Position event.Position `json:"position"`
	// DuplicateOf is where the first is; Conflict says that its content differs. Deduplicated is false for an id the server made.
	DuplicateOf  *event.Position `json:"duplicate_of,omitempty"`
	Conflict     bool            `json:"conflict,omitempty"`
	Deduplicated bool            `json:"deduplicated"`
}

// ingest takes the events of one request: all or nothing, answered 200 only once they are fsynced on a majority (P1).
func (a *API) ingest(w http.ResponseWriter, r *http.Request) {
	held := a.bodyBound(r)
	if !a.admit.enter(held) {
		newProblem(http.StatusTooManyRequests, kindOverloaded, "overloaded",
			fmt.Sprintf("%d requests or %d body bytes are under way", a.config().InFlight, a.config().InFlightBytes)).notCommitted().write(w)
		return
	}
	defer func() { a.admit.leave(held) }()
	ctx, cancel := a.changeContext(r)
	defer cancel()
	answer, prob := a.accept(ctx, w, r, &held)
	if prob != nil {
		prob.write(w)
		return
	}
	writeJSON(w, answer)
}

// bodyBound is what admission counts for a request while its body is read: its length where stated, else (chunked, or
// compressed) the most it may be. Once it is read, what it is.
func (a *API) bodyBound(r *http.Request) int64 {
	most := int64(a.config().Limits.BodyBytes)
	if r.ContentLength < 0 || r.ContentLength > most || r.Header.Get("Content-Encoding") != "" {
		return most
	}
	return r.ContentLength
}

// timeout is how long the request may take, its body included.
func (a *API) timeout(r *http.Request) (time.Duration, error) {
	s := r.URL.Query().Get("timeout")
	if s == "" {
		return a.config().Timeout, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("timeout %q: want a duration with a unit, as 2s", s)
	}
	return min(d, a.config().Timeout), nil
}

// accept reads the events and commits them. held is what admission counts for the request.
func (a *API) accept(ctx context.Context, w http.ResponseWriter, r *http.Request, held *int64) (*ingestAnswer, *problem) {
	offset, err := offsetOf(r)
	if err != nil {
		return nil, badRequest(err.Error()).notCommitted()
	}
	ch, prob := a.channel(ctx, r.PathValue("channel"))
	if prob != nil {
		return nil, prob
	}
	events, prob := a.parse(w, r, ch)
	if prob != nil {
		a.metrics.events.WithLabelValues("rejected").Inc()
		return nil, prob
	}
	*held = a.admit.shrink(*held, bytesOf(events))
	if len(events) == 0 && offset == nil {
		index, _ := a.deps.Machine.Applied()
		return &ingestAnswer{Index: index}, nil
	}
	made := withoutID(events)
	for range staleSpecRetries {
		poison, prob := a.validate(ctx, ch, events, made)
		if prob == nil {
			prob = a.room(ch)
		}
		if prob != nil {
			a.metrics.events.WithLabelValues("rejected").Add(float64(len(events)))
			return nil, prob
		}
		result, prob := a.commit(ctx, ch, offset, events, poison)
		if prob != nil {
			return nil, prob
		}
		if result.Status != command.StaleSpec {
			return a.answer(r, result, events)
		}
		if ch, prob = a.refreshed(ctx, ch.Name); prob != nil {
			return nil, prob
		}
	}
	return nil, newProblem(http.StatusServiceUnavailable, kindNotCommitted, "channel changing",
		"the channel's spec changed while the batch was on its way").notCommitted()
}

// eventBytes is what an event costs beside its data, for admission.
const eventBytes = 256

func bytesOf(events []event.Event) int64 {
	n := int64(len(events)) * eventBytes
	for i := range events {
		n += int64(len(events[i].Data))
	}
	return n
}

// parse reads the body. A drain, or a client that sends too slowly, ends it.
func (a *API) parse(w http.ResponseWriter, r *http.Request, ch fsm.ChannelInfo) ([]event.Event, *problem) {
	events, err := event.ParseHTTP(r.Header, r.Body, a.config().Limits, event.Defaults{Source: ch.Spec.Source, Type: ch.Spec.Type}, newID)
	if err == nil {
		return events, nil
	}
	// What stays of a refused body is not read: the connection is closed behind the answer.
	w.Header().Set("Connection", "close")
	if a.drain.draining() && errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, newProblem(http.StatusServiceUnavailable, kindShuttingDown, "shutting down", "the body was not read to its end").notCommitted()
	}
	return nil, eventProblem(err)
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

func (a *API) commit(ctx context.Context, ch fsm.ChannelInfo, offset *event.Offset, events []event.Event, poison []bool) (command.BatchResult, *problem) {
	var none command.BatchResult
	key, ok := a.deps.Machine.HashKey()
	if !ok {
		return none, newProblem(http.StatusServiceUnavailable, kindNoLeader, "not ready", "the cluster has not been initialized yet").notCommitted()
	}
	// The batch is encoded right behind the head of its command: its payload may be megabytes.
	propose, err := event.EncodeBatch(command.EncodeBatch(nil), event.BatchHeader{ChannelIndex: ch.Index, SpecVersion: ch.Version, Offset: offset}, key, events, poison)
	if err != nil {
		return none, eventProblem(err)
	}
	answer, err := a.deps.Cluster.Propose(ctx, propose)
	if err != nil {
		return none, a.proposeProblem(err, len(events))
	}
	result, err := command.DecodeBatchResult(answer)
	if err != nil {
		return none, a.unknown(fmt.Errorf("answer of the state machine: %w", err), len(events))
	}
	return result, nil
}

func (a *API) answer(r *http.Request, result command.BatchResult, events []event.Event) (*ingestAnswer, *problem) {
	switch result.Status {
	case command.OK:
	case command.NoSuchChannel:
		return nil, newProblem(http.StatusNotFound, kindNoSuchChannel, "no such channel", "the channel was deleted while the batch was on its way").notCommitted()
	case command.TooMany:
		return nil, newProblem(http.StatusConflict, kindConflict, "too many source offsets",
			"the channel keeps no offset for a further source and partition").notCommitted()
	case command.DedupFull:
		return nil, newProblem(http.StatusTooManyRequests, kindOverloaded, "dedup window full",
			"the channel holds dedup.max_keys ids within its window and on_full is refuse").notCommitted().retryAfter(5 * time.Second)
	default:
		return nil, newProblem(http.StatusInternalServerError, kindInternal, "batch refused", fmt.Sprint(result.Status)).notCommitted()
	}
	a.metrics.events.WithLabelValues("accepted").Add(float64(result.Accepted))
	a.metrics.events.WithLabelValues("duplicate").Add(float64(result.Duplicates))
	a.metrics.events.WithLabelValues("poisoned").Add(float64(result.Poisoned))
	out := &ingestAnswer{Index: result.Index, Accepted: result.Accepted, Duplicates: result.Duplicates, Poisoned: result.Poisoned}
	if r.URL.Query().Get("detail") == "1" {
		out.Events = detail(result, events)
	}
	return out, nil
}

func detail(result command.BatchResult, events []event.Event) []eventAnswer {
	out := make([]eventAnswer, len(events))
	for i, e := range events {
		out[i] = eventAnswer{
			ID: e.ID, Source: e.Source, Deduplicated: !e.ServerID,
			Position: event.Position{Index: result.Index, Ordinal: result.FirstOrdinal + uint32(i)},
		}
	}
	for _, d := range result.Dups {
		i := int(d.Ordinal - result.FirstOrdinal)
		if i >= len(out) {
			continue
		}
		// An event has one position for ever: that of the first. Nothing stands where the repeated one came in.
		out[i].Position, out[i].DuplicateOf, out[i].Conflict = d.Of, &d.Of, d.Conflict
	}
	return out
}

// room refuses new events while an emitter of the channel has more undelivered than retention.max_unresolved (P8). It looks
// at what this node has applied, so the bound may be passed by what is under way.
//
// A disk that is nearly full, and a log at its bound, refuse too, before the log can fail: outcomes and what Raft needs still
// fit then.
func (a *API) room(ch fsm.ChannelInfo) *problem {
	stats, full := a.deps.Log.Stats(), ""
	switch {
	case stats.LowWater:
		full = "the log's file system is below its low-water mark"
	case stats.MaxBytes > 0 && stats.RetainedBytes >= stats.MaxBytes:
		full = fmt.Sprintf("the log holds wal.max_bytes (%d bytes)", stats.MaxBytes)
	}
	if full != "" {
		return newProblem(http.StatusInsufficientStorage, kindStorageFull, "storage full",
			full+"; delivery goes on and makes room").notCommitted().retryAfter(5 * time.Second)
	}
	most := uint64(ch.Spec.Retention.MaxUnresolved)
	if ch.Spec.Retention.OnUnresolved == "dead_letter" {
		most += most / 8 // the owner makes room while the destination fails; one that is only slow is waited for
	}
	for _, e := range ch.Spec.Emitters {
		info, ok := a.deps.Machine.EmitterNamed(ch.Index, e.Name)
		if ok && info.UnresolvedBytes > most {
			return newProblem(http.StatusTooManyRequests, kindOverloaded, "too much undelivered",
				fmt.Sprintf("emitter %s has more than retention.max_unresolved (%d bytes) undelivered", e.Name, most)).notCommitted().retryAfter(5 * time.Second)
		}
	}
	return nil
}

func badEvent(ordinal int, field, reason string) *problem {
	p := newProblem(http.StatusBadRequest, kindBadEvent, "bad event", fmt.Sprintf("event %d: %s: %s", ordinal, field, reason)).notCommitted()
	p.Ordinal, p.Field = &ordinal, field
	return p
}

// offsetOf reads ?source=S&partition=P&offset=POSITION:RECORD[:closed]. All of source and offset, or neither.
func offsetOf(r *http.Request) (*event.Offset, error) {
	q := r.URL.Query()
	if !q.Has("offset") {
		if q.Has("source") || q.Has("partition") {
			return nil, errors.New("source and partition go with offset=POSITION:RECORD[:closed]")
		}
		return nil, nil
	}
	source, partition := q.Get("source"), q.Get("partition")
	if source == "" || len(source) > maxSourceBytes || len(partition) > maxSourceBytes {
		return nil, fmt.Errorf("offset needs source (1 to %d bytes) and partition (0 to %d bytes)", maxSourceBytes, maxSourceBytes)
	}
	o, err := event.ParseSourceOffset(q.Get("offset"))
	if err != nil {
		return nil, err
	}
	return &event.Offset{Source: source, Partition: partition, SourceOffset: o}, nil
}

// maxSourceBytes bounds the name of a source and of a partition.
const maxSourceBytes = 256
