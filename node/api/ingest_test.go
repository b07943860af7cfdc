package api

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/cluster"
	"penstock/fsm/command"
	"penstock/internal/spec"
	"penstock/node/internal/testbed"
	"penstock/wal"
)

const ordersPath = "/v1/channels/orders/events"

// Every way a proposal can end has one answer, and the answer says what is known of its effect (P7, case B43).
func TestEveryOutcomeOfAProposalHasItsOwnAnswer(t *testing.T) {
	no, unknown := cluster.NotCommitted, cluster.Unknown
	for _, c := range []struct {
		outcome   cluster.Outcome
		reason    cluster.Reason
		status    int
		kind      string
		committed string
	}{
		{no, cluster.ReasonNoLeader, 503, "no-leader", "no"},
		{no, cluster.ReasonOverloaded, 429, "overloaded", "no"},
		{no, cluster.ReasonDeadline, 503, "not-committed", "no"},
		{no, cluster.ReasonShutdown, 503, "shutting-down", "no"},
		{no, cluster.ReasonTooLarge, 413, "too-large", "no"},
		{no, cluster.ReasonInternal, 503, "not-committed", "no"},
		{unknown, cluster.ReasonDeadline, 504, "unknown-outcome", "unknown"},
		{unknown, cluster.ReasonLeadershipLost, 504, "unknown-outcome", "unknown"},
		{unknown, cluster.ReasonConnection, 504, "unknown-outcome", "unknown"},
		{unknown, cluster.ReasonShutdown, 504, "unknown-outcome", "unknown"},
		{unknown, cluster.ReasonStorage, 504, "unknown-outcome", "unknown"},
		{unknown, cluster.ReasonInternal, 504, "unknown-outcome", "unknown"},
		{unknown, cluster.ReasonOverloaded, 504, "unknown-outcome", "unknown"}, // the outcome decides, not the reason
	} {
		t.Run(fmt.Sprintf("%s %s", c.outcome, c.reason), func(t *testing.T) {
			s := newSurface(t)
			s.Put(orders())
			s.BeforePropose = func(context.Context, []byte) error {
				return fmt.Errorf("wrapped: %w", &cluster.ProposeError{Outcome: c.outcome, Reason: c.reason, Err: errors.New("x")})
			}
			p := s.call("POST", ordersPath, batch("a"), batchType).problem(c.status, c.kind)
			require.Equal(t, c.committed, p.Committed)
			for _, change := range []answer{
				s.call("PUT", "/v1/channels/new", `{"semantics":"at-least-once","order":"none"}`),
				s.call("DELETE", "/v1/channels/orders", ""),
			} {
				require.Equal(t, c.committed, change.problem(c.status, c.kind).Committed)
			}
		})
	}
	t.Run("any other error", func(t *testing.T) {
		s := newSurface(t)
		s.Put(orders())
		s.BeforePropose = func(context.Context, []byte) error { return errors.New("who knows") }
		require.Equal(t, "unknown", s.call("POST", ordersPath, batch("a"), batchType).problem(504, "unknown-outcome").Committed)
	})
}

func TestARetryOfAnUnknownOutcomeIsStoredOnce(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	lost := &cluster.ProposeError{Outcome: cluster.Unknown, Reason: cluster.ReasonConnection}
	s.AfterPropose = func([]byte) error { return lost }
	s.call("POST", ordersPath, batch("a"), batchType).problem(504, "unknown-outcome")
	s.AfterPropose = nil
	var again ingestAnswer
	s.call("POST", ordersPath, batch("a"), batchType).ok(&again)
	require.Equal(t, uint32(0), again.Accepted)
	require.Equal(t, uint32(1), again.Duplicates)
}

func TestAnswerSaysWhereEachEventIs(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	var first, second ingestAnswer
	s.call("POST", ordersPath+"?detail=1", batch("a=1", "b=1", "a=1"), batchType).ok(&first)
	require.Equal(t, uint32(2), first.Accepted)
	require.Equal(t, uint32(1), first.Duplicates)
	require.Len(t, first.Events, 3)
	require.Equal(t, first.Events[0].Position, *first.Events[2].DuplicateOf, "a duplicate within the request")
	require.Equal(t, first.Events[0].Position, first.Events[2].Position, "the position of a repeated event is that of the first")

	s.call("POST", ordersPath+"?detail=1", batch("c=1", "b=2"), batchType).ok(&second)
	require.Nil(t, second.Events[0].DuplicateOf)
	require.Equal(t, second.Index, second.Events[0].Position.Index)
	require.Equal(t, first.Events[1].Position, *second.Events[1].DuplicateOf)
	require.Equal(t, first.Events[1].Position, second.Events[1].Position)
	require.True(t, second.Events[1].Conflict, "the same id with other content")
	require.True(t, second.Events[1].Deduplicated)

	var made ingestAnswer
	s.call("POST", ordersPath+"?detail=1", `{"x":1}`, "Content-Type: application/json").ok(&made)
	require.False(t, made.Events[0].Deduplicated, "an id that the server made")
	var plain ingestAnswer
	s.call("POST", ordersPath, batch("z"), batchType).ok(&plain)
	require.Empty(t, plain.Events)
}

func TestBadEventsAreNamedExactly(t *testing.T) {
	s := newSurface(t, func(c *Config) { c.Limits.EventBytes, c.Limits.BodyBytes = 2000, 4000 })
	s.Put(orders())
	for name, c := range map[string]struct{ body, contentType string }{
		"ndjson":        {"{\"a\":1}\n{\"b\":2}\n  {\"c\":}\n", "application/x-ndjson"},
		"batch":         {"[\n{\"specversion\":\"1.0\",\"id\":\"1\",\"source\":\"/s\",\"type\":\"t\"},\n {\"specversion\":\"1.0\",\"id\":\"2\",\"type\":\"t\"}]", "application/cloudevents-batch+json"},
		"structured":    {`{"specversion":"1.0","id":"","source":"/s","type":"t"}`, "application/cloudevents+json"},
		"json":          {"{\n  \"a\": tru\n}", "application/json"},
		"too-large":     {`"` + strings.Repeat("x", 3000) + `"`, "application/json"},
		"media-type":    {"<a/>", "text/xml"},
		"not-encodable": {"x", "application/json"},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.call("POST", ordersPath, c.body, "Content-Type: "+c.contentType)
			require.Equal(t, "application/problem+json", a.header.Get("Content-Type"))
			require.Contains(t, a.body, `"committed":"no"`)
			golden(t, "problem-"+name+".json", a.body)
		})
	}
	require.Zero(t, accepted(t, s), "all or nothing")
}

func accepted(t *testing.T, s *surface) uint64 {
	t.Helper()
	ch, ok := s.Machine.Channel("orders")
	require.True(t, ok)
	return ch.Accepted
}

// golden compares with testdata; UPDATE=1 writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	var indented bytes.Buffer
	require.NoError(t, json.Indent(&indented, []byte(got), "", "  "))
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, indented.Bytes(), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), indented.String())
}

func TestTypesAreHeldAgainstTheSpec(t *testing.T) {
	s := newSurface(t)
	c := orders()
	c.Types = []string{"t"}
	s.Put(c)
	body := strings.Replace(batch("a", "b"), `"type":"t"`, `"type":"other"`, 1)
	p := s.call("POST", ordersPath, body, batchType).problem(400, "bad-event")
	require.Equal(t, "type", p.Field)
	require.Equal(t, 0, *p.Ordinal)

	c.OnInvalid = "poison"
	s.Put(c)
	var got ingestAnswer
	s.call("POST", ordersPath, body, batchType).ok(&got)
	require.Equal(t, uint32(2), got.Accepted)
	require.Equal(t, uint32(1), got.Poisoned)
}

func TestExactlyOnceTakesOnlyProducersIDs(t *testing.T) {
	s := newSurface(t)
	c := orders()
	c.Semantics = spec.ExactlyOnce
	c.Dedup.Window = spec.Duration(7200e9)
	s.Put(c)
	p := s.call("POST", ordersPath, `{}`, "Content-Type: application/json").problem(400, "bad-event")
	require.Equal(t, "id", p.Field)
	s.call("POST", ordersPath, `{}`, "Content-Type: application/json", "Idempotency-Key: k").ok(nil)
}

func TestABatchUnderAnOldSpecIsValidatedAnew(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	proposals, changes := 0, 1
	s.BeforePropose = func(_ context.Context, cmd []byte) error {
		if kind, _, _ := command.Split(cmd); kind == command.KindBatch {
			proposals++
			if proposals <= changes {
				c := orders()
				c.Dedup.MaxKeys = 1000*changes + proposals
				s.Put(c)
			}
		}
		return nil
	}
	s.call("POST", ordersPath, batch("a"), batchType).ok(nil)
	require.Equal(t, 2, proposals)

	proposals, changes = 0, 100
	p := s.call("POST", ordersPath, batch("b"), batchType).problem(503, "not-committed")
	require.Equal(t, "no", p.Committed)
	require.Equal(t, staleSpecRetries, proposals, "it does not go on for ever")
	require.Equal(t, uint64(1), accepted(t, s))
}

func TestAdmissionRefusesAtOnceAndGivesBackWhatItHeld(t *testing.T) {
	s := newSurface(t, func(c *Config) {
		c.InFlight, c.InFlightBytes = 2, 10_000
		c.Limits.BodyBytes, c.Limits.EventBytes = 10_000, 10_000
	})
	s.Put(orders())
	require.True(t, s.api.admit.enter(9_000))
	p := s.call("POST", ordersPath, batch(strings.Repeat("x", 2000)), batchType).problem(429, "overloaded")
	require.Equal(t, "no", p.Committed)
	s.call("POST", ordersPath, batch("small"), batchType).ok(nil)
	require.True(t, s.api.admit.enter(0))
	s.call("POST", ordersPath, batch("a"), batchType).problem(429, "overloaded")
	s.api.admit.leave(0)
	s.api.admit.leave(9_000)

	for _, body := range []string{batch("b"), "[", batch("b"), ""} {
		s.call("POST", ordersPath, body, batchType)
		s.call("POST", ordersPath, zipped(t, body), batchType, "Content-Encoding: gzip")
	}
	require.Zero(t, s.api.admit.mu.requests)
	require.Zero(t, s.api.admit.mu.bytes)
}

func zipped(t *testing.T, body string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(body))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.String()
}

// A compressed body is counted as the most it may be only while it is read: small ones must not shut the others out for as
// long as their commit takes.
func TestACompressedBodyIsCountedAsWhatItTurnsOutToBe(t *testing.T) {
	s := newSurface(t, func(c *Config) { c.InFlightBytes = int64(c.Limits.BodyBytes) })
	s.Put(orders())
	var during int64
	s.BeforePropose = func(context.Context, []byte) error {
		s.api.admit.mu.Lock()
		defer s.api.admit.mu.Unlock()
		during = s.api.admit.mu.bytes
		return nil
	}
	s.call("POST", ordersPath, zipped(t, batch("a")), batchType, "Content-Encoding: gzip").ok(nil)
	require.Positive(t, during)
	require.Less(t, during, int64(1000))
	require.Zero(t, s.api.admit.mu.bytes)
}

func TestTimeoutIsTheClientsWithinTheNodes(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	for _, bad := range []string{"5", "-1s", "0s", "soon"} {
		p := s.call("POST", ordersPath+"?timeout="+bad, batch("a"), batchType).problem(400, "bad-request")
		require.Equal(t, "no", p.Committed)
	}
	s.BeforePropose = func(ctx context.Context, _ []byte) error {
		deadline, ok := ctx.Deadline()
		require.True(t, ok)
		require.LessOrEqual(t, deadline.Sub(deadline.Round(0)), s.api.config().Timeout)
		return nil
	}
	s.call("POST", ordersPath+"?timeout=10h", batch("a"), batchType).ok(nil)
	s.call("POST", ordersPath+"?timeout=1s", batch("b"), batchType).ok(nil)
}

func TestSourceOffsetsAreCommittedWithTheEvents(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	for _, bad := range []string{"?source=s", "?partition=p", "?source=s&offset=x", "?offset=1:1", "?source=" + strings.Repeat("s", 257) + "&offset=1:1"} {
		s.call("POST", ordersPath+bad, batch("a"), batchType).problem(400, "bad-request")
	}
	s.get("/v1/channels/orders/offsets/s/p").problem(404, "not-found")
	s.call("POST", ordersPath+"?source=s&partition=p&offset=7:2", batch("a"), batchType).ok(nil)
	s.call("POST", ordersPath+"?source=s&partition=p&offset=5:3:closed", "[]", batchType).ok(nil)
	var o offsetAnswer
	s.get("/v1/channels/orders/offsets/s/p").ok(&o)
	require.Equal(t, offsetAnswer{Source: "s", Partition: "p", Position: 7, Record: 3, Closed: true,
		Hex: "070000000000000003000000000000000100000000000000"}, o)
	var list struct{ Offsets []offsetAnswer }
	s.get("/v1/channels/orders/offsets").ok(&list)
	require.Equal(t, []offsetAnswer{o}, list.Offsets)
	s.get("/v1/channels/none/offsets/s/p").problem(404, "no-such-channel")
	s.get("/v1/channels/none/offsets").problem(404, "no-such-channel")
	require.Equal(t, uint64(1), accepted(t, s))

	s.call("POST", ordersPath+"?source=%2Fa%2Fb&partition=&offset=1:1", batch("c"), batchType).ok(nil)
	s.get("/v1/channels/orders/offsets").ok(&list)
	require.Equal(t, "/a/b", list.Offsets[0].Source)
}

func TestOffsetsAreLinearizableUnlessStaleIsAskedFor(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	s.call("POST", ordersPath+"?source=s&partition=p&offset=7:2", batch("a"), batchType).ok(nil)
	s.ReadIndexError = errors.New("nobody leads")
	s.get("/v1/channels/orders/offsets/s/p").problem(503, "no-leader")
	s.get("/v1/channels/orders/offsets/s/p?stale=1").ok(nil)
	s.get("/v1/channels/orders/ledger").problem(503, "no-leader")
	s.get("/v1/channels/orders/ledger?stale=1").ok(nil)
}

func TestNoNewEventsWhileTooMuchIsUndelivered(t *testing.T) {
	s := newSurface(t)
	c := orders()
	c.Emitters = []spec.Emitter{hook("billing")}
	c.Retention.MaxUnresolved = 1 << 20
	s.Put(c)
	big := strings.Repeat("x", 300_000)
	for i := range 4 {
		s.call("POST", ordersPath, fmt.Sprintf("%q", big+fmt.Sprint(i)), "Content-Type: application/json").ok(nil)
	}
	p := s.call("POST", ordersPath, batch("a"), batchType).problem(429, "overloaded")
	require.Contains(t, p.Detail, "billing")
	require.Equal(t, "no", p.Committed)
}

// fullDisk is a log whose file system is nearly full.
type fullDisk struct{ testbed.Log }

func (fullDisk) Stats() wal.Stats { return wal.Stats{LowWater: true, FreeBytes: 1} }

func TestANearlyFullDiskTakesNoNewEvents(t *testing.T) {
	b := testbed.New(t)
	b.Log = fullDisk{b.Log}
	s := surfaceOn(t, b)
	s.Put(orders())
	p := s.call("POST", ordersPath, batch("a"), batchType).problem(507, "storage-full")
	require.Equal(t, "no", p.Committed)
	s.get("/v1/channels/orders/ledger").ok(nil)
}

func TestARequestWithoutEventsChangesNothing(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	before, _ := s.Machine.Applied()
	var got ingestAnswer
	s.call("POST", ordersPath, "[]", batchType).ok(&got)
	require.Equal(t, ingestAnswer{Index: before}, got)
	after, _ := s.Machine.Applied()
	require.Equal(t, before, after)
}

// boundedLog is a log that holds as much as it may.
type boundedLog struct{ testbed.Log }

func (boundedLog) Stats() wal.Stats { return wal.Stats{RetainedBytes: 8 << 20, MaxBytes: 8 << 20} }

func TestALogAtItsBoundTakesNoNewEvents(t *testing.T) {
	b := testbed.New(t)
	b.Log = boundedLog{b.Log}
	s := surfaceOn(t, b)
	s.Put(orders())
	p := s.call("POST", ordersPath, batch("a"), batchType).problem(507, "storage-full")
	require.Contains(t, p.Detail, "wal.max_bytes")
}
