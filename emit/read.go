package emit

import (
	"context"
	"errors"
	"time"

	"penstock/internal/spec"
)

type readDone struct {
	c   Compaction
	err error
}

// readMore asks for the next compaction when there is room for it: in the window, in memory, and in the queue of first
// attempts, which needs to hold no more than keeps the slots busy.
func (r *runner) readMore(now time.Time) {
	if r.reading || r.held || now.Before(r.readAt) || r.loaded >= r.cfg.MemoryBytes ||
		r.sched.first.len() >= max(32, 2*r.sched.slots) || r.lettersFull() || r.windowFull() {
		return
	}
	// In one lane there is nothing to be found further on, so nothing is read that would have to be shed.
	if r.cfg.Order == spec.OrderTotal && (r.admitted.len() >= totalAhead || r.loaded >= r.cfg.MemoryBytes/2) {
		return
	}
	r.reading = true
	after := r.after
	r.helpers.Go(func() {
		c, err := r.deps.Source.Next(r.readCtx, after)
		r.reads <- readDone{c: c, err: err}
	})
}

// totalAhead bounds the compactions read ahead under order total.
const totalAhead = 1024

// windowFull tells whether one more delivery would lie beyond the window of the oldest unresolved one.
func (r *runner) windowFull() bool {
	return r.admitted.len() > 0 && r.after+1-r.admitted.front().first >= r.cfg.Window
}

func (r *runner) onRead(d readDone) {
	r.reading = false
	if r.stop.stopping || r.readCtx.Err() != nil {
		return
	}
	err := d.err
	if err == nil && d.c.First <= r.after {
		err = errors.New("the source went backwards")
	}
	if err != nil {
		r.readErrs++
		r.readAt = time.Now().Add(pause(100*time.Millisecond, 5*time.Second, r.readErrs))
		if r.readErrs == 1 {
			r.log.Error("pending deliveries cannot be read", "after", r.after, "error", err)
		}
		return
	}
	if r.readErrs > 0 {
		r.log.Info("pending deliveries can be read again")
	}
	r.readErrs, r.readAt = 0, time.Time{}
	// The window counts deliveries, so the walk goes on behind the compaction's last one.
	r.after = max(d.c.First, d.c.Last)
	r.admit(d.c)
}

// admit takes a compaction in: what is poison goes to the letters, what was announced under at-most-once is lost, the rest
// stands in its lanes.
func (r *runner) admit(c Compaction) {
	good, poison := split(c.Deliveries)
	if len(poison) > 0 {
		w := r.newWork(&c, poison)
		r.giveUp(w, Poison, ClassPoison, "the event is poison: it was kept but can never be delivered", w.newOutcome(r.cfg.Now()))
	}
	if len(good) == 0 {
		return
	}
	w := r.newWork(&c, good)
	if r.atMostOnce() && c.Prior.Attempted {
		out := w.newOutcome(r.cfg.Now())
		out.Class, out.Reason = ClassTransient, "the only attempt was announced and has no outcome"
		r.resolve(w, Lost, out)
		return
	}
	w.attempts = c.Prior.Attempts
	w.firstFailed, w.lastFailed = c.Prior.FirstFailed, c.Prior.LastFailed
	now := time.Now()
	if w.attempts > 0 {
		// The schedule goes on where the last owner stood. A clock that moved cannot make it wait longer than it would have.
		wait := Next(r.cfg.Emitter.Retry, w.seed, w.tried(c.Prior.Class), r.lanes.binds(good) && r.cfg.OnKeyFailure == "park", 0).At.Sub(w.lastFailed)
		w.due = now.Add(min(wait, wait-r.cfg.Now().Sub(w.lastFailed)))
	}
	if r.lanes.enter(w) {
		r.sched.add(w, now)
	}
	if w.blocked > 0 || w.due.After(now) {
		r.shed(w)
	}
}

func (r *runner) newWork(c *Compaction, deliveries []Delivery) *work {
	w := &work{
		id: c.ID, first: c.First, last: c.Last, seed: Seed(r.cfg.ChannelIndex, r.cfg.EmitterIndex, c.First),
		deliveries: deliveries, bytes: weight(deliveries),
	}
	r.loaded += w.bytes
	r.admitted.push(w)
	return w
}

// shed lets go of the payload of a work that waits when memory is more than half used; it is read again at its turn.
func (r *runner) shed(w *work) {
	if r.loaded > r.cfg.MemoryBytes/2 {
		r.unload(w)
	}
}

func (r *runner) unload(w *work) {
	if w.deliveries != nil {
		r.loaded -= w.bytes
		w.deliveries = nil
	}
}

// finish takes a work whose end is committed out of the window.
func (r *runner) finish(w *work) {
	w.done = true
	if w.backlog {
		w.backlog = false
		r.givingUp--
	}
	r.unload(w)
	r.forget(w)
	r.unpark(w)
	r.leaveLanes(w)
	for r.admitted.len() > 0 && r.admitted.front().done {
		r.admitted.pop()
	}
}

func (r *runner) leaveLanes(w *work) {
	if w.keys == nil {
		return
	}
	now := time.Now()
	for _, free := range r.lanes.leave(w) {
		r.sched.add(free, now)
	}
}

// reload reads the payload of a shed work again. ok is false when the source no longer has it pending.
func (r *runner) reload(ctx context.Context, first uint64) (deliveries []Delivery, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	c, err := r.deps.Source.Next(ctx, first-1)
	if err != nil {
		return nil, true, err
	}
	good, _ := split(c.Deliveries)
	return good, c.First == first && len(good) > 0, nil
}

// reloadTimeout bounds a reload: Next blocks when the compaction was resolved by somebody else and nothing follows it.
const reloadTimeout = 10 * time.Second
