package emit

import (
	"context"
	"errors"
	"time"

	"penstock/emit/sink"
	"penstock/event"
)

// The words shared with the kinds, see package sink.
type (
	Sink       = sink.Sink
	Delivery   = sink.Delivery
	Compaction = sink.Compaction
	Prior      = sink.Prior
	Result     = sink.Result
	Class      = sink.Class
)

// The classes of failure, see package sink.
const (
	ClassNone      = sink.None
	ClassTransient = sink.Transient
	ClassPermanent = sink.Permanent
	ClassAuth      = sink.Auth
	ClassPoison    = sink.Poison
)

// OutcomeKind says what is now known of a run of deliveries.
type OutcomeKind uint8

// The kinds of outcome.
const (
	// Delivered: the destination has it. Final.
	Delivered OutcomeKind = 1
	// Failed: an attempt failed, the deliveries stay pending.
	Failed OutcomeKind = 2
	// Dead: given up; a dead-letter record is on disk. Final.
	Dead OutcomeKind = 3
	// Poison: can never succeed; a record is on disk. Final.
	Poison OutcomeKind = 4
	// Lost: at-most-once only: the only attempt failed or has no outcome. Final.
	Lost OutcomeKind = 5
	// Attempted: at-most-once only: the only attempt is about to be made.
	Attempted OutcomeKind = 6
)

var outcomeNames = [...]string{
	Delivered: "delivered", Failed: "failed", Dead: "dead", Poison: "poison", Lost: "lost", Attempted: "attempted",
	Replayed: "replayed", ReplayFailed: "replay-failed",
}

// String gives the name used in metrics and logs.
func (k OutcomeKind) String() string {
	if int(k) < len(outcomeNames) && k != 0 {
		return outcomeNames[k]
	}
	return "unknown"
}

// Final tells whether the deliveries are resolved by an outcome of this kind.
func (k OutcomeKind) Final() bool { return k != Failed && k != Attempted && k != ReplayFailed }

// Outcome is what a Run reports through the log about the channel sequence numbers First..Last.
//
// A final outcome names exactly deliveries that the Source gave; a compaction that came with gaps (some of it resolved
// earlier, or poison) is reported as one outcome for each unbroken stretch. Failed and Attempted name the whole compaction.
type Outcome struct {
	First, Last uint64
	Kind        OutcomeKind
	// Attempts made since the last report of this compaction, this one included.
	Attempts uint32
	// At is when the last attempt ended, by Config.Now. It grows from report to report of one compaction, so that a report
	// repeated after an unknown result can be told from a new one.
	At     time.Time
	Class  Class
	Status int
	// Reason is at most MaxReason bytes of valid UTF-8.
	Reason string
	// Positions, of Dead and Poison, are those of First..Last in order.
	Positions []event.Position
	// CompactionID, of Dead and Poison, is that of the whole compaction.
	CompactionID string
}

// MaxReason bounds Outcome.Reason in bytes.
const MaxReason = 256

// Attempt is one failed attempt as the owner remembers it.
type Attempt struct {
	At     time.Time
	Class  Class
	Status int
	Reason string
	// Body is the beginning of the destination's answer, at most 1 KiB.
	Body []byte
}

// DeadLetter is one delivery on its way to this node's volume.
type DeadLetter struct {
	Channel, Emitter           string
	ChannelIndex, EmitterIndex uint64
	Node                       string
	Epoch                      uint64
	CompactionID               string
	Seq                        uint64
	Position                   event.Position
	Event                      event.Event
	// Poison tells a poison record from a dead letter.
	Poison bool
	Class  Class
	Status int
	// Cause says which rule ended it, Reason what the last attempt met.
	Cause, Reason string
	// Attempts counts all of them; History holds those that this owner knows, oldest first.
	Attempts                uint32
	History                 []Attempt
	FirstFailed, LastFailed time.Time
	At                      time.Time
	Limits                  Limits
}

// Limits are the budget that a dead letter used up and the bound of its replays.
type Limits struct {
	TTL         time.Duration
	MaxAttempts int
	MaxRetries  int
}

// Source gives the pending compactions of one emitter, in log order.
type Source interface {
	// Next returns the pending compaction with the lowest First > after. It blocks until there is one, and returns ctx's error
	// when ctx ends first. It is called by several goroutines at once: by one that walks forward, and by those that read a
	// compaction again for a retry, with after = First - 1.
	Next(ctx context.Context, after uint64) (Compaction, error)
}

// Proposer commits outcomes.
type Proposer interface {
	// Propose commits all outcomes with one command, in order. ErrStaleEpoch (wrapped or not) ends the Run. After any other
	// error the same outcomes are proposed again, so they must be idempotent: the first may have been committed.
	Propose(ctx context.Context, outcomes []Outcome) error
}

// DeadLetters is this node's volume.
type DeadLetters interface {
	// Write returns nil only after an fsync of file and directory (I8). After an error the same records come again.
	Write(ctx context.Context, letters []DeadLetter) error
}

// Lease is this node's right to run emitters.
type Lease interface {
	// Valid tells whether the lease is held now, by the monotonic clock.
	Valid() bool
	// Lost is closed when the lease lapses; ask again after it is back.
	Lost() <-chan struct{}
}

// Errors of Run.
var (
	// ErrStaleEpoch: another epoch owns the emitter. A Proposer returns it; Run ends with it.
	ErrStaleEpoch = errors.New("stale epoch: the emitter has another owner")
	// ErrNotDrained: Run was told to end and could not commit each outcome that it knew. Nothing is lost: those deliveries are
	// still pending and are repeated under the same ids.
	ErrNotDrained = errors.New("known outcomes were not committed before the drain ended")
)
