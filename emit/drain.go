package emit

import (
	"errors"
	"fmt"
	"time"
)

// stopState is how far the end of a Run has come: attempts in flight may finish, then are cut off, then known outcomes are
// committed, each within a bound.
type stopState struct {
	stopping                bool
	cutAt, leaveAt, drainAt time.Time
	cut                     bool
	lastErr                 error
}

// stuckWait is how long a sink may take to notice that it was cut off; then it is left behind and its result ignored.
const stuckWait = 2 * time.Second

func (s *stopState) next(now time.Time) time.Time {
	for _, t := range []time.Time{s.cutAt, s.leaveAt} {
		if now.Before(t) {
			return t
		}
	}
	return s.drainAt
}

// beginStop stops reading and starting. What was to be announced and is not yet proposed stays unannounced.
func (r *runner) beginStop(now time.Time) {
	r.stop = stopState{
		stopping: true,
		cutAt:    now.Add(r.cfg.Grace),
		leaveAt:  now.Add(r.cfg.Grace + stuckWait),
		drainAt:  now.Add(r.cfg.Grace + stuckWait + r.cfg.Drain),
	}
	kept := r.outbox[:0]
	for _, rep := range r.outbox {
		if rep.kind == Attempted {
			r.gate.Leave(now, Result{}, false, rep.w.retry)
			r.sched.release(rep.w)
			continue
		}
		kept = append(kept, rep)
	}
	r.outbox = kept
}

// drained tells whether the loop may end, and with what.
func (r *runner) drained(now time.Time) (bool, error) {
	if !r.stop.cut && !now.Before(r.stop.cutAt) {
		r.stop.cut = true
		r.cutOff()
	}
	if r.held {
		r.reportUnwritten()
	}
	busy := r.sched.inFlight > 0 && now.Before(r.stop.leaveAt)
	if !busy && len(r.letters) == 0 && r.writing == nil && len(r.outbox) == 0 && r.proposing == nil {
		return true, nil
	}
	if now.Before(r.stop.drainAt) {
		return false, nil
	}
	r.stopWork()
	return true, r.notDrained()
}

// reportUnwritten turns dead letters that the volume does not take into plain failed attempts: the deliveries stay pending,
// and what is known about them is not lost.
func (r *runner) reportUnwritten() {
	for _, l := range r.letters {
		if l.outcome.Attempts > 0 {
			out := l.outcome
			out.First, out.Last = l.w.first, l.w.last
			r.report(l.w, Failed, []Outcome{out})
		}
	}
	r.letters = nil
}

func (r *runner) notDrained() error {
	n := len(r.letters) + len(r.writing)
	for _, reports := range [][]report{r.outbox, r.proposing} {
		for _, rep := range reports {
			n += len(rep.outcomes)
		}
	}
	return errors.Join(fmt.Errorf("%w: %d left", ErrNotDrained, n), r.stop.lastErr)
}

// waitAttempts waits for attempts that were cut off, so that the sink may be closed. A sink that does not notice is left behind.
func (r *runner) waitAttempts() {
	ended := make(chan struct{})
	go func() {
		r.attempts.Wait()
		close(ended)
	}()
	timer := time.NewTimer(stuckWait)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		r.log.Error("an attempt does not end although it was cut off")
	}
}
