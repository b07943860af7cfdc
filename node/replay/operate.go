package replay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock/emit"
	"penstock/fsm"
	"penstock/fsm/command"
)

// ReplayOptions are those of a replay.
type ReplayOptions struct {
	Force  bool   // poison too
	DryRun bool   // attempts nothing, and needs no intent
	To     string // another emitter of the same channel
}

// Answer is what an act came to, id by id.
type Answer struct {
	Intent   [16]byte
	Statuses []emit.ReplayStatus
	Counts   map[emit.ReplayState]int
}

// discarded is the state of an id that Discard gave up.
const discarded emit.ReplayState = "discarded"

// Replay replays dead letters wherever their owners are, under one committed intent. An error means that nothing was
// dispatched.
func (s *Service) Replay(ctx context.Context, act Act, o ReplayOptions) (Answer, error) {
	var a Answer
	if !o.DryRun {
		id, err := s.audit.intend(ctx, act)
		if err != nil {
			return a, fmt.Errorf("nothing was sent: %w", err)
		}
		a.Intent = id
	}
	groups, statuses := s.group(ctx, act.Targets)
	s.keepPaused(groups, statuses)
	var all sync.WaitGroup
	var mu sync.Mutex
	for owner, g := range groups {
		q := request{
			ChannelIndex: owner.place.channelIndex, EmitterIndex: owner.place.emitterIndex, Intent: a.Intent[:], IDs: g, Force: o.Force,
			DryRun: o.DryRun, To: o.To, Within: within(ctx),
		}
		all.Go(func() {
			got := s.askOwner(ctx, owner.node, q)
			mu.Lock()
			defer mu.Unlock()
			for _, st := range got {
				statuses[st.ID] = st
			}
		})
	}
	all.Wait()
	if err := a.fill(act.Targets, statuses); err != nil {
		err = fmt.Errorf("replay: %w", err)
		s.audit.conclude(ctx, a.Intent, fsm.AuditUnknown, err.Error())
		return a, err
	}
	if !o.DryRun {
		s.audit.conclude(ctx, a.Intent, a.result(), a.text())
	}
	return a, nil
}

// within is the time an owner may take so that its answer still reaches us.
func within(ctx context.Context) time.Duration {
	at, ok := ctx.Deadline()
	if !ok {
		return maxWithin
	}
	return max(time.Until(at)*9/10, time.Millisecond)
}

type ownedBy struct {
	node  string
	place place
}

// group sorts the ids by the owner of their emitter, and answers those that are no open dead letters.
func (s *Service) group(ctx context.Context, ids []string) (map[ownedBy][]string, map[string]emit.ReplayStatus) {
	groups, statuses := map[ownedBy][]string{}, map[string]emit.ReplayStatus{}
	// What the operator saw on another node must be known here, too. If it cannot be, the owners will say so.
	_, _ = s.deps.Cluster.ReadIndex(ctx)
	for _, id := range ids {
		if _, seen := statuses[id]; seen {
			continue
		}
		switch f := s.deps.Machine.FindLetter(id); {
		case f.Settled:
			statuses[id] = emit.ReplayStatus{ID: id, State: emit.ReplayResolved, Detail: f.Result.String()}
		case !f.Open:
			statuses[id] = emit.ReplayStatus{ID: id, State: emit.ReplayNotFound}
		default:
			statuses[id] = emit.ReplayStatus{ID: id, State: emit.ReplayUnknown, Detail: "no result in time; look the id up"}
			at := place{f.Letter.ChannelIndex, f.Letter.EmitterIndex}
			e, _ := s.deps.Machine.Emitter(at.channelIndex, at.emitterIndex)
			key := ownedBy{e.Owner, at}
			groups[key] = append(groups[key], id)
		}
	}
	return groups, statuses
}

// keepPaused answers for the letters of paused emitters: a pause stops every attempt, and an operator who asks for a replay
// meanwhile is told so. A discard is no attempt.
func (s *Service) keepPaused(groups map[ownedBy][]string, statuses map[string]emit.ReplayStatus) {
	for at, ids := range groups {
		if e, ok := s.deps.Machine.Emitter(at.place.channelIndex, at.place.emitterIndex); !ok || !e.Paused {
			continue
		}
		for _, id := range ids {
			statuses[id] = emit.ReplayStatus{ID: id, State: emit.ReplayForbidden, Detail: pausedDetail}
		}
		delete(groups, at)
	}
}

const pausedDetail = "not sent: the emitter is paused; resume it first"

// fill makes the statuses in the order of the ids, and checks that they add up (K20).
func (a *Answer) fill(ids []string, statuses map[string]emit.ReplayStatus) error {
	for _, id := range ids {
		a.Statuses = append(a.Statuses, statuses[id])
	}
	a.Counts = map[emit.ReplayState]int{}
	for i, st := range a.Statuses {
		if st.ID != ids[i] || st.State == "" {
			return errors.New("an id has no status")
		}
		a.Counts[st.State]++
	}
	return nil
}

// result is the outcome for the audit trail.
func (a *Answer) result() string {
	switch {
	case a.Counts[emit.ReplayUnknown] > 0:
		return fsm.AuditUnknown
	case a.Counts[emit.ReplayDelivered]+a.Counts[discarded] == len(a.Statuses):
		return fsm.AuditSuccess
	}
	return fsm.AuditFailure
}

func (a *Answer) text() string {
	var parts []string
	for state, n := range a.Counts {
		parts = append(parts, fmt.Sprintf("%d %s", n, state))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// Discard gives up dead letters and poison, under one committed intent.
func (s *Service) Discard(ctx context.Context, act Act) (Answer, error) {
	var a Answer
	id, err := s.audit.intend(ctx, act)
	if err != nil {
		return a, fmt.Errorf("nothing was discarded: %w", err)
	}
	a.Intent = id
	groups, statuses := s.group(ctx, act.Targets)
	for owner, ids := range groups {
		for id, st := range s.discard(ctx, a.Intent, owner.place, ids) {
			statuses[id] = st
		}
	}
	if err := a.fill(act.Targets, statuses); err != nil {
		err = fmt.Errorf("discard: %w", err)
		s.audit.conclude(ctx, a.Intent, fsm.AuditUnknown, err.Error())
		return a, err
	}
	s.audit.conclude(ctx, a.Intent, a.result(), a.text())
	return a, nil
}

func (s *Service) discard(ctx context.Context, intent [16]byte, at place, ids []string) map[string]emit.ReplayStatus {
	out := map[string]emit.ReplayStatus{}
	bySeq := map[uint64]string{}
	var seqs []uint64
	for _, id := range ids {
		if f := s.deps.Machine.FindLetter(id); f.Open {
			bySeq[f.Letter.Seq] = id
			seqs = append(seqs, f.Letter.Seq)
		} else {
			out[id] = emit.ReplayStatus{ID: id, State: emit.ReplayResolved}
		}
	}
	slices.Sort(seqs)
	seqs = slices.Compact(seqs)
	states, err := proposeLetters(ctx, s.deps.Cluster, command.Discard{
		ChannelIndex: at.channelIndex, EmitterIndex: at.emitterIndex, Intent: intent, Seqs: seqs,
	})
	for i, seq := range seqs {
		st := emit.ReplayStatus{ID: bySeq[seq], State: emit.ReplayUnknown}
		switch {
		case err != nil:
			st.Detail = err.Error()
		case states[i] == command.LetterDone:
			st.State = discarded
		case states[i] == command.LetterInProgress:
			st.State = emit.ReplayInProgress
		case states[i] == command.LetterResolved:
			st.State = emit.ReplayResolved
		default:
			st.State = emit.ReplayNotFound
		}
		out[st.ID] = st
	}
	return out
}
