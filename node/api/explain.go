package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"penstock/event"
	"penstock/fsm"
	"penstock/node/logread"
)

// maxExplained bounds how many events one answer explains: the same id may stand in several channels and sources.
const maxExplained = 20

type explainAnswer struct {
	Events []explained `json:"events"`
	// Incomplete: the deadline came before the whole readable log was looked at; there may be older ones.
	Incomplete bool `json:"incomplete,omitempty"`
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
// made, the readable log is scanned, newest first, within the request's deadline.
func (a *API) explain(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := a.requestContext(r)
	defer cancel()
	id, source := r.PathValue("id"), r.URL.Query().Get("source")
	if id == "" {
		badRequest("the id of the event is missing").write(w)
		return
	}
	if prob := a.fresh(ctx, r); prob != nil {
		prob.write(w)
		return
	}
	slot := a.scans.holder()
	defer slot.leave()
	if !slot.enter(ctx) {
		newProblem(http.StatusTooManyRequests, kindOverloaded, "overloaded", "too many events are explained at once").write(w)
		return
	}
	events, complete, err := a.locate(ctx, id, source)
	switch {
	case err != nil:
		readProblem(err).write(w)
	case len(events) > 0:
		out := explainAnswer{Incomplete: !complete}
		for _, f := range events {
			e := explained{ID: id, Source: f.event.Source, Channel: f.channel.Name, Position: f.pos, AcceptedAt: stampText(f.stamp), Readable: f.readable}
			e.Deliveries = a.explainDeliveries(ctx, f)
			out.Events = append(out.Events, e)
		}
		writeJSON(w, out)
	case !complete:
		newProblem(http.StatusServiceUnavailable, kindOverloaded, "scan not finished",
			"the readable log is too long to scan within the deadline, and what was looked at does not hold the event").write(w)
	default:
		newProblem(http.StatusNotFound, kindNotFound, "no such event", fmt.Sprintf("no channel holds an event %.128q that can still be read", id)).write(w)
	}
}

// locate finds the events with the id. complete is false when the deadline came first.
func (a *API) locate(ctx context.Context, id, source string) (out []found, complete bool, err error) {
	hash := event.IDHashOf(id)
	for _, l := range a.deps.Machine.Lookup(hash) {
		ch, ok := a.deps.Machine.ChannelByIndex(l.ChannelIndex)
		if !ok || len(out) == maxExplained {
			continue
		}
		f := found{channel: ch, pos: l.Position, seq: l.Seq}
		if err := a.read(&f); err != nil {
			return nil, false, err
		}
		if f.readable && (f.event.ID != id || source != "" && f.event.Source != source) {
			continue
		}
		out = append(out, f)
	}
	if len(out) > 0 {
		return out, true, nil
	}
	return a.scanFor(ctx, hash, id, source)
}

// read fills in the event at f's position; an event the log no longer holds leaves f not readable.
func (a *API) read(f *found) error {
	it, err := a.deps.Reader.At(f.channel.Index, f.pos)
	var gone *logread.GoneError
	if errors.As(err, &gone) {
		return nil
	}
	if err != nil {
		return err
	}
	f.event, err = it.Batch.Event(it.I)
	f.stamp, f.readable = it.Batch.StampOf(it.I), err == nil
	return err
}

// tip is where the numbering of a channel's events stands at an applied index.
type tip struct {
	channel      fsm.ChannelInfo
	applied, seq uint64
}

// tips are those of all channels by creation index, and the highest of their applied indexes.
func (a *API) tips() (byIndex map[uint64]*tip, newest uint64) {
	byIndex = make(map[uint64]*tip)
	for _, ch := range a.deps.Machine.Channels() {
		if b, ok := a.deps.Machine.LedgerOf(ch.Name); ok {
			byIndex[ch.Index] = &tip{channel: ch, applied: b.AppliedIndex, seq: b.Accepted}
			newest = max(newest, b.AppliedIndex)
		}
	}
	return byIndex, newest
}

// scanFor reads the readable log once, backward: what was sent last is asked for most, and counting down from a channel's
// tip numbers its events wherever the log begins. It ends with ctx, or after maxExplained events.
func (a *API) scanFor(ctx context.Context, hash uint64, id, source string) (out []found, complete bool, err error) {
	tips, index := a.tips()
	first, err := a.deps.Reader.First()
	if err != nil {
		return nil, false, err
	}
	for ; index >= first; index-- {
		if ctx.Err() != nil {
			return out, false, nil
		}
		e, err := a.deps.Reader.Entry(index)
		var gone *logread.GoneError
		if errors.As(err, &gone) {
			break // the horizon rose meanwhile
		}
		if err != nil {
			return nil, false, err
		}
		for _, b := range slices.Backward(e.Batches) {
			t := tips[b.Header().ChannelIndex]
			if t == nil || index > t.applied {
				continue
			}
			for i := b.Len() - 1; i >= 0; i-- {
				if !b.Accepted(i) {
					continue
				}
				seq := t.seq
				t.seq--
				if b.Envelope(i).IDHash != hash {
					continue
				}
				ev, err := b.Event(i)
				if err != nil {
					return nil, false, err
				}
				if ev.ID != id || source != "" && ev.Source != source {
					continue
				}
				out = append(out, found{channel: t.channel, pos: b.Position(i), seq: seq, stamp: b.Stamp, event: ev, readable: true})
				if len(out) == maxExplained {
					return out, false, nil
				}
			}
		}
	}
	return a.scanCarried(ctx, tips, out, first, id, source)
}

// scanCarried looks among the events that were carried, whose positions lie below the readable log.
func (a *API) scanCarried(ctx context.Context, tips map[uint64]*tip, out []found, first uint64, id, source string) ([]found, bool, error) {
	for _, t := range tips {
		for seq := uint64(0); ; {
			run, ok := a.deps.Machine.Carried(t.channel.Index, seq)
			if !ok || run.Position(run.First).Index >= first {
				break
			}
			if ctx.Err() != nil || len(out) == maxExplained {
				return out, false, nil
			}
			err := a.deps.Reader.Numbered(ctx, t.channel.Index, run.First, run.Location, nil, func(n logread.Numbered) bool {
				ev, err := n.Batch.Event(n.I)
				if err == nil && ev.ID == id && (source == "" || ev.Source == source) && n.Position().Index < first {
					out = append(out, found{channel: t.channel, pos: n.Position(), seq: n.Seq, stamp: n.Batch.StampOf(n.I), event: ev, readable: true})
				}
				return n.Seq < run.Last
			})
			var gone *logread.GoneError
			if err != nil && !errors.As(err, &gone) {
				return out, false, err
			}
			seq = run.Last + 1
		}
	}
	return out, true, nil
}
