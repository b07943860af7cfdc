package api

import (
	"context"
	"fmt"
	"time"

	"penstock/emit"
	"penstock/event"
	"penstock/fsm"
	"penstock/fsm/command"
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

func (a *API) explainDeliveries(ctx context.Context, f found) []deliveryExplained {
	out := []deliveryExplained{}
	for _, em := range a.deps.Machine.Emitters() {
		if em.ChannelIndex == f.channel.Index {
			out = append(out, a.explainDelivery(ctx, f, em))
		}
	}
	return out
}

func (a *API) explainDelivery(ctx context.Context, f found, em fsm.EmitterInfo) deliveryExplained {
	d := deliveryExplained{Emitter: em.Emitter, Owner: em.Owner, Epoch: em.Epoch}
	switch {
	case f.seq <= em.StartSeq:
		d.State, d.Next = "not-started", "nothing: the emitter started behind this event"
	case a.explainDead(f, em, &d):
	case !a.deps.Machine.Resolved(em.ChannelIndex, em.EmitterIndex, f.seq):
		a.explainPending(ctx, f, em, &d)
	default:
		a.explainResolved(ctx, f, em, &d)
	}
	return d
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
	switch {
	case em.Owner == "":
		d.Next = "it waits for the emitter to be given an owner"
	case em.Paused:
		d.Next = "the emitter is paused"
	case !tried:
		d.Next = fmt.Sprintf("%s sends it in turn", em.Owner)
	default:
		d.Attempts, d.LastClass, d.LastStatus, d.LastReason = r.Attempts, r.Class.String(), int(r.Status), r.Reason
		d.LastAttempt = stampText(r.LastFailed)
		at := time.Unix(0, r.LastFailed).Add(emit.Backoff(em.Spec.Retry, emit.Seed(em.ChannelIndex, em.EmitterIndex, run.First), int(r.Attempts)))
		d.NextAttempt = at.UTC().Format(time.RFC3339Nano)
		d.Next = fmt.Sprintf("%s tries again", em.Owner)
		if ttl := time.Duration(em.Spec.Retry.TTL); ttl > 0 {
			d.Next += "; given up after " + time.Unix(0, r.FirstFailed).Add(ttl).UTC().Format(time.RFC3339)
		}
	}
}

// explainResolved finds the outcome in the log: once resolved, the state machine keeps only the count.
func (a *API) explainResolved(ctx context.Context, f found, em fsm.EmitterInfo, d *deliveryExplained) {
	d.State, d.Next = "resolved", "nothing: it is resolved, and its outcome is no longer in the readable log"
	applied, _ := a.deps.Machine.Applied()
	first, err := a.deps.Reader.First()
	if err != nil {
		return
	}
	for index := max(f.pos.Index, first); index <= applied && ctx.Err() == nil; index++ {
		e, err := a.deps.Reader.Entry(index)
		if err != nil {
			return
		}
		for _, c := range e.Commands {
			if o, ok := outcomeFor(c, em, f.seq); ok {
				a.explainOutcome(ctx, o, em, d)
				if d.State != "resolved" {
					return
				}
			}
		}
	}
}

func outcomeFor(c []byte, em fsm.EmitterInfo, seq uint64) (command.Outcome, bool) {
	if kind, _, err := command.Split(c); err != nil || kind != command.KindOutcomes {
		return command.Outcome{}, false
	}
	decoded, err := command.Decode(c)
	cmd, ok := decoded.(command.Outcomes)
	if err != nil || !ok || cmd.ChannelIndex != em.ChannelIndex || cmd.EmitterIndex != em.EmitterIndex || cmd.Epoch > em.Epoch {
		return command.Outcome{}, false
	}
	for _, o := range cmd.Outcomes {
		if o.First <= seq && seq <= o.Last {
			return o, true
		}
	}
	return command.Outcome{}, false
}

func (a *API) explainOutcome(ctx context.Context, o command.Outcome, em fsm.EmitterInfo, d *deliveryExplained) {
	d.Attempts += o.Attempts
	d.LastAttempt, d.LastStatus, d.LastReason = stampText(o.At), int(o.Status), o.Reason
	switch o.Kind {
	case command.Delivered:
		d.State, d.Next, d.LastClass = "delivered", "nothing: it is delivered", ""
	case command.Lost:
		d.State, d.Next, d.LastClass = "lost", "nothing: an at-most-once channel tries once", o.Class.String()
	case command.Dead, command.Poison:
		d.State, d.Next, d.LastClass = "discarded", "nothing: the dead letter was discarded", o.Class.String()
	default:
		d.LastClass = o.Class.String()
		return
	}
	d.CompactionID, _ = a.compactionID(ctx, em, o.First, o.Last)
}

// compactionID reads the positions of a compaction's ends from the log.
func (a *API) compactionID(ctx context.Context, em fsm.EmitterInfo, first, last uint64) (string, error) {
	p, ok := a.deps.Machine.Point(em.ChannelIndex, first)
	if !ok {
		return "", fmt.Errorf("sequence number %d is no longer in the log", first)
	}
	applied, _ := a.deps.Machine.Applied()
	var from, to event.Position
	err := a.deps.Reader.Walk(ctx, em.ChannelIndex, p.Index, p.Seq, applied, func(n logread.Numbered) bool {
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
	return a.deps.Machine.CompactionID(em.ChannelIndex, em.EmitterIndex, from, to), nil
}
