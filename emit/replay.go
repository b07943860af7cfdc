package emit

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The kinds of outcome of a replay.
const (
	// Replayed: a dead letter was delivered by a replay. Final.
	Replayed OutcomeKind = 7
	// ReplayFailed: a replay failed; the dead letter stays, its redelivery count rises by Attempts.
	ReplayFailed OutcomeKind = 8
)

// MaxReplayIDs bounds the ids of one manual replay.
const MaxReplayIDs = 50

// ReplayState is what became of one id of a manual replay.
type ReplayState string

// The states. The counts of an answer add up to its ids.
const (
	ReplayDelivered ReplayState = "delivered"
	// ReplayNotDelivered: an attempt failed, or could certainly not be made; the dead letter stays.
	ReplayNotDelivered ReplayState = "failed"
	ReplayNotFound     ReplayState = "not_found"
	ReplayResolved     ReplayState = "resolved"
	ReplayInProgress   ReplayState = "in_progress"
	ReplayForbidden    ReplayState = "forbidden"
	// ReplayUnknown: the answer did not come in time; look the id up, do not repeat blindly (K21).
	ReplayUnknown ReplayState = "unknown"
	// ReplayWould is the answer of a dry run for what a replay would attempt.
	ReplayWould ReplayState = "would_replay"
)

// ReplayStatus is the answer for one id. It holds no payload.
type ReplayStatus struct {
	ID     string
	State  ReplayState
	Detail string
}

// Letter is an open dead letter.
type Letter struct {
	ID           string
	Seq          uint64
	Poison       bool
	Redeliveries uint32
	// CompactionID is that of the compaction it was sent with.
	CompactionID string
}

// LetterState is what the authority says of a dead letter.
type LetterState uint8

// The states of a letter.
const (
	LetterOpen LetterState = iota + 1
	LetterResolved
	LetterNotFound
	LetterInProgress // in another replay
	LetterExhausted  // scheduled replays have reached max_retries
	LetterForbidden  // poison without force, or on an at-most-once channel
)

// Letters is the authority over the dead letters of one emitter: the replicated state, and the log for their events.
type Letters interface {
	// Replayable gives at most limit letters above the sequence number after that a scheduled replay may take: dead, in no
	// replay, below max_retries.
	Replayable(ctx context.Context, after uint64, limit int) ([]Letter, error)
	// Find looks one up. State is LetterOpen, LetterInProgress, LetterResolved or LetterNotFound.
	Find(ctx context.Context, id string) (Letter, LetterState, error)
	// Compaction gives the open letters of the compaction with that id, ascending.
	Compaction(ctx context.Context, compactionID string) ([]Letter, error)
	// Load reads the deliveries of letters, in their order.
	Load(ctx context.Context, letters []Letter) ([]Delivery, error)
	// Claim reserves letters by a committed command: LetterOpen for each that is now ours, else why not. claim names it, so
	// that it may be repeated after an unknown result. ErrStaleEpoch: the emitter has another owner. Any other error means
	// that it may or may not hold.
	Claim(ctx context.Context, claim Claim, seqs []uint64) ([]LetterState, error)
	// Release gives letters back that were claimed and not attempted.
	Release(ctx context.Context, claim Claim, seqs []uint64) error
	// ReleaseStale gives back what is claimed in this epoch and not under way here: an earlier process of this node claimed it. It
	// is called while replays are under way.
	ReleaseStale(ctx context.Context) error
	// Resolved tells the volume, after the outcome is committed, that records go or have failed once more. It may fail: the
	// volume is a view.
	Resolved(ctx context.Context, results []LetterResult)
}

// Claim names a replay.
type Claim struct {
	ID        [16]byte // of the audit intent, when an operator asked
	Scheduled bool
	Force     bool // poison too
}

// LetterResult is what a replay made of a letter.
type LetterResult struct {
	Letter    Letter
	Delivered bool
	Attempt   Attempt // when it failed
}

// ReplayConfig says how an emitter's dead letters are replayed.
type ReplayConfig struct {
	Config // of the emitter; Grace bounds what is under way at the end

	// Scan is the interval of scheduled replays. Default 1 minute.
	Scan time.Duration
	// Rate bounds scheduled replays a second. A scan begins at one a second and doubles with each success. Default 20.
	Rate float64
	// Parallel bounds the attempts of manual replays. Default 4.
	Parallel int
	// Whole replays every open letter of a compaction together, under its id: for destinations that tell compactions apart and
	// would take a part for the whole.
	Whole bool
}

// ReplayDeps are what a Replayer works with. All but Metrics and Logger of Deps are required, Source and DeadLetters are not.
type ReplayDeps struct {
	Deps
	Letters Letters
}

func (c ReplayConfig) withDefaults() ReplayConfig {
	c.Config = c.Config.withDefaults()
	if c.Scan <= 0 {
		c.Scan = time.Minute
	}
	if c.Rate <= 0 {
		c.Rate = 20
	}
	if c.Parallel <= 0 {
		c.Parallel = 4
	}
	return c
}

// Replay makes one attempt at each of the ids and answers for each of them, in order, when ctx ends at the latest: what is
// still under way then is unknown, and goes on by itself. Repeated ids are attempted once and answered each time. The caller
// has committed an audit intent, whose id the claim carries.
func (r *Replayer) Replay(ctx context.Context, claim Claim, ids []string, dryRun bool) ([]ReplayStatus, error) {
	if len(ids) == 0 || len(ids) > MaxReplayIDs {
		return nil, fmt.Errorf("replay: %d ids, want 1 to %d", len(ids), MaxReplayIDs)
	}
	answers := make(chan ReplayStatus, len(ids))
	waiting := r.startUnits(ctx, claim, ids, dryRun, answers)
	states := map[string]ReplayStatus{}
	for waiting > 0 {
		select {
		case s := <-answers:
			if _, asked := states[s.ID]; !asked {
				states[s.ID] = s
				waiting--
			}
			continue
		case <-ctx.Done():
		}
		break
	}
	all := make([]ReplayStatus, len(ids))
	for i, id := range ids {
		s, ok := states[id]
		if !ok {
			s = ReplayStatus{ID: id, State: ReplayUnknown, Detail: "no result in time; look the id up"}
		}
		all[i] = s
	}
	return all, nil
}

// startUnits looks the ids up and starts what is to be attempted. It gives how many distinct ids will be answered.
func (r *Replayer) startUnits(ctx context.Context, claim Claim, ids []string, dryRun bool, answers chan<- ReplayStatus) (distinct int) {
	seen := map[string]bool{}
	taken := map[string]bool{} // ids that another one's unit answers
	var units []unit
	for _, id := range ids {
		if seen[id] {
			continue
		}
		seen[id] = true
		distinct++
		if taken[id] {
			continue
		}
		l, state, err := r.deps.Letters.Find(ctx, id)
		if s, ok := notOpen(id, state, err); ok {
			answers <- s
			continue
		}
		if l.Poison && !claim.Force {
			answers <- ReplayStatus{ID: id, State: ReplayForbidden, Detail: "poison is replayed only with force"}
			continue
		}
		letters := []Letter{l}
		if r.cfg.Whole && l.CompactionID != "" {
			if letters, err = r.deps.Letters.Compaction(ctx, l.CompactionID); err != nil || len(letters) == 0 {
				answers <- ReplayStatus{ID: id, State: ReplayNotDelivered, Detail: "not sent: the compaction cannot be read"}
				continue
			}
		}
		for _, l := range letters {
			taken[l.ID] = true
		}
		units = append(units, unit{claim: claim, letters: letters})
	}
	if dryRun {
		for _, u := range units {
			for _, l := range u.letters {
				if seen[l.ID] {
					answers <- ReplayStatus{ID: l.ID, State: ReplayWould}
				}
			}
		}
		return distinct
	}
	for _, u := range units {
		u.answer = func(s ReplayStatus) {
			if seen[s.ID] { // siblings that nobody asked for are not answered
				answers <- s
			}
		}
		if !r.start(u) {
			for _, l := range u.letters {
				u.answer(ReplayStatus{ID: l.ID, State: ReplayNotDelivered, Detail: "not sent: the emitter stops here"})
			}
		}
	}
	return distinct
}

func notOpen(id string, state LetterState, err error) (ReplayStatus, bool) {
	switch {
	case err != nil:
		return ReplayStatus{ID: id, State: ReplayNotDelivered, Detail: "not sent: " + oneLine(err.Error())}, true
	case state == LetterOpen:
		return ReplayStatus{}, false
	}
	return ReplayStatus{ID: id, State: stateOf(state)}, true
}

func stateOf(s LetterState) ReplayState {
	switch s {
	case LetterResolved:
		return ReplayResolved
	case LetterInProgress:
		return ReplayInProgress
	case LetterForbidden, LetterExhausted:
		return ReplayForbidden
	}
	return ReplayNotFound
}

// ReplayCounts are the counts of an answer.
type ReplayCounts map[ReplayState]int

// CountReplay checks that the answer is complete: one status for each id, in their order, each of a known state (K20).
func CountReplay(ids []string, all []ReplayStatus) (ReplayCounts, error) {
	if len(ids) != len(all) {
		return nil, fmt.Errorf("%d ids, %d statuses", len(ids), len(all))
	}
	counts := ReplayCounts{}
	for i, s := range all {
		switch s.State {
		case ReplayDelivered, ReplayNotDelivered, ReplayNotFound, ReplayResolved, ReplayInProgress, ReplayForbidden, ReplayUnknown, ReplayWould:
		default:
			return nil, fmt.Errorf("state %q of %s", s.State, s.ID)
		}
		if s.ID != ids[i] {
			return nil, errors.New("a status is of another id")
		}
		counts[s.State]++
	}
	return counts, nil
}
