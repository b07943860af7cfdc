package emit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Run runs one emitter until ctx ends, or until it turns out that another epoch owns it.
//
// It returns nil when ctx ended and every outcome that it knew is committed, ErrNotDrained when some could not be, and
// ErrStaleEpoch when an outcome was refused. Losing the lease does not end it: it pauses and goes on when the lease is back.
// It may be called again for the same emitter and epoch.
func Run(ctx context.Context, cfg Config, deps Deps) error {
	if err := errors.Join(cfg.withDefaults().validate(), deps.validate()); err != nil {
		return fmt.Errorf("run emitter %s/%s: %w", cfg.Channel, cfg.Emitter.Name, err)
	}
	r := newRunner(ctx, cfg.withDefaults(), deps)
	defer r.meter.stop()
	r.log.Debug("emitter runs")
	err := r.loop(ctx)
	r.cutOff()
	r.stopReading()
	r.stopWork()
	r.helpers.Wait()
	r.waitAttempts()
	if err != nil {
		return fmt.Errorf("run emitter %s/%s: %w", cfg.Channel, cfg.Emitter.Name, err)
	}
	r.log.Debug("emitter ended")
	return nil
}

// runner is the state of one Run. Its loop goroutine owns every field that is no channel, context or interface; short-lived
// goroutines do the waiting (one read, one proposal and one write of letters at a time, and the attempts) and answer through
// channels with room for all of them, so that none is ever stuck.
type runner struct {
	cfg   Config
	deps  Deps
	meter *meter
	log   *slog.Logger

	readCtx     context.Context
	stopReading context.CancelFunc
	attemptCtx  context.Context
	cutOff      context.CancelFunc
	workCtx     context.Context
	stopWork    context.CancelFunc
	helpers     sync.WaitGroup // reads, proposals, letters
	attempts    sync.WaitGroup

	reads    chan readDone
	results  chan attemptDone
	proposed chan error
	written  chan error

	// reading
	admitted   fifo[*work] // in log order, from the oldest unresolved on
	after      uint64
	reading    bool
	readAt     time.Time // not before
	readErrs   int
	loaded     int // bytes of payload held by works
	remembered int // bytes of their histories

	lanes *lanes
	sched schedule
	gate  *Gate
	// gateAt is when the gate is asked again; zero when an end will tell, or nothing is stopped by it.
	gateAt time.Time

	// outcomes
	outbox      []report
	outboxSince time.Time
	proposing   []report

	// dead letters
	letters   []letter
	writing   []letter
	lettersAt time.Time // not before
	writeErrs int
	held      bool

	leaseLost bool
	failing   bool
	anyFailed bool // an attempt of this Run failed
	givingUp  int  // works with backlog set
	loggedAt  time.Time
	parked    int
	lagAt     time.Time
	stop      stopState
}

func newRunner(ctx context.Context, cfg Config, deps Deps) *runner {
	logger := deps.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	r := &runner{
		cfg: cfg, deps: deps,
		meter:    newMeter(deps.Metrics, cfg.Channel, cfg.Emitter.Name),
		log:      logger.With("channel", cfg.Channel, "emitter", cfg.Emitter.Name, "epoch", cfg.Epoch),
		reads:    make(chan readDone, 1),
		results:  make(chan attemptDone, cfg.Emitter.Concurrency),
		proposed: make(chan error, 1),
		written:  make(chan error, 1),
		lanes:    newLanes(cfg.Order),
		sched:    schedule{slots: cfg.Emitter.Concurrency},
		gate:     deps.Gate,
	}
	if r.gate == nil {
		r.gate = NewGate(cfg.Emitter, Seed(cfg.ChannelIndex, cfg.EmitterIndex, 0))
	}
	detached := context.WithoutCancel(ctx)
	r.readCtx, r.stopReading = context.WithCancel(ctx)
	r.attemptCtx, r.cutOff = context.WithCancel(detached)
	r.workCtx, r.stopWork = context.WithCancel(detached)
	return r
}

// loop is the one owner of the state.
func (r *runner) loop(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	ended := ctx.Done()
	lost := r.deps.Lease.Lost()
	for {
		now := time.Now()
		r.checkLease(&lost)
		if !r.stop.stopping {
			r.readMore(now)
		}
		r.sched.ripen(now)
		r.giveUpBacklog(now)
		r.startAttempts(now)
		r.flushLetters(now)
		r.flushOutcomes(now)
		r.showGauges(now)
		if r.stop.stopping {
			if end, err := r.drained(now); end {
				return err
			}
		}
		timer.Reset(r.untilNext(now))
		select {
		case <-ended:
			ended = nil
			r.beginStop(time.Now())
		case <-lost:
		case d := <-r.reads:
			r.onRead(d)
		case d := <-r.results:
			r.onAttempt(d)
		case err := <-r.proposed:
			if errors.Is(err, ErrStaleEpoch) {
				return ErrStaleEpoch
			}
			r.onProposed(err)
		case err := <-r.written:
			r.onWritten(err)
		case <-timer.C:
		}
	}
}

// leasePoll is how often a lapsed lease is asked for again: nothing signals its return.
const leasePoll = 50 * time.Millisecond

func (r *runner) checkLease(lost *<-chan struct{}) {
	valid := r.deps.Lease.Valid()
	if valid == !r.leaseLost {
		if valid {
			*lost = r.deps.Lease.Lost()
		}
		return
	}
	r.leaseLost = !valid
	if valid {
		*lost = r.deps.Lease.Lost()
		r.log.Info("lease is back, emitter goes on")
		return
	}
	*lost = nil
	r.log.Warn("lease lost, emitter pauses")
}

// untilNext is how long the loop may sleep when nothing comes in.
func (r *runner) untilNext(now time.Time) time.Duration {
	next := r.lagAt
	sooner := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if r.leaseLost {
		sooner(now.Add(leasePoll))
	}
	if len(r.sched.waiting) > 0 {
		sooner(r.sched.waiting[0].due)
	}
	if len(r.outbox) > 0 && r.proposing == nil {
		sooner(r.outboxSince.Add(r.cfg.OutcomeLinger))
	}
	if len(r.letters) > 0 && r.writing == nil {
		sooner(r.lettersAt)
	}
	if r.readAt.After(now) {
		sooner(r.readAt)
	}
	if !r.gateAt.IsZero() {
		sooner(r.gateAt)
	}
	if r.stop.stopping {
		sooner(r.stop.next(now))
	}
	return max(0, next.Sub(now))
}

// showGauges refreshes the gauges once a second.
func (r *runner) showGauges(now time.Time) {
	if now.Before(r.lagAt) {
		return
	}
	r.lagAt = now.Add(time.Second)
	_, open := r.gate.Limit()
	r.meter.gauges(r.sched.inFlight, len(r.sched.waiting), r.parked, r.held, open)
	if r.cfg.Pending != nil {
		r.meter.lag(r.cfg.Pending())
	}
}

// pause is a bounded backoff for our own helpers, not for deliveries: doubled from lo to hi.
func pause(lo, hi time.Duration, failures int) time.Duration {
	for i := 1; i < failures && lo < hi; i++ {
		lo *= 2
	}
	return min(lo, hi)
}
