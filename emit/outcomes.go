package emit

import (
	"context"
	"errors"
	"time"

	"penstock/internal/chaos"
)

// report is what is to be committed about a work, in one proposal.
type report struct {
	w        *work
	kind     OutcomeKind
	outcomes []Outcome
	n        int // deliveries that it resolves
}

// newOutcome begins a report of the whole work. At grows from report to report of a work, so that the state machine can tell
// a repeat after an unknown result from a new one.
func (w *work) newOutcome(now time.Time) Outcome {
	if !now.After(w.lastFailed) {
		now = w.lastFailed.Add(1)
	}
	out := Outcome{First: w.first, Last: w.last, Attempts: w.unreported, At: now}
	return out
}

// resolve reports the end of a work whose deliveries are loaded: one outcome for each unbroken stretch of them.
func (r *runner) resolve(w *work, kind OutcomeKind, like Outcome) {
	parts := stretches(w.deliveries)
	outcomes := make([]Outcome, len(parts))
	for i, p := range parts {
		out := like
		out.First, out.Last = p.first, p.last
		if kind == Dead || kind == Poison {
			out.Positions, out.CompactionID = p.positions, w.id
		}
		outcomes[i] = out
	}
	n := len(w.deliveries)
	r.unload(w)
	r.report(w, kind, outcomes)
	r.outbox[len(r.outbox)-1].n = n
}

// report queues outcomes for the next proposal. Reports of one work are committed in the order in which they are made.
func (r *runner) report(w *work, kind OutcomeKind, outcomes []Outcome) {
	for i := range outcomes {
		outcomes[i].Kind = kind
	}
	w.unreported = 0
	if len(r.outbox) == 0 {
		r.outboxSince = time.Now()
	}
	r.outbox = append(r.outbox, report{w: w, kind: kind, outcomes: outcomes})
}

// flushOutcomes proposes what is finished once enough of it is there or it has waited long enough. One proposal is under way
// at a time; what finishes meanwhile goes with the next, so batches grow with the load.
func (r *runner) flushOutcomes(now time.Time) {
	if r.proposing != nil || len(r.outbox) == 0 {
		return
	}
	if len(r.outbox) < r.cfg.OutcomeBatch && now.Before(r.outboxSince.Add(r.cfg.OutcomeLinger)) && !r.stop.stopping {
		return
	}
	n, positions := 0, 0
	for n < len(r.outbox) && n < r.cfg.OutcomeBatch && positions <= positionsPerProposal {
		for _, out := range r.outbox[n].outcomes {
			positions += 1 + len(out.Positions)
		}
		n++
	}
	r.proposing = r.outbox[:n:n]
	r.outbox = r.outbox[n:]
	r.outboxSince = now
	var outcomes []Outcome
	for _, rep := range r.proposing {
		outcomes = append(outcomes, rep.outcomes...)
	}
	r.helpers.Go(func() { r.proposed <- r.propose(outcomes) })
}

// positionsPerProposal bounds a command: it is reached by dead letters of large compactions only.
const positionsPerProposal = 16_384

// proposeTimeout bounds one proposal; after it the result is unknown and the same outcomes are proposed again.
const proposeTimeout = 10 * time.Second

// propose commits outcomes however often it takes, while the lease is valid. It returns nil, ErrStaleEpoch, or the last
// error when workCtx ended.
func (r *runner) propose(outcomes []Outcome) error {
	var last error
	for failures := 0; ; {
		if r.workCtx.Err() != nil {
			return errors.Join(r.workCtx.Err(), last)
		}
		if !r.deps.Lease.Valid() {
			sleep(r.workCtx, leasePoll)
			continue
		}
		ctx, cancel := context.WithTimeout(r.workCtx, proposeTimeout)
		err := r.deps.Proposer.Propose(ctx, outcomes)
		cancel()
		if err == nil {
			chaos.Point("emit.after_outcome")
			r.meter.proposed("committed")
			if failures > 0 {
				r.log.Info("outcomes can be committed again")
			}
			return nil
		}
		if errors.Is(err, ErrStaleEpoch) {
			return err
		}
		r.meter.proposed("failed")
		last = err
		if failures++; failures == 1 {
			r.log.Warn("outcomes cannot be committed, trying on", "error", err)
		}
		sleep(r.workCtx, pause(20*time.Millisecond, 2*time.Second, failures))
	}
}

func (r *runner) onProposed(err error) {
	reports := r.proposing
	r.proposing = nil
	if err != nil { // only when workCtx ended
		r.stop.lastErr = err
		r.outbox = append(reports, r.outbox...)
		return
	}
	for _, rep := range reports {
		switch {
		case rep.kind == Attempted:
			rep.w.announced = true
			r.launch(rep.w)
		case rep.kind.Final():
			r.meter.resolved(rep.kind, rep.n)
			r.finish(rep.w)
		}
	}
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
