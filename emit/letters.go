package emit

import (
	"time"
)

// letter is a work that is given up and whose records are not on disk yet.
type letter struct {
	w       *work
	kind    OutcomeKind
	outcome Outcome
	cause   string
}

// giveUp sends a work to the volume; its outcome is proposed only after the records are on disk (I8).
func (r *runner) giveUp(w *work, kind OutcomeKind, class Class, cause string, out Outcome) {
	out.Class = class
	if out.Reason == "" {
		out.Reason = cause
	}
	r.letters = append(r.letters, letter{w: w, kind: kind, outcome: out, cause: cause})
}

// lettersFull tells whether so much waits for the volume that nothing more should be started.
func (r *runner) lettersFull() bool { return len(r.letters)+len(r.writing) >= max(64, 2*r.sched.slots) }

// flushLetters writes everything that waits, one write at a time.
func (r *runner) flushLetters(now time.Time) {
	if r.writing != nil || len(r.letters) == 0 || now.Before(r.lettersAt) {
		return
	}
	r.writing, r.letters = r.letters, nil
	var records []DeadLetter
	for i := range r.writing {
		records = r.appendRecords(records, &r.writing[i])
	}
	r.helpers.Go(func() { r.written <- r.deps.DeadLetters.Write(r.workCtx, records) })
}

func (r *runner) onWritten(err error) {
	letters := r.writing
	r.writing = nil
	if err != nil {
		// Neither delivered nor durably queued: the deliveries stay pending and the emitter is held (K8).
		r.letters = append(letters, r.letters...)
		r.writeErrs++
		r.lettersAt = time.Now().Add(pause(250*time.Millisecond, 5*time.Second, r.writeErrs))
		if !r.held {
			r.held = true
			r.lagAt = time.Time{}
			r.log.Error("dead letters cannot be written, emitter is held", "error", err)
		}
		return
	}
	if r.held {
		r.held = false
		r.lagAt = time.Time{}
		r.log.Info("dead letters can be written again, emitter goes on")
	}
	r.writeErrs, r.lettersAt = 0, time.Time{}
	for _, l := range letters {
		r.resolve(l.w, l.kind, l.outcome)
	}
}

func (r *runner) appendRecords(records []DeadLetter, l *letter) []DeadLetter {
	for _, d := range l.w.deliveries {
		records = append(records, DeadLetter{
			Channel: r.cfg.Channel, Emitter: r.cfg.Emitter.Name,
			ChannelIndex: r.cfg.ChannelIndex, EmitterIndex: r.cfg.EmitterIndex,
			Node: r.cfg.Node, Epoch: r.cfg.Epoch,
			CompactionID: l.w.id, Seq: d.Seq, Position: d.Position, Event: d.Event,
			Poison: l.kind == Poison, Class: l.outcome.Class, Status: l.outcome.Status,
			Cause: l.cause, Reason: l.outcome.Reason,
			Attempts: l.w.attempts, History: l.w.history,
			FirstFailed: l.w.firstFailed, LastFailed: l.w.lastFailed, At: l.outcome.At,
			Limits: Limits{
				TTL:         time.Duration(r.cfg.Emitter.Retry.TTL),
				MaxAttempts: r.cfg.Emitter.Retry.MaxAttempts,
				MaxRetries:  r.cfg.Emitter.DeadLetter.MaxRetries,
			},
		})
	}
	return records
}
