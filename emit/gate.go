package emit

import (
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"penstock/internal/spec"
)

// Gate decides how hard one destination may be pressed. One Run and the replays of the same emitter beside it share one; the next
// Run gets a new one.
//
//   - The breaker opens after breakerFailures failures in a row, whatever the events were: network errors, timeouts, 5xx, 408,
//     425, refused credentials. While it is open it is probed, further and further apart up to probeMax: by one retry at a time
//     and, beside it, by one first attempt at a time, so that a new event finds out at once that only the old ones fail. One
//     success closes it. A refusal of one event (other 4xx) is an answer: it closes it too.
//   - After it closes, attempts in flight ramp up from one, doubling as they succeed, so that what has gathered does not knock
//     the destination over again. A failure on the way halves them.
//   - A 429, or any Retry-After, holds the whole emitter until then (bounded by backoff.max, a little jitter on top), and halves
//     the attempts in flight: it is about the destination, not about the event.
type Gate struct {
	mu      sync.Mutex
	breaker circuitbreaker.CircuitBreaker[any]
	retry   spec.Retry
	seed    uint64
	slots   int

	limit     int // attempts in flight that are allowed now
	inFlight  int
	gained    int // successes since the limit rose
	throttles int // holds in a row
	heldUntil time.Time
	wasOpen   bool
	probes    [2]probe // of first attempts, of retries
}

// probe is one of the two ways in while the breaker is open.
type probe struct {
	busy     bool
	failures int // in a row
	at       time.Time
}

func lane(retry bool) int {
	if retry {
		return 1
	}
	return 0
}

const (
	breakerFailures = 8
	probeMax        = 10 * time.Second
)

// NewGate makes the gate of an emitter; seed spreads emitters that fail together.
func NewGate(e spec.Emitter, seed uint64) *Gate { return newGate(e, seed, breakerFailures) }

func newGate(e spec.Emitter, seed uint64, failures uint) *Gate {
	slots := e.Concurrency
	if slots < 1 {
		slots = 16
	}
	lo, _ := backoffBounds(e.Retry)
	return &Gate{
		retry: e.Retry, seed: seed, slots: slots, limit: slots,
		// The library counts and gives out the probe; how long to wait for it is ours, since its delay cannot grow.
		breaker: circuitbreaker.NewBuilder[any]().WithFailureThreshold(failures).WithSuccessThresholdRatio(1, 2).
			WithDelay(min(lo, probeMax)).Build(),
	}
}

// Enter asks to begin a first attempt or a retry. When it says no, ask again at the time given; zero means when an attempt has
// ended. Each yes is followed by one Leave.
func (g *Gate) Enter(now time.Time, retry bool) (ok bool, again time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := &g.probes[lane(retry)]
	switch {
	case now.Before(g.heldUntil):
		return false, g.heldUntil
	case g.breaker.IsClosed():
		if g.inFlight >= g.limit {
			return false, time.Time{}
		}
	case p.busy:
		return false, time.Time{}
	case now.Before(p.at):
		return false, p.at
	case !g.breaker.TryAcquirePermit():
		return false, now.Add(max(g.breaker.RemainingDelay(), gatePoll))
	default:
		p.busy = true
	}
	g.inFlight++
	return true, time.Time{}
}

// gatePoll is how often a gate is asked again when nothing tells when it opens.
const gatePoll = 50 * time.Millisecond

// Leave ends an attempt. made is false when it was not made, or cut off by us: it then says nothing of the destination.
func (g *Gate) Leave(now time.Time, res Result, made, retry bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight--
	p := &g.probes[lane(retry)]
	probing := p.busy
	p.busy = false
	switch {
	case made:
		g.record(now, res, p)
	case probing: // used up for nothing
		g.breaker.Open()
		p.at = now
	}
}

// Note tells of an attempt that did not ask, such as a replay by hand.
func (g *Gate) Note(now time.Time, res Result) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.record(now, res, &g.probes[0])
}

func (g *Gate) record(now time.Time, res Result, p *probe) {
	throttled := !res.OK && (res.Status == 429 || res.RetryAfter > 0)
	failed := !res.OK && !throttled && res.Class != ClassPermanent && res.Class != ClassPoison
	switch {
	case throttled:
		if !now.Before(g.heldUntil) { // those in flight together are refused together
			g.throttles++
			g.limit, g.gained = max(1, g.limit/2), 0
		}
		if until := now.Add(retryDelay(g.retry, g.seed, g.throttles, res.RetryAfter)); until.After(g.heldUntil) {
			g.heldUntil = until
		}
		g.breaker.RecordSuccess() // it answers
	case failed:
		g.throttles = 0
		if g.limit < g.slots {
			g.limit, g.gained = max(1, g.limit/2), 0
		}
		g.breaker.RecordFailure()
	default:
		g.breaker.RecordSuccess()
		if res.OK {
			g.throttles = 0
			g.ramp()
		}
	}
	open := !g.breaker.IsClosed()
	switch {
	case open && !g.wasOpen:
		wait := now.Add(min(Backoff(g.retry, g.seed, 1), probeMax))
		g.probes = [2]probe{{failures: 1, at: wait}, {failures: 1, at: wait}}
	case open && failed:
		p.failures++
		p.at = now.Add(min(Backoff(g.retry, g.seed, p.failures), probeMax))
	case !open && g.wasOpen:
		g.probes, g.limit, g.gained = [2]probe{}, 1, 0
	}
	g.wasOpen = open
}

// ramp doubles the limit when as many attempts succeeded as it allows.
func (g *Gate) ramp() {
	if g.limit >= g.slots {
		return
	}
	if g.gained++; g.gained >= g.limit {
		g.limit, g.gained = min(2*g.limit, g.slots), 0
	}
}

// Open tells whether attempts are only probes.
func (g *Gate) Open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.breaker.IsClosed()
}

// Healthy tells whether the destination works at full pace, so that replays may be added to its load.
func (g *Gate) Healthy(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.breaker.IsClosed() && !now.Before(g.heldUntil) && g.limit >= g.slots
}

// Limit is how many attempts may be in flight now, and whether the breaker is open.
func (g *Gate) Limit() (limit int, open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limit, !g.breaker.IsClosed()
}
