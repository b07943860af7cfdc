package emit

import (
	"slices"
	"time"

	"penstock/internal/chaos"
	"penstock/internal/spec"
)

type attemptDone struct {
	w          *work
	deliveries []Delivery
	res        Result
	took       time.Duration
	err        error // the payload could not be read again
	gone       bool  // the source no longer has it pending
	notMade    bool  // no lease, or told to stop before it began
	made       bool
	cutOff     bool
	backlog    bool // no attempt: it is to be given up
}

func (r *runner) atMostOnce() bool { return r.cfg.Semantics == spec.AtMostOnce }

// startAttempts fills the free slots. A held emitter, one without the lease and one that stops start nothing.
func (r *runner) startAttempts(now time.Time) {
	r.gateAt = time.Time{}
	for !r.held && !r.leaseLost && !r.stop.stopping && !r.lettersFull() && r.sched.ready() {
		w := r.admitNext(now)
		if w == nil {
			return
		}
		if r.atMostOnce() && !w.announced {
			// The slot is held from here on: only what is sent at once is announced.
			out := w.newOutcome(r.cfg.Now())
			r.report(w, Attempted, []Outcome{out})
			continue
		}
		r.launch(w)
	}
}

// admitNext takes the next work that the gate lets in, nil when it lets in none: then gateAt says when to ask again. While the
// breaker is open both kinds may ask, since each has its own probe.
func (r *runner) admitNext(now time.Time) *work {
	kinds := [...]bool{r.sched.next(), false}
	if r.gate.Open() {
		kinds = [...]bool{false, true}
	}
	for i, retry := range kinds {
		if !r.sched.waits(retry) || (i == 1 && kinds[0] == retry) {
			continue
		}
		ok, again := r.gate.Enter(now, retry)
		if ok {
			return r.sched.pick(retry)
		}
		if again.IsZero() && r.sched.inFlight == 0 {
			again = now.Add(gatePoll) // others keep it busy, and leave it unseen
		}
		if !again.IsZero() && (r.gateAt.IsZero() || again.Before(r.gateAt)) {
			r.gateAt = again
		}
		if !r.gate.Open() {
			return nil
		}
	}
	return nil
}

// launch makes one attempt on its own goroutine; w holds a slot.
func (r *runner) launch(w *work) {
	id, first, last, deliveries := w.id, w.first, w.last, w.deliveries
	r.attempts.Go(func() {
		d := attemptDone{w: w, deliveries: deliveries}
		if d.deliveries == nil {
			good, ok, err := r.reload(r.attemptCtx, first)
			d.deliveries, d.gone, d.err = good, !ok, err
		}
		switch {
		case d.err != nil || d.gone:
		case r.attemptCtx.Err() != nil || !r.deps.Lease.Valid():
			d.notMade = true
		default:
			c := Compaction{ID: id, First: first, Last: last, Deliveries: d.deliveries}
			began := time.Now()
			chaos.Point("emit.before_send")
			d.res, d.made = r.deps.Sink.Deliver(r.attemptCtx, &c), true
			chaos.Point("emit.after_send")
			d.took = time.Since(began)
			d.cutOff = !d.res.OK && r.attemptCtx.Err() != nil
		}
		r.results <- d
	})
}

func (r *runner) onAttempt(d attemptDone) {
	w := d.w
	now := time.Now()
	if !d.backlog {
		r.gate.Leave(now, d.res, d.made && !d.cutOff, w.retry)
	}
	r.sched.release(w)
	if d.gone {
		r.finish(w)
		return
	}
	if d.err != nil || d.notMade {
		if d.err != nil {
			w.due = now.Add(time.Second)
		}
		if w.backlog {
			w.backlog = false
			r.givingUp--
		}
		r.sched.add(w, now)
		return
	}
	if w.deliveries == nil {
		w.deliveries, w.bytes = d.deliveries, weight(d.deliveries)
		r.loaded += w.bytes
	}
	switch {
	case d.backlog:
		r.onBacklog(w)
	case d.res.OK:
		r.meter.attempt("delivered", d.took)
		r.onDelivered(w)
	case d.cutOff && !r.atMostOnce():
		// Costs no attempt; the delivery stays pending for whoever comes next.
		r.meter.attempt("cut_off", d.took)
		r.sched.add(w, now)
	default:
		if d.cutOff {
			d.res = Result{Class: ClassTransient, Reason: "cut off at shutdown; the destination may have it"}
		}
		r.onFailed(w, d)
	}
}

func (r *runner) onDelivered(w *work) {
	w.attempts++
	w.unreported++
	r.logState(false, "")
	out := w.newOutcome(r.cfg.Now())
	r.resolve(w, Delivered, out)
	r.unpark(w)
	r.leaveLanes(w)
}

func (r *runner) onFailed(w *work, d attemptDone) {
	res := d.res
	if res.Class == ClassNone || res.Class > ClassPoison {
		res.Class = ClassTransient
	}
	res.Reason = oneLine(res.Reason)
	r.meter.attempt(res.Class.String(), d.took)
	r.logState(true, res.Reason)

	w.attempts++
	w.unreported++
	w.failedHere, r.anyFailed = true, true
	out := w.newOutcome(r.cfg.Now())
	out.Class, out.Status, out.Reason = res.Class, res.Status, res.Reason
	w.lastFailed = out.At
	if w.firstFailed.IsZero() {
		w.firstFailed = out.At
	}
	r.remember(w, out, res.Body)

	if r.atMostOnce() {
		r.resolve(w, Lost, out)
		return
	}
	if res.Class == ClassPoison {
		r.giveUp(w, Poison, res.Class, "the event cannot be encoded for this destination", out)
		return
	}
	cause := r.spent(w, res.Class)
	if cause == "" || r.parks(w) {
		r.retryLater(w, res.Class, res.RetryAfter)
		r.report(w, Failed, []Outcome{out})
		return
	}
	r.giveUp(w, Dead, res.Class, cause, out)
}

// spent says why a delivery is to be given up, "" while it is not. Nothing is given up on the word of an earlier owner alone.
func (r *runner) spent(w *work, class Class) string {
	if !w.failedHere {
		return ""
	}
	return Spent(r.cfg.Emitter.Retry, w.tried(class))
}

// parks tells whether a lane waits for its head instead of letting it become a dead letter. Poison never parks: waiting could
// not help it. What stands in no lane has nothing that could wait for it.
func (r *runner) parks(w *work) bool { return w.keys != nil && r.cfg.OnKeyFailure == "park" }

func (r *runner) unpark(w *work) {
	if w.parked {
		w.parked = false
		r.parked--
	}
}

// retryLater sets the time of the next attempt.
func (r *runner) retryLater(w *work, class Class, asked time.Duration) {
	next := Next(r.cfg.Emitter.Retry, w.seed, w.tried(class), r.parks(w), asked)
	if next.Parked && !w.parked {
		w.parked = true
		r.parked++
	}
	now := time.Now()
	w.due = now.Add(next.At.Sub(w.lastFailed))
	r.sched.add(w, now)
	r.shed(w)
}

// remember keeps the attempt for a dead letter: the last few, with the beginning of the answer, while memory allows; beyond
// that the last one, without it.
func (r *runner) remember(w *work, out Outcome, body []byte) {
	a := Attempt{At: out.At, Class: out.Class, Status: out.Status, Reason: out.Reason, Body: body}
	if r.remembered > r.cfg.MemoryBytes/2 {
		r.forget(w)
		a.Body = nil
	}
	if len(w.history) == historyKept {
		r.remembered -= w.history[0].weight()
		w.history = slices.Delete(w.history, 0, 1)
	}
	r.remembered += a.weight()
	w.history = append(w.history, a)
}

func (r *runner) forget(w *work) {
	for i := range w.history {
		r.remembered -= w.history[i].weight()
	}
	w.history = nil
}

func (a *Attempt) weight() int { return 96 + len(a.Reason) + len(a.Body) }

// logState logs when a destination begins to fail and when it works again, at most once a minute each way round.
func (r *runner) logState(failing bool, reason string) {
	if failing == r.failing || (failing && time.Since(r.loggedAt) < time.Minute) {
		return
	}
	r.failing = failing
	r.loggedAt = time.Now()
	if failing {
		r.log.Warn("attempts fail", "reason", reason)
		return
	}
	r.log.Info("attempts succeed again")
}
