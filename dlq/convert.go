package dlq

import (
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"penstock/event"
)

// line gives the JSON form, without the data.
func (r *Record) line() *line {
	l := &line{
		V: Version, ID: r.ID, State: r.State,
		Channel: r.Channel, Emitter: r.Emitter, ChannelIndex: r.ChannelIndex, EmitterIndex: r.EmitterIndex,
		Seq: r.Seq, Position: r.Position.String(), CompactionID: r.CompactionID, Owner: r.Owner, Epoch: r.Epoch,
		Class: r.Class, Status: r.Status, Cause: r.Cause, Reason: r.Reason, RedeliveryCount: r.RedeliveryCount,
		Limits:       lineLimits{TTL: r.Limits.TTL.String(), MaxAttempts: r.Limits.MaxAttempts, MaxRetries: r.Limits.MaxRetries},
		AttemptCount: r.AttemptCount, FirstFailedAt: optional(r.FirstFailedAt), LastFailedAt: optional(r.LastFailedAt),
		Event: eventLine(&r.Event),
	}
	if r.State == Poison {
		l.PoisonedAt = optional(r.At)
	} else {
		l.DeadLetteredAt = optional(r.At)
	}
	for _, a := range r.Attempts {
		t := lineTry{At: a.At.UTC(), Class: a.Class, Status: a.Status, Error: a.Error}
		if utf8.Valid(a.Response) {
			t.Response = string(a.Response)
		} else {
			t.ResponseBase64 = a.Response
		}
		l.Attempts = append(l.Attempts, t)
	}
	return l
}

func eventLine(e *event.Event) lineEvent {
	l := lineEvent{
		ID: e.ID, Source: e.Source, Type: e.Type, Subject: e.Subject, Time: e.Time,
		DataContentType: e.DataContentType, DataSchema: e.DataSchema, ServerID: e.ServerID,
	}
	if int(e.DataKind) < len(dataKinds) {
		l.DataKind = dataKinds[e.DataKind]
	}
	for _, x := range e.Extensions {
		l.Extensions = append(l.Extensions, lineExtension(x))
	}
	return l
}

// record checks the JSON form and gives the record.
func (l *line) record() (Record, error) {
	r := Record{
		ID: l.ID, State: l.State, Channel: l.Channel, Emitter: l.Emitter,
		ChannelIndex: l.ChannelIndex, EmitterIndex: l.EmitterIndex, Seq: l.Seq,
		CompactionID: l.CompactionID, Owner: l.Owner, Epoch: l.Epoch,
		Class: l.Class, Status: l.Status, Cause: l.Cause, Reason: l.Reason, RedeliveryCount: l.RedeliveryCount,
		AttemptCount: l.AttemptCount, FirstFailedAt: value(l.FirstFailedAt), LastFailedAt: value(l.LastFailedAt),
	}
	switch l.State {
	case Dead:
		r.At = value(l.DeadLetteredAt)
	case Poison:
		r.At = value(l.PoisonedAt)
	default:
		return Record{}, fmt.Errorf("dead letter: state %q", l.State)
	}
	if l.ID == "" {
		return Record{}, errors.New("dead letter: no id")
	}
	var err error
	if r.Position, err = event.ParsePosition(l.Position); err != nil {
		return Record{}, fmt.Errorf("dead letter: %w", err)
	}
	ttl, err := time.ParseDuration(l.Limits.TTL)
	if err != nil {
		return Record{}, fmt.Errorf("dead letter: limits: %w", err)
	}
	r.Limits = Limits{TTL: ttl, MaxAttempts: l.Limits.MaxAttempts, MaxRetries: l.Limits.MaxRetries}
	for _, t := range l.Attempts {
		a := Attempt{At: t.At, Class: t.Class, Status: t.Status, Error: t.Error, Response: t.ResponseBase64}
		if t.Response != "" {
			a.Response = []byte(t.Response)
		}
		r.Attempts = append(r.Attempts, a)
	}
	r.Event, err = l.event()
	return r, err
}

func (l *line) event() (event.Event, error) {
	kind := slices.Index(dataKinds[:], l.Event.DataKind)
	if kind < 0 {
		return event.Event{}, fmt.Errorf("dead letter: data kind %q", l.Event.DataKind)
	}
	x := &l.Event
	e := event.Event{
		ID: x.ID, Source: x.Source, Type: x.Type, Subject: x.Subject, Time: x.Time,
		DataContentType: x.DataContentType, DataSchema: x.DataSchema, ServerID: x.ServerID,
		DataKind: event.DataKind(kind), Data: l.Data,
	}
	if l.DataBase64 != nil {
		e.Data = *l.DataBase64
	}
	for _, x := range l.Event.Extensions {
		e.Extensions = append(e.Extensions, event.Extension(x))
	}
	return e, nil
}

func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func value(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
