package api

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/emit"
	"penstock/event"
	"penstock/fsm"
	"penstock/fsm/command"
	"penstock/internal/spec"
	"penstock/node/internal/testbed"
)

func (s *surface) explain(id string) []explained {
	s.t.Helper()
	var out explainAnswer
	s.get("/v1/events/" + id).ok(&out)
	require.False(s.t, out.Incomplete)
	return out.Events
}

// delivery is the one delivery of the one event with that id.
func (s *surface) delivery(id string) deliveryExplained {
	s.t.Helper()
	events := s.explain(id)
	require.Len(s.t, events, 1)
	require.Len(s.t, events[0].Deliveries, 1)
	return events[0].Deliveries[0]
}

// hooked is a surface with a channel of one webhook emitter, owned by n1.
func hooked(t *testing.T, change func(*spec.Channel)) (*surface, fsm.EmitterInfo) {
	s := newSurface(t)
	c := orders()
	c.Emitters = []spec.Emitter{hook("billing")}
	if change != nil {
		change(&c)
	}
	s.Put(c)
	return s, s.Own(s.Emitter("orders", "billing"), "n1")
}

func outcome(kind command.OutcomeKind, seq uint64, at time.Time) command.Outcome {
	return command.Outcome{First: seq, Last: seq, Kind: kind, Attempts: 1, At: at.UnixNano()}
}

func failed(seq uint64, at time.Time, class command.Class) command.Outcome {
	o := outcome(command.Failed, seq, at)
	o.Class, o.Status, o.Reason = class, 503, "busy"
	return o
}

func TestExplainFollowsADeliveryToItsEnd(t *testing.T) {
	s, em := hooked(t, nil)
	r := s.Send("orders", "a", "b")
	at := s.Now()

	d := s.delivery("a")
	require.Equal(t, "pending", d.State)
	require.Equal(t, "n1 sends it in turn", d.Next)
	p := event.Position{Index: r.Index, Ordinal: r.FirstOrdinal}
	require.Equal(t, s.Machine.CompactionID(em.ChannelIndex, em.EmitterIndex, p, p), d.CompactionID)
	id := d.CompactionID

	require.Equal(t, command.OK, s.Report(em, failed(1, at, command.ClassTransient)))
	d = s.delivery("a")
	require.Equal(t, "pending", d.State)
	require.EqualValues(t, 1, d.Attempts)
	require.Equal(t, "transient", d.LastClass)
	require.Equal(t, 503, d.LastStatus)
	require.Equal(t, "busy", d.LastReason)
	due, err := time.Parse(time.RFC3339Nano, d.NextAttempt)
	require.NoError(t, err)
	wait := emit.Backoff(em.Spec.Retry, emit.Seed(em.ChannelIndex, em.EmitterIndex, 1), 1)
	require.Equal(t, at.Add(wait).UTC(), due, "what the owner reckons with")
	require.Contains(t, d.Next, "n1 tries again; given up after ")

	require.Equal(t, command.OK, s.Report(em, outcome(command.Delivered, 1, at.Add(time.Second))))
	d = s.delivery("a")
	require.Equal(t, "delivered", d.State)
	require.EqualValues(t, 2, d.Attempts, "the failed ones count too")
	require.Equal(t, id, d.CompactionID, "the id never changes (I6)")
	require.Empty(t, d.LastClass)
	require.Equal(t, "pending", s.delivery("b").State)
}

func TestExplainShowsDeadLettersAndPoison(t *testing.T) {
	s, em := hooked(t, nil)
	r := s.Send("orders", "a", "b")
	for i, kind := range []command.OutcomeKind{command.Dead, command.Poison} {
		o := outcome(kind, uint64(i+1), s.Now())
		o.Class, o.Status, o.Reason = command.ClassPermanent, 410, "gone"
		o.Positions = []event.Position{{Index: r.Index, Ordinal: uint32(i)}}
		require.Equal(t, command.OK, s.Report(em, o))
	}
	d := s.delivery("a")
	require.Equal(t, "dead", d.State)
	require.Equal(t, fsm.DeadLetterID(em.ChannelIndex, em.EmitterIndex, event.Position{Index: r.Index}), d.DeadLetterID)
	require.Equal(t, 410, d.LastStatus)
	require.Contains(t, d.Next, "n1")
	require.Equal(t, "poison", s.delivery("b").State)

	var list struct {
		DeadLetters []deadLetterAnswer `json:"dead_letters"`
	}
	s.get("/v1/dlq").ok(&list)
	require.Len(t, list.DeadLetters, 2)
	s.get("/v1/dlq?state=poison&channel=orders&emitter=billing").ok(&list)
	require.Len(t, list.DeadLetters, 1)
	s.get("/v1/dlq?channel=none").ok(&list)
	require.Empty(t, list.DeadLetters)
	s.get("/v1/dlq?state=lost").problem(400, "bad-request")
	var one deadLetterAnswer
	s.get("/v1/dlq/" + d.DeadLetterID).ok(&one)
	require.Equal(t, "dead", one.State)
	s.get("/v1/dlq/none").problem(404, "not-found")

	require.Equal(t, command.OK, s.Report(em, outcome(command.Discarded, 1, s.Now())))
	d = s.delivery("a")
	require.Equal(t, "discarded", d.State)
	var gone resolvedAnswer
	s.get("/v1/dlq/" + fsm.DeadLetterID(em.ChannelIndex, em.EmitterIndex, event.Position{Index: r.Index})).ok(&gone)
	require.Equal(t, "discarded", gone.State, "what became of it is remembered for a while")
}

func TestExplainSaysWhyNothingHappens(t *testing.T) {
	s, em := hooked(t, nil)
	s.Send("orders", "a")
	require.Equal(t, command.OK, s.Report(em, failed(1, s.Now(), command.ClassAuth)))
	s.Commit(command.EmitterPause{ChannelIndex: em.ChannelIndex, EmitterIndex: em.EmitterIndex, Paused: true})
	d := s.delivery("a")
	require.Equal(t, "the emitter is paused", d.Next)
	require.Equal(t, "auth", d.LastClass, "what was tried is shown all the same")
	require.Empty(t, d.NextAttempt)
	s.Own(s.Emitter("orders", "billing"), "")
	d = s.delivery("a")
	require.Equal(t, "it waits for the emitter to be given an owner", d.Next)
	require.EqualValues(t, 1, d.Attempts)
}

func TestExplainNamesAnOpenCompaction(t *testing.T) {
	s, _ := hooked(t, func(c *spec.Channel) {
		c.Emitters[0].Compaction = spec.Compaction{Events: 100, Linger: spec.Duration(time.Minute)}
	})
	s.Send("orders", "a")
	d := s.delivery("a")
	require.Contains(t, d.Next, "its compaction is still open: it closes at 100 events")
	require.Empty(t, d.CompactionID)
}

func TestExplainOfAnEventBeforeTheEmittersStart(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	s.Send("orders", "a")
	c := orders()
	c.Emitters = []spec.Emitter{hook("late")}
	s.Put(c)
	require.Equal(t, "not-started", s.delivery("a").State)
}

func TestExplainOfAtMostOnce(t *testing.T) {
	s, em := hooked(t, func(c *spec.Channel) { c.Semantics = spec.AtMostOnce })
	s.Send("orders", "a")
	require.Equal(t, "n1 sends it in turn", s.delivery("a").Next)
	announced := outcome(command.Attempted, 1, s.Now())
	announced.Attempts = 0
	require.Equal(t, command.OK, s.Report(em, announced))
	require.Contains(t, s.delivery("a").Next, "has begun its only attempt")
	require.Equal(t, command.OK, s.Report(em, outcome(command.Lost, 1, s.Now())))
	require.Equal(t, "lost", s.delivery("a").State)
}

// The last attempt is made when the ttl ends, not a whole backoff after it.
func TestNextAttemptIsClampedToTheTTL(t *testing.T) {
	s, em := hooked(t, func(c *spec.Channel) {
		c.Emitters[0].Retry = spec.Retry{TTL: spec.Duration(time.Minute), Backoff: spec.Backoff{Min: spec.Duration(10 * time.Second), Max: spec.Duration(time.Hour)}}
	})
	s.Send("orders", "a")
	first := s.Now()
	for _, after := range []time.Duration{0, 20 * time.Second, 45 * time.Second} {
		require.Equal(t, command.OK, s.Report(em, failed(1, first.Add(after), command.ClassTransient)))
	}
	due, err := time.Parse(time.RFC3339Nano, s.delivery("a").NextAttempt)
	require.NoError(t, err)
	require.Equal(t, first.Add(time.Minute), due)
	require.Equal(t, command.OK, s.Report(em, failed(1, first.Add(55*time.Second), command.ClassTransient)))
	due, err = time.Parse(time.RFC3339Nano, s.delivery("a").NextAttempt)
	require.NoError(t, err)
	require.Equal(t, first.Add(65*time.Second), due, "never sooner than the least backoff")
}

func TestAParkedKeyIsTriedAtTheSlowestPace(t *testing.T) {
	s, em := hooked(t, func(c *spec.Channel) {
		c.Order = spec.OrderTotal
		c.Emitters[0].Retry = spec.Retry{MaxAttempts: 2, Backoff: spec.Backoff{Min: spec.Duration(time.Second), Max: spec.Duration(time.Hour)}}
	})
	s.Send("orders", "a", "b")
	first := s.Now()
	require.Equal(t, command.OK, s.Report(em, failed(1, first, command.ClassTransient)))
	require.NotContains(t, s.delivery("a").Next, "parked")
	require.Contains(t, s.delivery("a").Next, "given up after 2 attempts")
	require.Equal(t, command.OK, s.Report(em, failed(1, first.Add(time.Second), command.ClassTransient)))
	d := s.delivery("a")
	require.Contains(t, d.Next, "parked")
	due, err := time.Parse(time.RFC3339Nano, d.NextAttempt)
	require.NoError(t, err)
	require.GreaterOrEqual(t, due.Sub(first), 59*time.Minute)
	require.Contains(t, s.delivery("b").Next, "behind what stands before it under order total")
}

// An outcome of an old epoch stands in the log, but the state machine refused it: explain must not believe it.
func TestOutcomesOfAnOldEpochAreNotBelieved(t *testing.T) {
	s, old := hooked(t, nil)
	r := s.Send("orders", "a")
	now := s.Own(old, "n2")
	require.Equal(t, command.StaleEpoch, s.Report(old, outcome(command.Delivered, 1, s.Now())))
	require.Equal(t, "pending", s.delivery("a").State)
	dead := outcome(command.Dead, 1, s.Now())
	dead.Positions = []event.Position{{Index: r.Index}}
	require.Equal(t, command.OK, s.Report(now, dead))
	require.Equal(t, command.OK, s.Report(now, outcome(command.Discarded, 1, s.Now())))
	require.Equal(t, "discarded", s.delivery("a").State)
}

func TestExplainFindsWhatTheServerNamed(t *testing.T) {
	s, em := hooked(t, nil)
	var sent ingestAnswer
	s.call("POST", ordersPath+"?detail=1", `{"x":1}`, "Content-Type: application/json").ok(&sent)
	require.Equal(t, command.OK, s.Report(em, outcome(command.Delivered, 1, s.Now())))
	e := s.explain(sent.Events[0].ID)
	require.Len(t, e, 1)
	require.Equal(t, sent.Events[0].Position, e[0].Position)
	require.True(t, e[0].Readable)
	require.Equal(t, "delivered", e[0].Deliveries[0].State)
}

func TestTheSameIDInSeveralChannelsAndSources(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	other := orders()
	other.Name = "other"
	s.Put(other)
	s.call("POST", ordersPath, batch("a"), batchType).ok(nil)
	s.Send("orders", "a") // source /bed
	s.Send("other", "a")
	require.Len(t, s.explain("a"), 3)
	require.Len(t, s.explain("a?source=/bed"), 2)
	require.Len(t, s.explain("a?source="+url.QueryEscape("/s")), 1)
	s.get("/v1/events/a?source=none").problem(404, "not-found")
	s.get("/v1/events/b").problem(404, "not-found")
	s.get("/v1/events/").problem(400, "bad-request")
	s.call("POST", ordersPath, `{}`, "Content-Type: application/json", "Idempotency-Key: k").ok(nil)
	require.Len(t, s.explain("k/0"), 1, "an id may hold slashes")
}

// Past the dedup window the log is scanned. It may begin anywhere between two points of the channel: numbers come from the
// tip, so a delivery is never taken for its neighbour.
func TestAScanNumbersEventsWhereverTheLogBegins(t *testing.T) {
	s := newSurface(t)
	c := orders()
	c.Emitters = []spec.Emitter{hook("billing")}
	c.Retention.Keep = spec.Duration(time.Minute)
	c.Dedup.Window = spec.Duration(time.Second)
	s.Put(c)
	other := orders()
	other.Name = "other"
	other.Retention.Keep = spec.Duration(time.Minute)
	s.Put(other)
	em := s.Own(s.Emitter("orders", "billing"), "n1")
	for i := range 10 {
		s.Send("orders", fmt.Sprint("old", i))
	}
	require.Equal(t, command.OK, s.Report(em, command.Outcome{First: 1, Last: 10, Kind: command.Delivered, Attempts: 1, At: 1}))
	s.Send("orders", "x", "y") // 11 and 12
	require.Equal(t, command.OK, s.Report(em, outcome(command.Delivered, 11, s.Now())))
	s.Advance(30 * time.Second)
	s.Send("other", "o")
	s.Advance(50 * time.Second)
	s.Commit(command.Tick{})
	s.Commit(command.Tick{})
	for range 20 { // close the generations of the dedup window
		s.Advance(10 * time.Second)
		s.Send("other", fmt.Sprint(s.Now()))
	}
	require.Empty(t, s.Machine.Lookup(event.IDHashOf("y")), "past the dedup window")
	first := s.Machine.Horizon()
	point, ok := s.Machine.PointAtIndex(em.ChannelIndex, first)
	require.True(t, ok)
	require.Less(t, point.Index, first, "the log begins between two points")
	require.Equal(t, "pending", s.delivery("y").State)
	require.Equal(t, "delivered", s.delivery("x").State)
}

func TestAScanEndsWithItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSurface(t)
		s.Put(orders())
		s.Send("orders", "", "a") // made by the server: "made"
		for i := range 60 {
			s.Send("orders", fmt.Sprint(i))
		}
		s.Log.(*testbed.MemLog).BeforeRead = func(uint64) error { time.Sleep(300 * time.Millisecond); return nil }
		begin := time.Now()
		s.get("/v1/events/made").problem(503, "overloaded")
		require.LessOrEqual(t, time.Since(begin), s.api.config().Timeout+time.Second)
		require.Empty(t, s.api.scans)

		s.Send("orders", "") // found at once, but there may be older ones
		var out explainAnswer
		s.get("/v1/events/made").ok(&out)
		require.Len(t, out.Events, 1)
		require.True(t, out.Incomplete)
	})
}

func TestAScanReadsEachEntryOnce(t *testing.T) {
	b := testbed.New(t)
	s := surfaceOn(t, b)
	for i := range 5 {
		c := orders()
		c.Name = fmt.Sprint("c", i)
		c.Emitters = []spec.Emitter{hook("a"), hook("b"), hook("c")}
		s.Put(c)
	}
	for range 20 {
		s.Send("c0", "")
	}
	log := b.Log.(*testbed.MemLog)
	before := log.Reads()
	s.get("/v1/events/none").problem(404, "not-found")
	last, err := log.LastIndex()
	require.NoError(t, err)
	require.LessOrEqual(t, log.Reads()-before, int(last))
}

func TestSoManyEventsAreExplainedAndNoMore(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	for range maxExplained + 5 {
		s.Send("orders", "")
	}
	var out explainAnswer
	s.get("/v1/events/made").ok(&out)
	require.Len(t, out.Events, maxExplained)
	require.True(t, out.Incomplete)
}

func TestSoManyScansRunAtOnceAndNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSurface(t)
		s.Put(orders())
		for range maxScans {
			require.True(t, s.api.scans.holder().enter(context.Background()))
		}
		s.get("/v1/events/none").problem(429, "overloaded")
	})
}
