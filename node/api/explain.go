package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"penstock/event"
	"penstock/fsm"
	"penstock/node/logread"
)

// maxExplained bounds how many events one answer explains: the same id may stand in several channels and sources.
const maxExplained = 20

type explainAnswer struct {
	Events []explained `json:"events"`
}

type explained struct {
	ID         string         `json:"id"`
	Source     string         `json:"source"`
	Channel    string         `json:"channel"`
	Position   event.Position `json:"position"`
	AcceptedAt string         `json:"accepted_at,omitempty"`
	// Readable is false once the log no longer holds the event: its deliveries are resolved.
	Readable   bool                `json:"readable"`
	Deliveries []deliveryExplained `json:"deliveries"`
}

// found is an event that was located: by the dedup table or by a scan.
type found struct {
	channel fsm.ChannelInfo
	pos     event.Position
	seq     uint64
	stamp   int64
	event   event.Event
	// readable: event and stamp are filled in.
	readable bool
}

// explain tells where one event is. Within the dedup window the replicated table knows; past it, and for ids the server
// made, the readable log is scanned, newest knowledge last, within the request's deadline.
func (a *API) explain(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := a.requestContext(r)
	defer cancel()
	id, source := r.PathValue("id"), r.URL.Query().Get("source")
	if prob := a.fresh(ctx, r); prob != nil {
		prob.write(w)
		return
	}
	events, err := a.locate(ctx, id, source)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			newProblem(http.StatusServiceUnavailable, kindOverloaded, "scan not finished", "the readable log is too long to scan within the deadline; narrow it with ?source= or ask within the dedup window").retryAfter(1e9).write(w)
			return
		}
		readProblem(err).write(w)
		return
	}
	if len(events) == 0 {
		newProblem(http.StatusNotFound, kindNotFound, "no such event", fmt.Sprintf("no channel holds an event %.128q that can still be read", id)).write(w)
		return
	}
	out := explainAnswer{}
	for _, f := range events {
		e := explained{ID: id, Source: f.event.Source, Channel: f.channel.Name, Position: f.pos, AcceptedAt: stampText(f.stamp), Readable: f.readable}
		e.Deliveries = a.explainDeliveries(ctx, f)
		out.Events = append(out.Events, e)
	}
	writeJSON(w, out)
}

func (a *API) locate(ctx context.Context, id, source string) ([]found, error) {
	hash := event.IDHashOf(id)
	var out []found
	for _, l := range a.deps.Machine.Lookup(hash) {
		ch, ok := a.deps.Machine.ChannelByIndex(l.ChannelIndex)
		if !ok || len(out) == maxExplained {
			continue
		}
		f := found{channel: ch, pos: l.Position, seq: l.Seq}
		if err := a.read(&f); err != nil {
			return nil, err
		}
		if f.readable && (f.event.ID != id || source != "" && f.event.Source != source) {
			continue
		}
		out = append(out, f)
	}
	if len(out) > 0 {
		return out, nil
	}
	for _, ch := range a.deps.Machine.Channels() {
		more, err := a.scanFor(ctx, ch, hash, id, source)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
		if len(out) >= maxExplained {
			return out[:maxExplained], nil
		}
	}
	return out, nil
}

// read fills in the event at f's position; an event the log no longer holds leaves f not readable.
func (a *API) read(f *found) error {
	e, err := a.deps.Reader.Entry(f.pos.Index)
	var gone *logread.GoneError
	if errors.As(err, &gone) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, b := range e.Batches {
		i := int(f.pos.Ordinal) - int(b.FirstOrdinal)
		if i < 0 || i >= b.Len() {
			continue
		}
		ev, err := b.Event(i)
		if err != nil {
			return err
		}
		f.event, f.stamp, f.readable = ev, b.Stamp, true
	}
	return nil
}

func (a *API) scanFor(ctx context.Context, ch fsm.ChannelInfo, hash uint64, id, source string) ([]found, error) {
	first, err := a.deps.Reader.First()
	if err != nil {
		return nil, err
	}
	p, ok := a.deps.Machine.PointAtIndex(ch.Index, first)
	if !ok {
		return nil, nil // nothing of this channel is readable
	}
	applied, _ := a.deps.Machine.Applied()
	var out []found
	var failed error
	err = a.deps.Reader.Walk(ctx, ch.Index, max(p.Index, first), p.Seq, applied, func(n logread.Numbered) bool {
		if n.Batch.Envelope(n.I).IDHash != hash {
			return true
		}
		ev, err := n.Batch.Event(n.I)
		if err != nil {
			failed = err
			return false
		}
		if ev.ID == id && (source == "" || ev.Source == source) {
			out = append(out, found{channel: ch, pos: n.Position(), seq: n.Seq, stamp: n.Batch.Stamp, event: ev, readable: true})
		}
		return len(out) < maxExplained
	})
	return out, errors.Join(err, failed)
}
