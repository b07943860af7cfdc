package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
	"penstock/internal/destination"
)

// ordered is a destination that fails every 50th request once, and notes in which order the events first arrived.
type ordered struct {
	mu       sync.Mutex
	requests int
	seen     map[string]bool
	arrived  map[string][]string // positions, by key
}

func (o *ordered) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.requests++; o.requests%50 == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if id := r.Header.Get("ce-id"); !o.seen[id] {
		o.seen[id] = true
		key := r.Header.Get("ce-partitionkey")
		o.arrived[key] = append(o.arrived[key], r.Header.Get("Penstock-Position"))
	}
}

// TestB13NoInversionAcrossALeaderChange: numbered events, a destination that fails every 50th request once, retries slower than the
// events come, and a leader and an owner that change in the middle. In the ordered modes no event arrives for the first time behind
// a later one of its key.
func TestB13NoInversionAcrossALeaderChange(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c := g.client()
	ctx := context.Background()
	modes := map[string]*ordered{}
	for _, order := range []string{"total", "key"} {
		o := &ordered{seen: map[string]bool{}, arrived: map[string][]string{}}
		web := httptest.NewServer(o)
		t.Cleanup(web.Close)
		modes[order] = o
		spec := fmt.Appendf(nil, `{"name":%q,"semantics":"at-least-once","order":%q,"on_key_failure":"skip","emitters":[%s]}`, order, order,
			webhookEmitter("it", web.URL, `"retry":{"ttl":"10m","backoff":{"min":"100ms","max":"500ms"}}`))
		_, err := c.PutChannel(ctx, order, spec, client.PutOptions{})
		require.NoError(t, err)
	}
	sent := scale(t, 1000, 300)
	send := func(from, to int) {
		for i := from; i < to; i += 10 {
			var list []string
			for k := i; k < i+10; k++ {
				list = append(list, fmt.Sprintf(`{"specversion":"1.0","id":"%d","source":"/s","type":"t","partitionkey":"k%d","data":%d}`, k, k%3, k))
			}
			for order := range modes {
				sendByID(t, c, order, []byte("["+joined(list)+"]"))
			}
		}
	}
	send(0, sent/3/10*10)
	leader := g.leader()
	leader.kill()
	send(sent/3/10*10, sent*2/3/10*10)
	leader.start()
	leader.waitReady(30 * time.Second)
	l, err := c.Ledger(ctx, "total")
	require.NoError(t, err)
	if owner := g.byID(l.Emitters[0].Owner); owner != nil {
		owner.kill()
		send(sent*2/3/10*10, sent)
		owner.start()
		owner.waitReady(30 * time.Second)
	} else {
		send(sent*2/3/10*10, sent)
	}
	for order, o := range modes {
		waitDelivered(t, c, order, 2*time.Minute)
		o.mu.Lock()
		require.Len(t, o.seen, sent, order)
		if order == "total" {
			all := 0
			for _, list := range o.arrived {
				all += len(list)
			}
			require.Equal(t, sent, all)
		}
		for key, list := range o.arrived {
			require.True(t, slices.IsSortedFunc(list, comparePositions), "%s: an inversion of key %s", order, key)
		}
		o.mu.Unlock()
	}
}

func joined(list []string) string {
	out := ""
	for i, s := range list {
		if i > 0 {
			out += ","
		}
		out += s
	}
	return out
}

func comparePositions(a, b string) int {
	var x, y [2]int
	_, _ = fmt.Sscanf(a, "%d.%d", &x[0], &x[1])
	_, _ = fmt.Sscanf(b, "%d.%d", &y[0], &y[1])
	return slices.Compare(x[:], y[:])
}

// TestB20EveryFaultHasItsClassAndIsDeliveredWhenItIsMended: unknown host, closed port, reset after accept, a certificate that nobody
// signed, a redirect loop, and an event that cannot be made fit; one event each. Network faults are transient, with a reason that
// names them, and are delivered once mended; a SIGTERM in mid-request costs no attempt.
func TestB20EveryFaultHasItsClassAndIsDeliveredWhenItIsMended(t *testing.T) {
	t.Parallel()
	b := newBuried(t, options{nodes: 1, single: true})
	ctx := context.Background()
	closed := startReceiver(t)
	closed.close()
	unsigned := httptest.NewUnstartedServer(b.receiver)
	unsigned.TLS = &tls.Config{}
	unsigned.StartTLS()
	t.Cleanup(unsigned.Close)
	b.receiver.Script("reset", destination.Step{Fault: destination.Reset})
	b.receiver.Script("loop", destination.Step{Status: 302, Location: b.web + "/hook/loop"})
	b.receiver.Script("hang", destination.Step{Fault: destination.Hang})
	rows := map[string]struct{ url, state, class, reason string }{
		"unknown-host": {"http://nowhere.invalid/hook/x", "pending", "transient", "nowhere.invalid"},
		"closed-port":  {closed.url(), "pending", "transient", "refused"},
		"reset":        {b.web + "/hook/reset", "pending", "transient", ""},
		"certificate":  {unsigned.URL + "/hook/x", "pending", "transient", "certificate"},
		"loop":         {b.web + "/hook/loop", "dead", "permanent", "302"},
		"hang":         {b.web + "/hook/hang", "pending", "", ""},
	}
	put := func(name, url string) {
		_, err := b.c.PutChannel(ctx, name, channelSpec(name, `"types":["t"],"on_invalid":"poison"`, webhookEmitter("it", url,
			`"retry":{"ttl":"1h","backoff":{"min":"100ms","max":"1s"}},"dead_letter":{"max_retries":0}`)), client.PutOptions{})
		require.NoError(t, err, name)
	}
	delivery := func(name, id string) (d client.Delivery) {
		x, err := b.c.Explain(ctx, id, "/"+name)
		require.NoError(t, err)
		require.Len(t, x.Events, 1)
		return x.Events[0].Deliveries[0]
	}
	send := func(name, id, kind string) {
		sendByID(t, b.c, name, fmt.Appendf(nil, `[{"specversion":"1.0","id":%q,"source":"/%s","type":%q,"data":1}]`, id, name, kind))
	}
	for name, row := range rows {
		put(name, row.url)
		waitOwned(t, b.c, name)
		send(name, "one", "t")
		send(name, "bad", "unknown")
	}
	for name, row := range rows {
		eventually(t, 30*time.Second, name, func() error {
			d := delivery(name, "one")
			if d.State != row.state || (name != "hang" && d.Attempts == 0) || d.LastClass != row.class {
				return fmt.Errorf("%+v", d)
			}
			return nil
		})
		require.Contains(t, delivery(name, "one").LastReason, row.reason, name)
		eventually(t, 30*time.Second, "the invalid event of "+name+" is set aside", func() error {
			if d := delivery(name, "bad"); d.State != "poison" {
				return fmt.Errorf("%+v", d)
			}
			return nil
		})
	}
	// SIGTERM while the request to the hanging one is under way.
	eventually(t, 20*time.Second, "a request hangs", func() error {
		if len(b.receiver.Received("hang")) == 0 {
			return fmt.Errorf("none yet")
		}
		return nil
	})
	n := b.nodes[0]
	require.Zero(t, n.term(30*time.Second))
	n.start()
	n.waitReady(30 * time.Second)
	require.Zero(t, delivery("hang", "one").Attempts, "the attempt that was cut off is none")

	closed.listen()
	b.receiver.Script("reset")
	b.receiver.Script("loop")
	b.receiver.Script("hang")
	put("unknown-host", b.web+"/hook/mended")
	put("certificate", b.web+"/hook/mended")
	for name := range rows {
		eventually(t, 60*time.Second, name+" is delivered", func() error {
			d := delivery(name, "one")
			if d.State == "dead" {
				_, _ = b.c.Replay(ctx, client.ActRequest{IDs: []string{d.DeadLetterID}})
			}
			if d.State != "delivered" {
				return fmt.Errorf("%+v", d)
			}
			return nil
		})
		require.Equal(t, "poison", delivery(name, "bad").State, name)
	}
}

// TestB25OnlyTheFailedDestinationIsReplayedAndACrashCanBeResumed: events that failed at one of three destinations; 50 replays, and
// the owner dies after some of them. The rest can be replayed afterwards, the other two destinations see nothing, and the intent
// closes as unknown.
func TestB25OnlyTheFailedDestinationIsReplayedAndACrashCanBeResumed(t *testing.T) {
	t.Parallel()
	b := newBuried(t, options{})
	ctx := context.Background()
	b.receiver.Script("it", destination.Step{Status: 410})
	_, err := b.c.PutChannel(ctx, "orders", channelSpec("orders", "",
		webhookEmitter("billing", b.web+"/hook/it", `"dead_letter":{"max_retries":0}`), webhookEmitter("two", b.web+"/hook/two", ""), webhookEmitter("three", b.web+"/hook/three", "")), client.PutOptions{})
	require.NoError(t, err)
	waitOwned(t, b.c, "orders")
	sendByID(t, b.c, "orders", batch("d", 0, 50))
	eventually(t, 30*time.Second, "dead at one, delivered at two", func() error {
		l, err := b.c.Ledger(ctx, "orders")
		if err != nil || l.Emitters[0].Dead != 50 || l.Emitters[1].Delivered != 50 || l.Emitters[2].Delivered != 50 {
			return fmt.Errorf("%+v %w", l, err)
		}
		return nil
	})
	b.ids = ids(mustLetters(t, b))
	require.Len(t, b.ids, 50)
	for _, r := range b.receiver.Received("it") {
		b.first[r.ID] = r
	}
	owner := b.owner(nil)
	asked := b.other(owner).client()
	b.receiver.Script("it", destination.Step{Delay: destination.Duration(30 * time.Millisecond)})
	done := make(chan struct{})
	go func() {
		defer close(done)
		res, err := asked.Replay(ctx, client.ActRequest{IDs: b.ids, Reason: "mended"})
		t.Logf("the replay whose owner died: %v %v", res.Counts, err)
	}()
	eventually(t, 20*time.Second, "20 are sent", func() error {
		if n := len(b.receiver.Received("it")); n < 20 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	owner.kill()
	<-done
	sentBefore := len(b.receiver.Received("it"))
	b.c = newClient(t, b.other(owner).http, b.other(owner, b.other(owner)).http)
	b.owner(owner)
	resolved := 0
	eventually(t, time.Minute, "the rest is resumed", func() error {
		res, err := b.c.Replay(ctx, client.ActRequest{IDs: b.ids})
		if err != nil {
			return err
		}
		resolved = max(resolved, res.Counts["resolved"])
		if res.Counts["delivered"]+res.Counts["resolved"] != 50 {
			return fmt.Errorf("%v", res.Counts)
		}
		return nil
	})
	require.Greater(t, resolved, 10, "what was delivered before the crash is not sent again")
	b.sameIDs()
	require.LessOrEqual(t, len(b.receiver.Received("it")), 50+4+sentBefore-20, "but for what was under way")
	require.Len(t, b.receiver.Received("two"), 50, "the other destinations see nothing of it")
	require.Len(t, b.receiver.Received("three"), 50)
	unknown := false
	for _, r := range b.trail("dlq.replay") {
		require.False(t, r.Open)
		unknown = unknown || r.Result == "unknown"
	}
	require.True(t, unknown, "the crash shows in the trail")
}

// TestB56SlowAndFailingDestinationsDelayNoOther: ten destinations, one slow, one that always fails, eight fast. The fast ones keep
// their latency, from send to arrival, and so does the answer to the producer; the backlog is of the bad ones alone.
func TestB56SlowAndFailingDestinationsDelayNoOther(t *testing.T) {
	t.Parallel()
	b := newBuried(t, options{})
	ctx := context.Background()
	put := func(channel string, slow, bad int) {
		var emitters []string
		for i := range 10 {
			hook := fmt.Sprintf("%s-%d", channel, i)
			switch {
			case i < slow:
				b.receiver.Script(hook, destination.Step{Delay: destination.Duration(14 * time.Second)})
			case i < slow+bad:
				b.receiver.Script(hook, destination.Step{Status: 503})
			}
			emitters = append(emitters, webhookEmitter(fmt.Sprint("e", i), b.web+"/hook/"+hook, `"retry":{"ttl":"10m","backoff":{"min":"1s","max":"10s"}}`))
		}
		_, err := b.c.PutChannel(ctx, channel, channelSpec(channel, "", emitters...), client.PutOptions{})
		require.NoError(t, err)
		waitOwned(t, b.c, channel)
	}
	run := func(channel string, healthy int) (arrival, ack time.Duration) {
		sentAt := map[string]time.Time{}
		var acks []time.Duration
		tick := time.NewTicker(50 * time.Millisecond) // 200 events a second
		defer tick.Stop()
		rounds := scale(t, 600*20, 100)
		for i := range rounds {
			<-tick.C
			now := time.Now()
			for k := range 10 {
				sentAt[fmt.Sprintf("%s-%d", channel, i*10+k)] = now
			}
			_, err := b.c.Send(ctx, channel, batch(channel, i*10, 10), batchType, client.SendOptions{})
			require.NoError(t, err)
			acks = append(acks, time.Since(now))
		}
		var took []time.Duration
		for e := 10 - healthy; e < 10; e++ {
			hook := fmt.Sprintf("%s-%d", channel, e)
			eventually(t, 30*time.Second, hook+" has all", func() error {
				if n := len(b.receiver.Received(hook)); n < rounds*10 {
					return fmt.Errorf("%d of %d", n, rounds*10)
				}
				return nil
			})
			for _, r := range b.receiver.Received(hook) {
				took = append(took, r.At.Sub(sentAt[r.ID]))
			}
		}
		return p99Of(took), p99Of(acks)
	}
	put("well", 0, 0)
	arrival, ack := run("well", 10)
	// The healthy one goes, so that both runs have the same number of emitters at work.
	waitDelivered(t, b.c, "well", time.Minute)
	require.NoError(t, b.c.DeleteChannel(ctx, "well", client.PutOptions{Discard: true}))
	put("ill", 1, 1)
	arrivalIll, ackIll := run("ill", 8)
	t.Logf("p99 of arrivals %v, beside a slow and a failing one %v; of answers %v, %v", arrival, arrivalIll, ack, ackIll)
	// Twice the latency is the claim. On a machine that does other things a p99 is mostly theirs: the floor keeps noise out.
	const floor = 500 * time.Millisecond
	require.LessOrEqual(t, arrivalIll, 2*max(arrival, floor))
	require.LessOrEqual(t, ackIll, 2*max(ack, floor))
	l, err := b.c.Ledger(ctx, "ill")
	require.NoError(t, err)
	for i, e := range l.Emitters {
		if i < 2 {
			require.NotZero(t, e.Pending, e.Emitter)
			continue
		}
		require.Less(t, e.Pending, uint64(100), e.Emitter)
	}
	// Three slow ones, and the emitter that fails gets better: what waited arrives.
	b.receiver.Script("ill-1")
	eventually(t, time.Minute, "the failing one catches up", func() error {
		l, err := b.c.Ledger(ctx, "ill")
		if err != nil || l.Emitters[1].Pending > 100 {
			return fmt.Errorf("%+v %w", l.Emitters, err)
		}
		return nil
	})
}

func p99Of(d []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[len(s)*99/100]
}
