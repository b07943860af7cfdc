package event

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// ParseHTTP reads one ingest request, in any content mode:
//
//	application/cloudevents-batch+json   a JSON array of CloudEvents; an empty one is a request with no events
//	application/cloudevents+json         one CloudEvent, structured mode
//	any type, with ce-* headers          one CloudEvent, binary mode; the body is its data
//	application/json, any +json          one event whose data is the whole body, of any JSON type
//	application/x-ndjson                 one event per line; empty lines are skipped
//
// The last two are wrapped with the source and type of the headers Penstock-Source and Penstock-Type (or ce-source and
// ce-type), else those of def, and with an id: K/ordinal when the request has an Idempotency-Key K, else one from newID,
// which marks the event as ServerID. On CloudEvents, which bring their ids, the Idempotency-Key has no effect.
//
// A request is all or nothing: on an error no event is returned. A refusal is an *Error; any other error is the
// connection's. The Data of the events alias one buffer that belongs to them.
func ParseHTTP(h http.Header, body io.Reader, lim Limits, def Defaults, newID func() string) ([]Event, error) {
	lim = lim.WithDefaults()
	m, contentType, refused := contentMode(h)
	if refused != nil {
		return nil, refused
	}
	limit, what := lim.BodyBytes, "body"
	if m != modeBatch && m != modeNDJSON && lim.EventBytes < limit { // the body is one event
		limit, what = lim.EventBytes, "event"
	}
	b, err := readBody(h, body, limit, what)
	if err != nil {
		return nil, err
	}
	var events []Event
	switch m {
	case modeBinary:
		events, refused = parseBinary(h, contentType, b, lim)
	case modeStructured:
		events, refused = parseStructured(b, lim)
	case modeBatch:
		events, refused = parseBatch(b, lim)
	case modeJSON, modeNDJSON:
		var w *wrapper
		if w, refused = newWrapper(h, def, newID); refused != nil {
			break
		}
		if m == modeJSON {
			events, refused = w.whole(b, contentType, lim)
		} else {
			events, refused = w.lines(b, lim)
		}
	}
	if refused != nil {
		return nil, refused
	}
	for i := range events {
		events[i].dropOwn()
	}
	return events, nil
}

func parseBinary(h http.Header, contentType string, body []byte, lim Limits) ([]Event, *Error) {
	var e Event
	var seen attributeSet
	specVersion := ""
	for header, values := range h {
		if !isAttributeHeader(header) {
			continue
		}
		value, err := oneHeader(header, values)
		if err != nil {
			return nil, err.of(0)
		}
		name := strings.ToLower(header[len("ce-"):])
		switch name {
		case "specversion":
			specVersion = value
			continue
		case "datacontenttype":
			return nil, refuse(BadEvent, header, "must not be sent in binary mode; Content-Type says it").of(0)
		}
		if err := e.setAttribute(name, value, ExtensionString, &seen); err != nil {
			return nil, err.of(0)
		}
	}
	e.DataContentType = contentType
	env := envelope{specVersion: specVersion}
	if err := env.check(); err != nil {
		err.Reason += " (header ce-specversion; its absence with other ce-* headers is no plain JSON either)"
		return nil, err.of(0)
	}
	if err := e.checkAttributes(); err != nil {
		return nil, err.of(0)
	}
	if err := e.takeBody(body, lim.Depth); err != nil {
		return nil, err.of(0)
	}
	return []Event{e}, nil
}

func parseStructured(b []byte, lim Limits) ([]Event, *Error) {
	s := scanner{b: b, depth: lim.Depth}
	events := make([]Event, 1)
	i, err := s.structured(s.space(0), &events[0])
	if err != nil {
		return nil, err.of(0)
	}
	if i = s.space(i); i < len(b) {
		s.unexpected(i, "the end of the body")
		return nil, s.refusal().of(0)
	}
	return events, nil
}

func parseBatch(b []byte, lim Limits) ([]Event, *Error) {
	s := scanner{b: b, depth: lim.Depth}
	i := s.space(0)
	if i >= len(b) || b[i] != '[' {
		s.unexpected(i, "a JSON array of CloudEvents")
		return nil, s.refusal()
	}
	events := []Event{}
	var refused *Error
	i = s.array(i, 1, func(start int) int {
		if len(events) >= lim.Events {
			refused = tooLarge(lim.Events, "more than the limit of %d events in one request", lim.Events).at(b, start)
			return s.fail(start, "refused")
		}
		events = append(events, Event{})
		end, err := s.structured(start, &events[len(events)-1])
		if err == nil && end-start > lim.EventBytes {
			err = tooLarge(lim.EventBytes, "the event is larger than the limit of %d bytes", lim.EventBytes).at(b, start)
		}
		if err != nil {
			refused = err.of(len(events) - 1)
			return s.fail(start, "refused")
		}
		return end
	})
	if refused != nil {
		return nil, refused
	}
	if s.err == nil {
		if i = s.space(i); i < len(b) {
			s.unexpected(i, "the end of the body")
		}
	}
	if s.err != nil {
		return nil, s.refusal().of(len(events))
	}
	return events, nil
}

// wrapper makes events of plain JSON.
type wrapper struct {
	base  Event // what all events of the request share
	key   string
	newID func() string
}

func newWrapper(h http.Header, def Defaults, newID func() string) (*wrapper, *Error) {
	w := &wrapper{base: Event{DataKind: DataJSON}, newID: newID}
	var seen attributeSet
	for _, a := range []struct{ name, ifAbsent string }{{"source", def.Source}, {"type", def.Type}} {
		value, header, err := firstHeader(h, "Penstock-"+a.name, "Ce-"+a.name)
		if err != nil {
			return nil, err
		}
		if value == "" {
			value = a.ifAbsent
		}
		if value == "" {
			return nil, refuse(BadEvent, a.name, "is required: neither the request nor the channel names one")
		}
		if err := w.base.setAttribute(a.name, value, ExtensionString, &seen); err != nil {
			err.Field = header
			return nil, err
		}
	}
	var err *Error
	w.key, err = idempotencyKey(h)
	return w, err
}

func (w *wrapper) wrap(data []byte, contentType string, ordinal int) Event {
	e := w.base
	e.Data, e.DataContentType = data, contentType
	if w.key != "" {
		e.ID = w.key + "/" + strconv.Itoa(ordinal)
	} else {
		e.ID, e.ServerID = w.newID(), true
	}
	return e
}

// whole makes one event of the body, white space around the value included.
func (w *wrapper) whole(b []byte, contentType string, lim Limits) ([]Event, *Error) {
	if bad := checkJSON(b, lim.Depth); bad != nil {
		return nil, refuse(BadEvent, "", "%s", bad.reason).at(b, bad.at).of(0)
	}
	return []Event{w.wrap(b, contentType, 0)}, nil
}

// lines makes one event of each line that holds more than white space. There is no limit of a line but that of an event.
func (w *wrapper) lines(b []byte, lim Limits) ([]Event, *Error) {
	events := make([]Event, 0, min(bytes.Count(b, []byte{'\n'})+1, lim.Events))
	for start := 0; start < len(b); {
		end := len(b)
		if n := bytes.IndexByte(b[start:], '\n'); n >= 0 {
			end = start + n
		}
		from, to := trimSpace(b, start, end)
		if from < to {
			ordinal := len(events)
			if ordinal >= lim.Events {
				return nil, tooLarge(lim.Events, "more than the limit of %d events in one request", lim.Events).at(b, from)
			}
			if to-from > lim.EventBytes {
				return nil, tooLarge(lim.EventBytes, "the line is larger than the limit of %d bytes for an event", lim.EventBytes).
					at(b, from).of(ordinal)
			}
			line := b[from:to:to]
			if bad := checkJSON(line, lim.Depth); bad != nil {
				return nil, refuse(BadEvent, "", "%s", bad.reason).at(b, from+bad.at).of(ordinal)
			}
			events = append(events, w.wrap(line, "application/json", ordinal))
		}
		start = end + 1
	}
	return events, nil
}

// trimSpace narrows [from, to) by the JSON white space at its ends.
func trimSpace(b []byte, from, to int) (int, int) {
	isSpace := func(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }
	for from < to && isSpace(b[from]) {
		from++
	}
	for from < to && isSpace(b[to-1]) {
		to--
	}
	return from, to
}
