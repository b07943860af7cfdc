package fsm

import (
	"penstock/event"
	"penstock/fsm/command"

	"penstock/internal/mutant"
)

// retry is what is known of the attempts at a run that is not wholly resolved.
type retry struct {
	RetryInfo
	row string
}

// RetryInfo is what is known of the attempts at a run that is not wholly resolved yet.
type RetryInfo struct {
	Attempts                uint32
	FirstFailed, LastFailed int64 // unix nanoseconds, of attempts; 0 = none failed
	Class                   command.Class
	Status                  uint16
	Reason                  string
	Attempted               bool // at-most-once: the only attempt was allowed, so it may have been made
}

// applyOutcomes takes the report of an emitter's owner. Either all of it is in form and counts, or none does. A delivery
// that is resolved stays as it was said first, so that a report may come twice.
func (s *state) applyOutcomes(o command.Outcomes) command.OutcomesResult {
	e := s.emitter(o.ChannelIndex, o.EmitterIndex)
	switch {
	case e == nil:
		return command.OutcomesResult{Status: command.NoSuchEmitter}
	case !mutant.On(mutant.EmitOldEpoch) && (e.epoch != o.Epoch || e.owner != o.Node || o.Node == ""):
		return command.OutcomesResult{Status: command.StaleEpoch}
	}
	for i := range o.Outcomes {
		if !e.inForm(&o.Outcomes[i]) {
			return command.OutcomesResult{Status: command.Malformed}
		}
	}
	low := e.low
	for i := range o.Outcomes {
		s.applyOutcome(e, &o.Outcomes[i])
	}
	s.mark(e.rowProgress)
	if e.low > low || len(e.ch.carried.runs) > 0 {
		s.moveNeed(e)
		s.dropCarriedOf(e, o.Outcomes)
	}
	if e.low > low {
		for _, row := range e.runs.prune(e.low) {
			s.mark(row)
		}
	}
	return command.OutcomesResult{Status: command.OK}
}

// inForm tells whether an outcome is about deliveries that exist, lie in closed runs and within the window, and whether it
// names the position of each that becomes a dead letter.
func (e *emitter) inForm(o *command.Outcome) bool {
	if o.First <= e.start || o.First > o.Last || o.Last > e.cut || o.First > e.low+Window {
		return false
	}
	if o.Kind != command.Dead && o.Kind != command.Poison {
		return len(o.Positions) == 0
	}
	if uint64(len(o.Positions)) != o.Last-o.First+1 {
		return false
	}
	for i := range o.Positions {
		if o.Positions[i].IsZero() || (i > 0 && o.Positions[i-1].Compare(o.Positions[i]) >= 0) {
			return false
		}
	}
	return true
}

func (s *state) applyOutcome(e *emitter, o *command.Outcome) {
	switch o.Kind {
	case command.Delivered, command.Lost:
		n := s.resolveRange(e, o, nil)
		if o.Kind == command.Delivered {
			e.delivered += n
		} else {
			e.lost += n
		}
	case command.Dead, command.Poison:
		s.bury(e, o)
	case command.Failed, command.Attempted:
		s.noteAttempt(e, o)
	case command.Replayed, command.ReplayFailed, command.Discarded:
		s.exhume(e, o)
	}
}

// resolveRange resolves what is unresolved of the outcome's deliveries, calls each with it, and gives their number.
// Attempts known of runs that are wholly resolved now are forgotten.
func (s *state) resolveRange(e *emitter, o *command.Outcome, each func(seq uint64)) (n uint64) {
	for seq := max(o.First, e.low+1); seq <= o.Last; seq++ {
		if e.has(seq) {
			continue
		}
		s.resolve(e, seq)
		if n++; each != nil {
			each(seq)
		}
	}
	if n > 0 && len(e.retries) > 0 {
		e.runs.each(o.First, func(r Run) bool {
			if r.First > o.Last {
				return false
			}
			if t := e.retries[r.First]; t != nil && e.hasAll(r.First, r.Last) {
				delete(e.retries, r.First)
				s.mark(t.row)
			}
			return len(e.retries) > 0
		})
	}
	return n
}

// noteAttempt adds to what is known of the attempts at the run that holds the outcome's first delivery.
func (s *state) noteAttempt(e *emitter, o *command.Outcome) {
	run, ok := e.runs.find(o.First)
	if !ok || e.hasAll(o.First, o.Last) {
		return
	}
	t := e.retries[run.First]
	if t == nil {
		t = &retry{row: rowKey(tableRetry, e.ch.index, e.index, run.First)}
		e.retries[run.First] = t
	}
	s.mark(t.row)
	if o.Kind == command.Attempted {
		t.Attempted = true
		return
	}
	if o.At <= t.LastFailed {
		return // the same report again, after an unknown outcome: the owner's times rise from report to report
	}
	t.Attempts += o.Attempts
	if t.FirstFailed == 0 || o.At < t.FirstFailed {
		t.FirstFailed = o.At
	}
	t.LastFailed = max(t.LastFailed, o.At)
	t.Class, t.Status, t.Reason = o.Class, o.Status, o.Reason
}

// attemptsOf is the number of attempts reported for the run that holds the outcome, with those of the outcome itself.
func (e *emitter) attemptsOf(o *command.Outcome) (attempts uint32) {
	run, ok := e.runs.find(o.First)
	if !ok {
		run = Run{o.First, o.Last}
	}
	attempts = o.Attempts
	if t := e.retries[run.First]; t != nil {
		attempts += t.Attempts
	}
	return attempts
}

func positionOf(o *command.Outcome, seq uint64) event.Position { return o.Positions[seq-o.First] }
