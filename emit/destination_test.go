package emit

import (
	"fmt"
	"net"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/destination"
	"penstock/internal/spec"
)

// behaviour is one row of the table: what the destination does, and what must come of it.
type behaviour struct {
	steps    []destination.Step
	url      func(t *testing.T, base string) string
	end      OutcomeKind
	class    Class
	attempts int
	// gaps between attempts, all of them
	atLeast, atMost time.Duration
	unseen          bool // no request may reach the destination
}

func (b *behaviour) fault() string {
	if len(b.steps) == 0 {
		return ""
	}
	return b.steps[0].Fault
}

func answers(status int) []destination.Step { return []destination.Step{{Status: status}} }

func behaviours() map[string]behaviour {
	const tries = 4
	rows := map[string]behaviour{
		"Retry-After in seconds":   {steps: []destination.Step{{Status: 429, RetryAfter: "1"}, {}}, end: Delivered, attempts: 2, atLeast: time.Second, atMost: 5 * time.Second},
		"Retry-After as a date":    {steps: []destination.Step{{Status: 503, RetryAfter: "date:2s"}, {}}, end: Delivered, attempts: 2, atLeast: 900 * time.Millisecond, atMost: 6 * time.Second},
		"Retry-After in the past":  {steps: []destination.Step{{Status: 503, RetryAfter: "date:-5s"}, {}}, end: Delivered, attempts: 2, atMost: 4 * time.Second},
		"Retry-After is negative":  {steps: []destination.Step{{Status: 503, RetryAfter: "-5"}, {}}, end: Delivered, attempts: 2, atMost: 4 * time.Second},
		"Retry-After is junk":      {steps: []destination.Step{{Status: 503, RetryAfter: "1000abc"}, {}}, end: Delivered, attempts: 2, atMost: 4 * time.Second},
		"Retry-After is huge":      {steps: []destination.Step{{Status: 503, RetryAfter: "99999999999"}, {}}, end: Delivered, attempts: 2, atLeast: time.Second, atMost: 6 * time.Second},
		"hangs":                    {steps: []destination.Step{{Fault: destination.Hang}}, end: Dead, class: ClassTransient, attempts: tries},
		"hangs once":               {steps: []destination.Step{{Fault: destination.Hang}, {}}, end: Delivered, attempts: 2},
		"answers a byte at a time": {steps: []destination.Step{{Fault: destination.Drip}}, end: Dead, class: ClassTransient, attempts: tries},
		"resets the connection":    {steps: []destination.Step{{Fault: destination.Reset}}, end: Dead, class: ClassTransient, attempts: tries},
		"closes without an answer": {steps: []destination.Step{{Fault: destination.Close}}, end: Dead, class: ClassTransient, attempts: tries},
		"resets after 200":         {steps: []destination.Step{{Fault: destination.ResetAfter}}, end: Delivered, attempts: 1},
		"fails twice, then works":  {steps: []destination.Step{{Status: 500, Times: 2}, {}}, end: Delivered, attempts: 3},
		"redirects":                {steps: []destination.Step{{Status: 307, Location: "/hook/elsewhere"}}, end: Dead, class: ClassPermanent, attempts: 1},
		"has an unknown certificate": {url: func(t *testing.T, _ string) string {
			s := httptest.NewUnstartedServer(nil)
			s.Config.ErrorLog = quiet()
			s.StartTLS()
			t.Cleanup(s.Close)
			return s.URL
		}, end: Dead, class: ClassTransient, attempts: tries, unseen: true},
		"is not there": {url: func(t *testing.T, _ string) string {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			return "http://" + l.Addr().String()
		}, end: Dead, class: ClassTransient, attempts: tries, unseen: true},
		"has no name": {url: func(*testing.T, string) string { return "http://nobody.invalid/" },
			end: Dead, class: ClassTransient, attempts: tries, unseen: true},
	}
	for _, status := range []int{200, 201, 202, 204, 206, 299} {
		rows[fmt.Sprint("answers ", status)] = behaviour{steps: answers(status), end: Delivered, attempts: 1}
	}
	for _, status := range []int{300, 301, 302, 303, 304, 308, 400, 404, 405, 409, 410, 413, 415, 422, 451} {
		rows[fmt.Sprint("answers ", status)] = behaviour{steps: answers(status), end: Dead, class: ClassPermanent, attempts: 1}
	}
	for _, status := range []int{401, 403} {
		rows[fmt.Sprint("answers ", status)] = behaviour{steps: answers(status), end: Dead, class: ClassAuth, attempts: tries}
	}
	for _, status := range []int{408, 425, 429, 500, 501, 502, 503, 504, 507, 599} {
		rows[fmt.Sprint("answers ", status)] = behaviour{steps: answers(status), end: Dead, class: ClassTransient, attempts: tries}
	}
	return rows
}

// TestDestinations is the table over what a destination can do and the three orders: class, number and spacing of attempts, end
// state, the ids of every repeat, and that a second emitter feels none of it.
func TestDestinations(t *testing.T) {
	for _, order := range []spec.Order{spec.OrderNone, spec.OrderKey, spec.OrderTotal} {
		t.Run(string(order), func(t *testing.T) {
			for name, row := range behaviours() {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					runBehaviour(t, order, row)
				})
			}
		})
	}
}

func runBehaviour(t *testing.T, order spec.Order, row behaviour) {
	var server destination.Server
	web := httptest.NewServer(&server)
	t.Cleanup(func() {
		server.Stop()
		web.Close()
	})
	server.Script("it", row.steps...)
	url := web.URL + "/hook/it"
	if row.url != nil {
		url = row.url(t, web.URL)
	}
	config := func(url string) Config {
		cfg := quick(url)
		cfg.Order, cfg.OnKeyFailure = order, "skip"
		cfg.Grace = 10 * time.Millisecond
		cfg.Emitter.Webhook.Timeout = spec.Duration(10 * time.Second)
		cfg.Emitter.Retry.MaxAttempts = 4
		cfg.Emitter.Retry.Backoff = spec.Backoff{Min: spec.Duration(20 * time.Millisecond), Max: spec.Duration(1200 * time.Millisecond), Jitter: 0.2}
		return cfg
	}
	bad, good := newWorld(t), newWorld(t)
	bad.add(1, 7)
	for range 20 {
		good.add(1, 7)
	}
	badConfig, goodConfig := config(url), config(web.URL+"/hook/good")
	if f := row.fault(); f == destination.Hang || f == destination.Drip {
		badConfig.Emitter.Webhook.Timeout = spec.Duration(time.Second)
	}
	stopBad := bad.startWith(badConfig, webhookSink(t, badConfig))
	stopGood := good.startWith(goodConfig, webhookSink(t, goodConfig))
	eventually(t, "it ends", func() bool { return bad.kind(1) != 0 })
	eventually(t, "the second emitter delivers", func() bool {
		for seq := range uint64(20) {
			if good.kind(seq+1) != Delivered {
				return false
			}
		}
		return true
	})
	noError(t, stopBad)
	noError(t, stopGood)

	require.Equal(t, row.end, bad.kind(1))
	total := uint32(0)
	for _, o := range bad.outcomes {
		total += o.Attempts
	}
	require.EqualValues(t, row.attempts, total, "attempts")
	require.Len(t, server.Received("good"), 20, "the second emitter")
	require.Empty(t, server.Received("elsewhere"), "a redirect is followed")
	if row.end == Dead {
		require.Equal(t, row.class, bad.letters[0].Class)
		require.NotEmpty(t, bad.letters[0].Reason)
	}
	got := server.Received("it")
	if row.unseen {
		require.Empty(t, got)
		return
	}
	if f := row.fault(); f == destination.Hang || f == destination.Drip { // on a busy machine a timeout may come before the request
		require.LessOrEqual(t, len(got), row.attempts, "what the destination counted")
	} else {
		require.Len(t, got, row.attempts, "what the destination counted")
	}
	for i, r := range got {
		require.Equal(t, got[0].WebhookID, r.WebhookID)
		require.Equal(t, got[0].CompactionID, r.CompactionID)
		if i == 0 {
			continue
		}
		gap := r.At.Sub(got[i-1].At)
		require.GreaterOrEqual(t, gap, max(row.atLeast, 15*time.Millisecond))
		if row.atMost > 0 {
			require.LessOrEqual(t, gap, row.atMost)
		}
	}
}

func TestAMovedAddressIsFoundAgain(t *testing.T) {
	var server destination.Server
	first := httptest.NewServer(&server)
	_, port, err := net.SplitHostPort(first.Listener.Addr().String())
	require.NoError(t, err)
	w := newWorld(t)
	w.add(1)
	cfg := quick("http://localhost:" + port + "/hook/it")
	stop := w.startWith(cfg, webhookSink(t, cfg))
	eventually(t, "delivered", func() bool { return w.kind(1) == Delivered })
	first.Close()
	w.add(1)
	eventually(t, "it fails", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.prior[2].Attempts > 0
	})
	next := "127.0.0.1" // the name's other address, where it has one
	if all, _ := net.LookupHost("localhost"); slices.Contains(all, "::1") {
		next = "::1"
	}
	l, err := net.Listen("tcp", net.JoinHostPort(next, port))
	require.NoError(t, err)
	second := httptest.NewUnstartedServer(&server)
	require.NoError(t, second.Listener.Close())
	second.Listener = l
	second.Start()
	defer second.Close()
	eventually(t, "delivered", func() bool { return w.kind(2) == Delivered })
	noError(t, stop)
}
