package api

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/fsm/command"
	"penstock/internal/spec"
)

const orderSchema = `{"type":"object","required":["id"],"properties":{"id":{"type":"string"},"n":{"type":"integer"}}}`

func TestASchemaIsHeldAgainstTheData(t *testing.T) {
	s := newSurface(t)
	c := orders()
	c.Schema = spec.RawJSON(orderSchema)
	s.Put(c)
	const good, bad = `{"id":"a","n":228930314431312345}`, `{"id":"b","n":1.5}`
	ndjson := "Content-Type: application/x-ndjson"
	s.call("POST", ordersPath, good, "Content-Type: application/json").ok(nil)
	p := s.call("POST", ordersPath, good+"\n"+bad+"\n"+good, ndjson).problem(400, "bad-event")
	require.Equal(t, "data", p.Field)
	require.Equal(t, 1, *p.Ordinal)
	require.Contains(t, p.Detail, "at /n: got number, want integer")
	require.Equal(t, "no", p.Committed)
	for name, body := range map[string]string{"number": `{"id":"a","n":1e99999}`, "array": `[]`} {
		require.Equal(t, "data", s.call("POST", ordersPath, body, "Content-Type: application/json").problem(400, "bad-event").Field, name)
	}
	require.Contains(t, s.call("POST", ordersPath, "text", "Content-Type: text/plain", "ce-specversion: 1.0", "ce-id: 1", "ce-source: /s", "ce-type: t").
		problem(400, "bad-event").Detail, "is no JSON")
	require.Equal(t, uint64(1), accepted(t, s))

	c.OnInvalid = "poison"
	s.Put(c)
	var got ingestAnswer
	s.call("POST", ordersPath, good+"\n"+bad+"\n"+good, ndjson).ok(&got)
	require.Equal(t, uint32(3), got.Accepted)
	require.Equal(t, uint32(1), got.Poisoned)
}

func TestASchemaIsCompiledOncePerVersionOfTheSpec(t *testing.T) {
	s := newSurface(t)
	c := orders()
	c.Schema = spec.RawJSON(orderSchema)
	info := s.Put(c)
	first, err := s.api.schemas.of(info)
	require.NoError(t, err)
	again, _ := s.api.schemas.of(info)
	require.Same(t, first, again)
	c.Schema = spec.RawJSON(`{"type":"array"}`)
	next, _ := s.api.schemas.of(s.Put(c))
	require.NotSame(t, first, next)
	require.Len(t, s.api.schemas.mu.byChannel, 1)
	s.call("DELETE", "/v1/channels/orders", "").ok(nil)
	require.Empty(t, s.api.schemas.mu.byChannel)
}

// The batch was checked against a schema that changed before it was committed: it is checked again, under the new one.
func TestABatchUnderAnOldSchemaIsCheckedAnew(t *testing.T) {
	s := newSurface(t)
	c := orders()
	c.IDFrom = []string{"/id"}
	s.Put(c)
	s.BeforePropose = func(_ context.Context, cmd []byte) error {
		if kind, _, _ := command.Split(cmd); kind == command.KindBatch && len(c.Schema) == 0 {
			c.Schema, c.IDFrom = spec.RawJSON(orderSchema), []string{"/n"}
			s.Put(c)
		}
		return nil
	}
	s.call("POST", ordersPath, `{"id":7,"n":1}`, "Content-Type: application/json").problem(400, "bad-event")
	require.Zero(t, accepted(t, s))
	c.Schema, c.IDFrom = nil, []string{"/id"}
	s.Put(c)
	var got ingestAnswer
	s.call("POST", ordersPath+"?detail=1", `{"id":"x","n":1}`, "Content-Type: application/json").ok(&got)
	doc, err := spec.DecodeJSON([]byte(`{"n":1}`))
	require.NoError(t, err)
	want, err := spec.DeriveID(doc, []string{"/n"})
	require.NoError(t, err)
	require.Equal(t, want, got.Events[0].ID, "the id is that of the spec under which it was committed")
}

func TestIDsAreDerivedFromTheDataWhereTheProducerGivesNone(t *testing.T) { // L5
	s := newSurface(t)
	c := orders()
	c.Semantics, c.Dedup.Window, c.IDFrom = spec.ExactlyOnce, spec.Duration(7200e9), []string{"/order", "/version"}
	s.Put(c)
	send := func(body string, headers ...string) (got ingestAnswer) {
		s.call("POST", ordersPath+"?detail=1", body, append(headers, "Content-Type: application/json")...).ok(&got)
		return got
	}
	first := send(`{"order":"o1","version":1,"at":"08:00"}`)
	require.True(t, first.Events[0].Deduplicated)
	again := send(`{"at":"09:00","version":1,"order":"o1"}`)
	require.EqualValues(t, 1, again.Duplicates)
	require.True(t, again.Events[0].Conflict, "the same id with other content: the first wins, and that is said")
	require.Equal(t, first.Events[0].ID, again.Events[0].ID)
	require.EqualValues(t, 1, send(`{"order":"o1","version":2}`).Accepted)
	require.Equal(t, "mine/0", send(`{"order":"o1","version":1}`, "Idempotency-Key: mine").Events[0].ID, "a producer's id stays")
	p := s.call("POST", ordersPath, `{"order":"o1"}`, "Content-Type: application/json").problem(400, "bad-event")
	require.Equal(t, "id", p.Field)
	require.Contains(t, p.Detail, "/version is missing")

	c.OnInvalid = "poison"
	s.Put(c)
	s.call("POST", ordersPath, `{"order":"o1"}`, "Content-Type: application/json").problem(400, "bad-event")
	c.Semantics = spec.AtLeastOnce
	s.Put(c)
	got := send(`{"order":"o1"}`)
	require.EqualValues(t, 1, got.Poisoned)
	require.False(t, got.Events[0].Deduplicated)
}

func TestADryRunShowsTheDifferenceAndChangesNothing(t *testing.T) {
	s := newSurface(t)
	c := orders()
	c.Emitters = []spec.Emitter{hook("old")}
	info := s.Put(c)
	s.Send("orders", "a")
	type would struct {
		DryRun, Changed bool
		Version         uint64
		Changes         []spec.Change
		Refused         string
	}
	put := func(c spec.Channel, more string) (w would) {
		c.ApplyDefaults()
		s.call("PUT", "/v1/channels/"+url.PathEscape(c.Name)+"?dry_run=1"+more, string(c.Canonical())).ok(&w)
		return w
	}
	before, _ := s.Machine.Applied()
	require.False(t, put(c, "").Changed)
	next := c
	next.Emitters = []spec.Emitter{hook("new")}
	next.Dedup.MaxKeys = 5
	w := put(next, "")
	require.True(t, w.Changed)
	require.Contains(t, w.Refused, "emitter old has 1 pending")
	require.Empty(t, put(next, "&discard=1").Refused)
	text := fmt.Sprint(w.Changes)
	require.Contains(t, text, "+ emitters[new]")
	require.Contains(t, text, "- emitters[old]")
	require.Contains(t, text, "~ dedup.max_keys: 10000000 -> 5")
	fresh := orders()
	fresh.Name = "fresh"
	require.NotEmpty(t, put(fresh, "").Changes)
	bad := strings.Replace(string(next.Canonical()), `"park"`, `"no"`, 1)
	s.call("PUT", "/v1/channels/orders?dry_run=1", bad).problem(400, "bad-request")
	after, _ := s.Machine.Applied()
	require.Equal(t, before, after)
	now, _ := s.Machine.Channel("orders")
	require.Equal(t, info.Version, now.Version)
}
