package owner

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"penstock/emit"
	"penstock/event"
	"penstock/fsm"
	"penstock/node/logread"
)

// runsAhead is how many closed compactions are asked of the state machine at a time.
const runsAhead = 256

// source gives one emitter its pending compactions, in order: which ones the state machine says, their events the log.
// It is safe for concurrent use: one goroutine walks forward, others read a compaction again for a retry.
type source struct {
	machine      *fsm.Machine
	reader       *logread.Reader
	channelIndex uint64
	emitterIndex uint64

	mu struct {
		sync.Mutex
		// runs are the next closed compactions behind the sequence number from, as the state machine gave them.
		runs []fsm.Run
		from uint64
		// at is where the last run read began, so that the walk forward reads each entry once and not once per run.
		at fsm.Point
	}
}

// Next returns the next compaction with an unresolved delivery behind the sequence number after. It waits for one.
func (s *source) Next(ctx context.Context, after uint64) (emit.Compaction, error) {
	for {
		changed := s.machine.Changed()
		run, ok := s.nextRun(after)
		if !ok {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return emit.Compaction{}, ctx.Err()
			}
		}
		c, err := s.materialize(ctx, run)
		if err != nil {
			return emit.Compaction{}, fmt.Errorf("compaction %d to %d: %w", run.First, run.Last, err)
		}
		if s.overtaken(c) {
			continue
		}
		if len(c.Deliveries) > 0 {
			return c, nil
		}
		after = run.First // resolved meanwhile
	}
}

// overtaken tells whether an outcome was applied while the log was read: what was read before it counts as pending, what was
// read after it is left out, and a file of such a part would replace the whole one, which has the same id.
func (s *source) overtaken(c emit.Compaction) bool {
	return slices.ContainsFunc(c.Deliveries, func(d emit.Delivery) bool {
		return s.machine.Resolved(s.channelIndex, s.emitterIndex, d.Seq)
	})
}

func (s *source) nextRun(after uint64) (fsm.Run, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if after < s.mu.from {
		// A retry looks back; the walk forward keeps what it has.
		runs := s.machine.Runs(s.channelIndex, s.emitterIndex, after+1, 1)
		if len(runs) == 0 {
			return fsm.Run{}, false
		}
		return runs[0], true
	}
	for len(s.mu.runs) > 0 && s.mu.runs[0].First <= after {
		s.mu.runs = s.mu.runs[1:]
	}
	if len(s.mu.runs) == 0 {
		s.mu.runs = s.machine.Runs(s.channelIndex, s.emitterIndex, after+1, runsAhead)
	}
	s.mu.from = after
	if len(s.mu.runs) == 0 {
		return fsm.Run{}, false
	}
	return s.mu.runs[0], true
}

// materialize reads the run's events. The compaction's id comes from its first and last position, whatever is resolved of
// it (I6).
func (s *source) materialize(ctx context.Context, run fsm.Run) (emit.Compaction, error) {
	c := emit.Compaction{First: run.First, Last: run.Last}
	var first, last event.Position
	reached := uint64(0)
	applied, _ := s.machine.Applied()
	hint, failed := s.hint(), error(nil)
	err := s.reader.Numbered(ctx, s.channelIndex, run.First, applied, &hint, func(n logread.Numbered) bool {
		if n.Seq == run.First {
			first = n.Position()
		}
		last, reached = n.Position(), n.Seq
		if !s.machine.Resolved(s.channelIndex, s.emitterIndex, n.Seq) {
			d, err := delivery(n)
			if err != nil {
				failed = err
				return false
			}
			c.Deliveries = append(c.Deliveries, d)
		}
		return n.Seq < run.Last
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return c, err
	}
	if first.IsZero() || reached != run.Last {
		return c, fmt.Errorf("the log shows sequence numbers up to %d only", reached) // an id made of this would not be the id (I6)
	}
	s.remember(hint)
	c.ID = s.machine.CompactionID(s.channelIndex, s.emitterIndex, first, last)
	c.Prior = s.prior(run.First)
	return c, nil
}

// hint is where the last compaction read began.
func (s *source) hint() fsm.Point {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.at
}

func (s *source) remember(at fsm.Point) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at.Seq > s.mu.at.Seq {
		s.mu.at = at
	}
}

func delivery(n logread.Numbered) (emit.Delivery, error) {
	ev, err := n.Batch.Event(n.I)
	if err != nil {
		return emit.Delivery{}, err
	}
	env := n.Batch.Envelope(n.I)
	return emit.Delivery{
		Seq: n.Seq, Position: n.Position(), Event: ev, OrderKey: env.OrderKey, Poison: env.Flags&event.FlagPoison != 0,
	}, nil
}

func (s *source) prior(first uint64) emit.Prior {
	r, ok := s.machine.Retry(s.channelIndex, s.emitterIndex, first)
	if !ok {
		return emit.Prior{}
	}
	return emit.Prior{
		Attempts: r.Attempts, FirstFailed: stampTime(r.FirstFailed), LastFailed: stampTime(r.LastFailed),
		Class: emit.Class(r.Class), Status: int(r.Status), Attempted: r.Attempted,
	}
}

func stampTime(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}
