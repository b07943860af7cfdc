package api

import (
	"context"
	"fmt"
	"time"

	"penstock/emit"
	"penstock/event"
	"penstock/fsm"
	"penstock/fsm/command"
	"penstock/internal/spec"
	"penstock/node/logread"
)

type deliveryExplained struct {
	Emitter      string `json:"emitter"`
	State        string `json:"state"`
	CompactionID string `json:"compaction_id,omitempty"`
	Attempts     uint32 `json:"attempts"`
	LastAttempt  string `json:"last_attempt,omitempty"`
	LastClass    string `json:"last_class,omitempty"`
	LastStatus   int    `json:"last_status,omitempty"`
	LastReason   string `json:"last_reason,omitempty"`
	Next         string `json:"next"`
	NextAttempt  string `json:"next_attempt,omitempty"`
	Owner        string `json:"owner"`
	Epoch        uint64 `json:"epoch"`
	DeadLetterID string `json:"dead_letter_id,omitempty"`
}

// resolved is a delivery whose outcome is to be found in the log.
type resolved struct {
	emitter fsm.EmitterInfo
	answer  *deliveryExplained
	// epoch is the highest that was in force when the entry looked at was applied, as far as was seen: outcomes of a lower one
	// are in the log, but were refused.
	epoch uint64
	done  bool
}

func (a *API) explainDeliveries(ctx context.Context, f found) []deliveryExplained {
	out := []deliveryExplained{}
	for _, em := range a.deps.Machine.Emitters() {
		if em.ChannelIndex == f.channel.Index {
			out = append(out, deliveryExplained{Emitter: em.Emitter, Owner: em.Owner, Epoch: em.Epoch})
			a.explainDelivery(ctx, f, em, &out[len(out)-1])
		}
	}
	var open []*resolved
	for i := range out {
		if em, ok := a.deps.Machine.EmitterNamed(f.channel.Index, out[i].Emitter); ok && out[i].State == stateResolved {
			open = append(open, &resolved{emitter: em, answer: &out[i]})
		}
	}
	a.explainResolved(ctx, f, open)
	return out
}

// stateResolved is the state of a delivery as long as no more is known than that it is over.
const stateResolved = "resolved"

func (a *API) explainDelivery(ctx context.Context, f found, em fsm.EmitterInfo, d *deliveryExplained) {
	switch {
	case f.seq <= em.StartSeq:
		d.State, d.Next = "not-started", "nothing: the emitter started behind this event"
	case a.explainDead(f, em, d):
	case !a.deps.Machine.Resolved(em.ChannelIndex, em.EmitterIndex, f.seq):
		a.explainPending(ctx, f, em, d)
	default:
		d.State, d.Next = stateResolved, "nothing: it is resolved, and its outcome is no longer in the readable log"
	}
}

func (a *API) explainDead(f found, em fsm.EmitterInfo, d *deliveryExplained) bool {
	l, ok := a.deps.Machine.DeadLetterOf(em.ChannelIndex, em.EmitterIndex, f.seq)
	if !ok {
		return false
	}
	d.State, d.DeadLetterID, d.Attempts, d.CompactionID = l.State, l.ID, l.Attempts, l.CompactionID
	d.LastClass, d.LastStatus, d.LastReason, d.LastAttempt = l.Class.String(), int(l.Status), l.Reason, stampText(l.At)
	d.Next = fmt.Sprintf("nothing by itself: it is kept in the dead-letter volume of %s", l.Node)
	return true
}

func (a *API) explainPending(ctx context.Context, f found, em fsm.EmitterInfo, d *deliveryExplained) {
	d.State = "pending"
	run, closed := a.deps.Machine.RunOf(em.ChannelIndex, em.EmitterIndex, f.seq)
	if !closed {
		d.Next = fmt.Sprintf("its compaction is still open: it closes at %d events, at its bytes, or %s after its first event",
			em.Spec.Compaction.Events, time.Duration(em.Spec.Compaction.Linger))
		return
	}
	d.CompactionID, _ = a.compactionID(ctx, em, run.First, run.Last)
	r, tried := a.deps.Machine.Retry(em.ChannelIndex, em.EmitterIndex, run.First)
	if tried {
		d.Attempts, d.LastClass, d.LastStatus, d.LastReason = r.Attempts, r.Class.String(), int(r.Status), r.Reason
		d.LastAttempt = stampText(r.LastFailed)
	}
	switch {
	case em.Owner == "":
		d.Next = "it waits for the emitter to be given an owner"
	case em.Paused:
		d.Next = "the emitter is paused"
	case r.Attempted && em.Semantics == spec.AtMostOnce:
		d.Next = fmt.Sprintf("nothing more is sent: %s has begun its only attempt, and will tell how it ended", em.Owner)
	case !tried || r.Attempts == 0:
		d.Next = em.Owner + " sends it in turn"
		if em.Order != spec.OrderNone {
			d.Next += ", behind what stands before it under order " + string(em.Order)
		}
	default:
		a.explainRetry(f, em, run, r, d)
	}
}

// explainRetry says when the owner tries again, reckoned as the owner does. Only the owner knows what may put it off: a
// Retry-After of the destination, an open breaker, and whether slots are free.
func (a *API) explainRetry(f found, em fsm.EmitterInfo, run fsm.Run, r fsm.RetryInfo, d *deliveryExplained) {
	tried := emit.Tried{
		Attempts: r.Attempts, FirstFailed: time.Unix(0, r.FirstFailed), LastFailed: time.Unix(0, r.LastFailed), Class: emit.Class(r.Class),
	}
	// Of a run of several events any may have a key, so such a run is taken for bound to a lane.
	bound := em.Order == spec.OrderTotal || em.Order == spec.OrderKey && (f.event.OrderKey() != "" || run.First != run.Last)
	next := emit.Next(em.Spec.Retry, emit.Seed(em.ChannelIndex, em.EmitterIndex, run.First), tried, bound && em.OnKeyFailure == "park", 0)
	d.NextAttempt = next.At.UTC().Format(time.RFC3339Nano)
	ttl := time.Duration(em.Spec.Retry.TTL)
	switch {
	case next.Parked:
		d.Next = fmt.Sprintf("%s tries again at the slowest pace for as long as it takes: its key is parked (%s), and what follows waits", em.Owner, next.Spent)
	case next.Spent != "":
		d.Next = fmt.Sprintf("%s tries once more, then gives it up: %s", em.Owner, next.Spent)
	default:
		d.Next = em.Owner + " tries again"
		if next.Last {
			d.Next += " for the last time"
		}
		if ttl > 0 {
			d.Next += "; given up after " + tried.FirstFailed.Add(ttl).UTC().Format(time.RFC3339)
		}
		if retry := em.Spec.Retry; retry.MaxAttempts > 0 {
			d.Next += fmt.Sprintf("; given up after %d attempts", retry.MaxAttempts)
		}
	}
}

// explainResolved finds outcomes in the log, in one pass from the event on: once a delivery is resolved the state machine
// keeps only the count.
func (a *API) explainResolved(ctx context.Context, f found, open []*resolved) {
	applied, _ := a.deps.Machine.Applied()
	first, err := a.deps.Reader.First()
	if err != nil {
		return
	}
	left := len(open)
	for index := max(f.pos.Index, first); index <= applied && left > 0; index++ {
		if ctx.Err() != nil {
			for _, r := range open {
				if !r.done {
					r.answer.Next = "nothing: it is resolved; its outcome was not found within the deadline"
				}
			}
			return
		}
		e, err := a.deps.Reader.Entry(index)
		if err != nil {
			return
		}
		for _, c := range e.Commands {
			left -= a.outcomesIn(ctx, c, f.seq, open)
		}
	}
}

// outcomesIn takes what one command says about the deliveries and returns how many it settled.
func (a *API) outcomesIn(ctx context.Context, c []byte, seq uint64, open []*resolved) (settled int) {
	if kind, _, err := command.Split(c); err != nil || kind != command.KindOutcomes && kind != command.KindAssign {
		return 0
	}
	decoded, err := command.Decode(c)
	if err != nil {
		return 0
	}
	for _, r := range open {
		switch cmd := decoded.(type) {
		case command.Assign:
			r.assigned(cmd)
		case command.Outcomes:
			if o, ok := r.outcome(cmd, seq); ok {
				if r.done = a.explainOutcome(ctx, o, seq, r.emitter, r.answer); r.done {
					settled++
				}
			}
		}
	}
	return settled
}

// assigned: whether the state machine took it or refused it as stale, the epoch was above IfEpoch from there on.
func (r *resolved) assigned(cmd command.Assign) {
	for _, item := range cmd.Items {
		if item.ChannelIndex == r.emitter.ChannelIndex && item.EmitterIndex == r.emitter.EmitterIndex {
			r.epoch = max(r.epoch, item.IfEpoch+1)
		}
	}
}

func (r *resolved) outcome(cmd command.Outcomes, seq uint64) (command.Outcome, bool) {
	em := r.emitter
	if r.done || cmd.ChannelIndex != em.ChannelIndex || cmd.EmitterIndex != em.EmitterIndex || cmd.Epoch > em.Epoch || cmd.Epoch < r.epoch {
		return command.Outcome{}, false
	}
	r.epoch = cmd.Epoch
	for _, o := range cmd.Outcomes {
		if o.First <= seq && seq <= o.Last {
			return o, true
		}
	}
	return command.Outcome{}, false
}

// explainOutcome takes one outcome. final is false when others may follow: failed attempts before the end, and what became
// of a dead letter after it.
func (a *API) explainOutcome(ctx context.Context, o command.Outcome, seq uint64, em fsm.EmitterInfo, d *deliveryExplained) (final bool) {
	d.Attempts += o.Attempts
	d.LastAttempt, d.LastStatus, d.LastReason = stampText(o.At), int(o.Status), o.Reason
	switch o.Kind {
	case command.Delivered, command.Replayed:
		d.State, d.Next, d.LastClass, final = "delivered", "nothing: it is delivered", "", true
	case command.Lost:
		d.State, d.Next, d.LastClass, final = "lost", "nothing: an at-most-once channel tries once", o.Class.String(), true
	case command.Dead, command.Poison:
		d.State, d.Next, d.LastClass = "discarded", "nothing: the dead letter was discarded", o.Class.String()
	default:
		d.LastClass = o.Class.String()
		return false
	}
	// The run is the compaction; an outcome may name a part of one. Once the run is forgotten the outcome is what there is.
	run, ok := a.deps.Machine.RunOf(em.ChannelIndex, em.EmitterIndex, seq)
	if !ok {
		run = fsm.Run{First: o.First, Last: o.Last}
	}
	d.CompactionID, _ = a.compactionID(ctx, em, run.First, run.Last)
	return final
}

// compactionID reads the positions of a compaction's ends from the log.
func (a *API) compactionID(ctx context.Context, em fsm.EmitterInfo, first, last uint64) (string, error) {
	applied, _ := a.deps.Machine.Applied()
	var from, to event.Position
	err := a.deps.Reader.Numbered(ctx, em.ChannelIndex, first, applied, nil, func(n logread.Numbered) bool {
		if n.Seq == first {
			from = n.Position()
		}
		if n.Seq == last {
			to = n.Position()
		}
		return n.Seq < last
	})
	if err != nil {
		return "", err
	}
	if from.IsZero() || to.IsZero() {
		return "", fmt.Errorf("sequence numbers %d to %d are not all in the log", first, last)
	}
	return a.deps.Machine.CompactionID(em.ChannelIndex, em.EmitterIndex, from, to), nil
}
