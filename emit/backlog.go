package emit

import (
	"container/heap"
	"time"
)

// causeBacklog is why the oldest deliveries of an emitter end that has more undelivered than its channel allows.
const causeBacklog = "more than retention.max_unresolved is undelivered, the destination fails, and on_unresolved is dead_letter"

// backlogAhead bounds what is given up and not committed yet, and so how far below the bound it leads.
const backlogAhead = 64

// giveUpBacklog makes dead letters of the oldest deliveries that wait while Config.Overfull says so and the destination fails, as
// an attempt of this Run has shown. They need no failed attempt of their own: with the destination down most get none. What is in
// flight is left alone.
func (r *runner) giveUpBacklog(now time.Time) {
	if r.cfg.Overfull == nil || !r.anyFailed || r.atMostOnce() || r.gate.Healthy(now) {
		return
	}
	for !r.held && !r.leaseLost && !r.stop.stopping && !r.lettersFull() && r.givingUp < backlogAhead &&
		r.sched.inFlight < r.sched.slots && r.cfg.Overfull() {
		w := r.sched.takeOldest()
		if w == nil {
			return
		}
		w.backlog = true
		r.givingUp++
		first, deliveries := w.first, w.deliveries
		r.attempts.Go(func() {
			d := attemptDone{w: w, deliveries: deliveries, backlog: true}
			if d.deliveries == nil {
				good, ok, err := r.reload(r.attemptCtx, first)
				d.deliveries, d.gone, d.err = good, !ok, err
			}
			r.results <- d
		})
	}
}

// onBacklog gives a work up whose payload is loaded.
func (r *runner) onBacklog(w *work) {
	out := w.newOutcome(r.cfg.Now())
	if n := len(w.history); n > 0 {
		out.Status, out.Reason = w.history[n-1].Status, w.history[n-1].Reason
	}
	r.giveUp(w, Dead, ClassTransient, causeBacklog, out)
}

// takeOldest takes about the oldest work that waits, and gives it a slot: retries first, since they have been here longest.
func (s *schedule) takeOldest() (w *work) {
	switch {
	case s.again.len() > 0:
		w = s.again.pop()
	case len(s.waiting) > 0:
		w = heap.Pop(&s.waiting).(*work)
	case s.first.len() > 0:
		w = s.first.pop()
	default:
		return nil
	}
	s.inFlight++
	w.retry = false
	return w
}
