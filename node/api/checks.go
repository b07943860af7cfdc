package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"penstock/event"
	"penstock/fsm"
	"penstock/internal/spec"
)

// schemas are the compiled schemas of the channels, one each: that of the version that was asked for last. Its size is bounded by the
// number of channels.
type schemas struct {
	mu struct {
		sync.Mutex
		byChannel map[uint64]compiledSchema
	}
}

type compiledSchema struct {
	version uint64
	schema  *spec.Schema
	err     error
}

// of compiles the channel's schema, once per version of its spec; nil without one.
func (s *schemas) of(ch fsm.ChannelInfo) (*spec.Schema, error) {
	if len(ch.Spec.Schema) == 0 {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.mu.byChannel[ch.Index]
	if !ok || c.version != ch.Version {
		c.version = ch.Version
		c.schema, c.err = spec.CompileSchema(ch.Spec.Schema)
		if s.mu.byChannel == nil {
			s.mu.byChannel = map[uint64]compiledSchema{}
		}
		s.mu.byChannel[ch.Index] = c
	}
	return c.schema, c.err
}

// forget drops the schemas of channels that are gone.
func (s *schemas) forget(there func(index uint64) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for index := range s.mu.byChannel {
		if !there(index) {
			delete(s.mu.byChannel, index)
		}
	}
}

// withoutID are the ordinals of the events that came without a producer's id.
func withoutID(events []event.Event) (made []int) {
	for i := range events {
		if events[i].ServerID {
			made = append(made, i)
		}
	}
	return made
}

// validate holds the events against the channel's spec, and gives those that came without an id, which made lists, the one that
// id_from derives. poison marks those that on_invalid: poison keeps all the same; nil when there are none. It may be called again
// for the same events under a newer spec.
func (a *API) validate(ctx context.Context, ch fsm.ChannelInfo, events []event.Event, made []int) (poison []bool, prob *problem) {
	schema, err := a.schemas.of(ch)
	if err != nil { // made by a node of another version
		return nil, newProblem(http.StatusInternalServerError, kindInternal, "the channel's schema cannot be used", err.Error()).notCommitted()
	}
	for i := range events {
		if i%64 == 63 && ctx.Err() != nil {
			return nil, newProblem(http.StatusServiceUnavailable, kindNotCommitted, "out of time", "the deadline passed while the events were checked").notCommitted()
		}
		e := &events[i]
		_, without := slices.BinarySearch(made, i)
		e.ServerID = e.ServerID || without
		field, reason := invalid(ch, schema, e)
		if ch.Spec.Semantics == spec.ExactlyOnce && e.ServerID {
			if field != "id" {
				field, reason = "id", "an exactly-once channel takes only events with a producer's id"
			}
			return nil, badEvent(i, field, reason)
		}
		if field == "" {
			continue
		}
		if ch.Spec.OnInvalid != "poison" {
			return nil, badEvent(i, field, reason)
		}
		if poison == nil {
			poison = make([]bool, len(events))
		}
		poison[i] = true
	}
	return poison, nil
}

// invalid says in which field an event does not meet the spec, and why; "" when it does. It derives the event's id.
func invalid(ch fsm.ChannelInfo, schema *spec.Schema, e *event.Event) (field, reason string) {
	derive := len(ch.Spec.IDFrom) > 0 && e.ServerID
	var doc any
	if derive || schema != nil {
		var err error
		if e.DataKind != event.DataJSON {
			field, reason = "data", "is no JSON, which the channel's schema or id_from asks for"
		} else if doc, err = spec.DecodeJSON(e.Data); err != nil {
			field, reason = "data", err.Error()
		}
	}
	if derive && field == "" {
		id, err := spec.DeriveID(doc, ch.Spec.IDFrom)
		if err != nil {
			return "id", "cannot be derived from the data: " + err.Error()
		}
		e.ID, e.ServerID = id, false
	}
	switch {
	case field != "":
	case len(ch.Spec.Types) > 0 && !slices.Contains(ch.Spec.Types, e.Type):
		return "type", fmt.Sprintf("type %.128q is not among the channel's types", e.Type)
	case schema != nil:
		if err := schema.Check(doc); err != nil {
			return "data", "does not satisfy the channel's schema: " + err.Error()
		}
	}
	return field, reason
}
