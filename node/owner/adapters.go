package owner

import (
	"context"
	"encoding/hex"
	"fmt"

	"penstock/dlq"
	"penstock/emit"
	"penstock/fsm"
	"penstock/fsm/command"
)

// DeadLetterVolume is what this package needs of the node's dead-letter volume.
type DeadLetterVolume interface {
	// Append returns once the records are fsynced, file and directory (I8).
	Append(ctx context.Context, records []dlq.Record) error
}

// maxOutcomeBytes bounds one command of outcomes. A thousand dead compactions name each position of theirs, and the cluster
// takes no command that it could not send; it would refuse the same outcomes for ever.
const maxOutcomeBytes = 1 << 20

// outcomeBytes is at least what an outcome takes in a command.
func outcomeBytes(o *emit.Outcome) int { return 80 + len(o.Reason) + 15*len(o.Positions) }

// proposer commits an emitter's outcomes, in order, as one command or as few as they fit into. Outcomes are idempotent, so
// that an error after the first of several commands does no harm: all of them come again.
type proposer struct {
	deps Deps
	info fsm.EmitterInfo
}

// Propose returns nil once the outcomes are committed, and emit.ErrStaleEpoch when another owner has taken over.
func (p *proposer) Propose(ctx context.Context, outcomes []emit.Outcome) error {
	for len(outcomes) > 0 {
		n, size := 0, 0
		for n < len(outcomes) {
			if size += outcomeBytes(&outcomes[n]); n > 0 && size > maxOutcomeBytes {
				break
			}
			n++
		}
		if err := p.propose(ctx, outcomes[:n]); err != nil {
			return err
		}
		outcomes = outcomes[n:]
	}
	return nil
}

func (p *proposer) propose(ctx context.Context, outcomes []emit.Outcome) error {
	cmd := command.Outcomes{
		ChannelIndex: p.info.ChannelIndex, EmitterIndex: p.info.EmitterIndex, Epoch: p.info.Epoch, Node: p.deps.NodeID,
		Outcomes: make([]command.Outcome, len(outcomes)),
	}
	for i, o := range outcomes {
		cmd.Outcomes[i] = command.Outcome{
			First: o.First, Last: o.Last, Kind: command.OutcomeKind(o.Kind), Attempts: o.Attempts, At: o.At.UnixNano(),
			Class: command.Class(o.Class), Status: uint16(o.Status), Reason: o.Reason, Positions: o.Positions,
		}
		if len(o.Positions) > 0 {
			if n, err := hex.Decode(cmd.Outcomes[i].Compaction[:], []byte(o.CompactionID)); err != nil || n != 16 {
				return fmt.Errorf("outcomes: compaction id %q", o.CompactionID)
			}
		}
	}
	answer, err := p.deps.Cluster.Propose(ctx, command.Encode(cmd))
	if err != nil {
		return err
	}
	result, err := command.DecodeOutcomesResult(answer)
	if err != nil {
		return fmt.Errorf("outcomes: %w", err)
	}
	switch result.Status {
	case command.OK:
		return nil
	case command.StaleEpoch, command.NoSuchEmitter:
		return emit.ErrStaleEpoch
	default:
		return fmt.Errorf("outcomes refused: %v", result.Status)
	}
}

// deadLetters writes an emitter's dead letters to this node's volume.
type deadLetters struct{ deps Deps }

// Write returns once the records are fsynced.
func (d *deadLetters) Write(ctx context.Context, letters []emit.DeadLetter) error {
	records := make([]dlq.Record, len(letters))
	for i := range letters {
		records[i] = record(&letters[i])
	}
	return d.deps.Dead.Append(ctx, records)
}

// record is the delivery as the volume keeps it, under the id the state machine gives it.
func record(l *emit.DeadLetter) dlq.Record {
	r := dlq.Record{
		ID: fsm.DeadLetterID(l.ChannelIndex, l.EmitterIndex, l.Position), State: dlq.Dead, At: l.At,
		Channel: l.Channel, Emitter: l.Emitter, ChannelIndex: l.ChannelIndex, EmitterIndex: l.EmitterIndex,
		Seq: l.Seq, Position: l.Position, CompactionID: l.CompactionID, Owner: l.Node, Epoch: l.Epoch,
		Class: l.Class.String(), Status: l.Status, Cause: l.Cause, Reason: l.Reason,
		Limits:       dlq.Limits{TTL: l.Limits.TTL, MaxAttempts: l.Limits.MaxAttempts, MaxRetries: l.Limits.MaxRetries},
		AttemptCount: l.Attempts, FirstFailedAt: l.FirstFailed, LastFailedAt: l.LastFailed, Event: l.Event,
	}
	if l.Poison {
		r.State = dlq.Poison
	}
	for _, a := range l.History {
		r.Attempts = append(r.Attempts, dlq.Attempt{At: a.At, Class: a.Class.String(), Status: a.Status, Error: a.Reason, Response: a.Body})
	}
	return r
}
