package replay

import (
	"context"
	"fmt"
	"slices"

	"penstock/dlq"
	"penstock/fsm"
	"penstock/fsm/command"
)

// dropBatch bounds the dead letters of one intent.
const dropBatch = 500

// Drop discards what the volume has to give up at its bound (overflow: drop_oldest), each under an audit intent of the node
// itself. What is no longer open, or belongs to another owner, needs no discard. nil means that all of it may go.
func (s *Service) Drop(ctx context.Context, drops []dlq.Drop) error {
	mine := map[place][]dlq.Drop{}
	for _, d := range drops {
		e, ok := s.deps.Machine.Emitter(d.ChannelIndex, d.EmitterIndex)
		if !ok || e.Owner != s.deps.NodeID {
			continue
		}
		if s.deps.Machine.FindLetter(d.ID).Open {
			at := place{d.ChannelIndex, d.EmitterIndex}
			mine[at] = append(mine[at], d)
		} else if !s.deps.Machine.Resolved(d.ChannelIndex, d.EmitterIndex, d.Seq) {
			return fmt.Errorf("dead letter %s is not committed yet", d.ID)
		}
	}
	for at, list := range mine {
		slices.SortFunc(list, func(a, b dlq.Drop) int { return int(int64(a.Seq) - int64(b.Seq)) })
		for batch := range slices.Chunk(list, dropBatch) {
			if err := s.dropSome(ctx, at, batch); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Service) dropSome(ctx context.Context, at place, list []dlq.Drop) error {
	act := Act{Actor: "node:" + s.deps.NodeID, Action: "dlq.drop", Reason: "dead_letter." + list[0].Cause + " reached, overflow is drop_oldest"}
	var seqs []uint64
	for _, d := range list {
		act.Targets = append(act.Targets, d.ID)
		seqs = append(seqs, d.Seq)
	}
	id, err := s.audit.intend(ctx, act)
	if err != nil {
		return err
	}
	states, err := proposeLetters(ctx, s.deps.Cluster, command.Discard{
		ChannelIndex: at.channelIndex, EmitterIndex: at.emitterIndex, Intent: id, Seqs: slices.Compact(seqs),
	})
	if err != nil {
		s.audit.conclude(ctx, id, fsm.AuditUnknown, err.Error())
		return err
	}
	for _, st := range states {
		if st == command.LetterInProgress {
			s.audit.conclude(ctx, id, fsm.AuditFailure, "some are being replayed")
			return fmt.Errorf("dead letters are being replayed")
		}
	}
	s.audit.conclude(ctx, id, fsm.AuditSuccess, fmt.Sprintf("%d discarded", len(states)))
	return nil
}
