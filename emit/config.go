package emit

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"penstock/internal/spec"
)

// Config says which emitter a Run is and within which bounds it works.
type Config struct {
	Channel                    string
	ChannelIndex, EmitterIndex uint64
	// Emitter is the emitter's spec after defaults: Retry, Concurrency and DeadLetter are read here.
	Emitter      spec.Emitter
	Semantics    spec.Semantics
	Order        spec.Order
	OnKeyFailure string // park | skip; read under order key and total
	// Node and Epoch are the owner, for dead-letter records and logs.
	Node  string
	Epoch uint64

	// Window is how many deliveries may lie between the oldest unresolved one and the newest one read. Default 65,536.
	Window uint64
	// MemoryBytes bounds the payload held for deliveries that wait; what is over it is read again when its turn comes.
	// Default 32 MiB.
	MemoryBytes int
	// OutcomeLinger and OutcomeBatch say how long and how many finished outcomes are gathered before they are proposed.
	// Defaults 3 ms and 1024.
	OutcomeLinger time.Duration
	OutcomeBatch  int
	// Grace is how long attempts in flight may go on after Run was told to end; then they are cut off, which costs no attempt.
	// Default 2 s. Drain is how long known outcomes may take to be committed after that. Default 5 s.
	Grace, Drain time.Duration
	// Now is the cluster's clock, for what is recorded and for ttl. Default time.Now. Waits use the local monotonic clock.
	Now func() time.Time
	// Pending, when set, is asked once a second for the metric penstock_emit_lag_events.
	Pending func() uint64
	// Overfull, when set, tells whether more is undelivered than the channel allows. While it does and the destination fails, the
	// oldest deliveries that wait become dead letters. nil: never.
	Overfull func() bool
}

// Deps are what a Run works with. Source, Proposer, DeadLetters, Lease and Sink are required. Run does not close the Sink.
type Deps struct {
	Source      Source
	Proposer    Proposer
	DeadLetters DeadLetters
	Lease       Lease
	Sink        Sink
	Gate        *Gate        // nil: one of its own; share it with the Replayer of the emitter
	Metrics     *Metrics     // nil: none
	Logger      *slog.Logger // nil: none
}

func (c Config) withDefaults() Config {
	if c.Window == 0 {
		c.Window = 65_536
	}
	if c.MemoryBytes == 0 {
		c.MemoryBytes = 32 << 20
	}
	if c.OutcomeLinger == 0 {
		c.OutcomeLinger = 3 * time.Millisecond
	}
	if c.OutcomeBatch == 0 {
		c.OutcomeBatch = 1024
	}
	if c.Grace == 0 {
		c.Grace = 2 * time.Second
	}
	if c.Drain == 0 {
		c.Drain = 5 * time.Second
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Emitter.Concurrency == 0 {
		c.Emitter.Concurrency = 16
	}
	return c
}

// validate refuses what would retry without a pause or for ever (L17), whoever let it through.
func (c Config) validate() error {
	var errs []error
	if c.Emitter.Retry.Backoff.Min <= 0 {
		errs = append(errs, errors.New("retry.backoff.min must be above 0"))
	}
	if c.Emitter.Retry.TTL <= 0 && c.Emitter.Retry.MaxAttempts <= 0 {
		errs = append(errs, errors.New("retry.ttl and retry.max_attempts are both without limit"))
	}
	if c.Emitter.Concurrency < 1 {
		errs = append(errs, errors.New("concurrency must be at least 1"))
	}
	switch c.Semantics {
	case spec.AtMostOnce, spec.AtLeastOnce, spec.ExactlyOnce:
	default:
		errs = append(errs, fmt.Errorf("semantics %q is none of the three", c.Semantics))
	}
	return errors.Join(errs...)
}

func (d Deps) validate() error {
	if d.Source == nil || d.Proposer == nil || d.DeadLetters == nil || d.Lease == nil || d.Sink == nil {
		return errors.New("source, proposer, dead letters, lease and sink are required")
	}
	return nil
}
