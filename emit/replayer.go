package emit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"penstock/internal/chaos"
)

// Replayer replays the dead letters of one emitter on its owner: by schedule, and by hand.
//
// It promises: a letter is attempted only under a claim that is committed, so that one record is never in two replays, on any
// node; its record changes only after the outcome is committed; every repeat carries the ids of the first attempt; scheduled
// replays pass the gate of the destination as retries do, one at a time, and stop when they fail.
type Replayer struct {
	cfg   ReplayConfig
	deps  ReplayDeps
	meter *meter
	log   *slog.Logger

	ctx    context.Context // of everything under way
	cancel context.CancelFunc
	slots  chan struct{}
	gate   *Gate

	mu struct {
		sync.Mutex
		closed bool
	}
	units sync.WaitGroup
}

// unit is what is attempted at once: one letter, or the open ones of a compaction.
type unit struct {
	claim   Claim
	letters []Letter
	answer  func(ReplayStatus)
	entered bool // through the gate
}

func (u *unit) seqs() []uint64 {
	seqs := make([]uint64, len(u.letters))
	for i := range u.letters {
		seqs[i] = u.letters[i].Seq
	}
	return seqs
}

func (u *unit) all(state ReplayState, detail string) {
	for _, l := range u.letters {
		u.answer(ReplayStatus{ID: l.ID, State: state, Detail: detail})
	}
}

// NewReplayer makes a Replayer; Prepare comes first, Run schedules, Close ends what is under way. It shares the Sink and the Gate of the emitter's Run.
func NewReplayer(ctx context.Context, cfg ReplayConfig, deps ReplayDeps) (*Replayer, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("replay for emitter %s/%s: %w", cfg.Channel, cfg.Emitter.Name, err)
	}
	if deps.Proposer == nil || deps.Lease == nil || deps.Sink == nil || deps.Letters == nil {
		return nil, errors.New("replay: proposer, lease, sink and letters are required")
	}
	logger := deps.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	r := &Replayer{
		cfg: cfg, deps: deps, meter: newMeter(deps.Metrics, cfg.Channel, cfg.Emitter.Name), gate: deps.Gate,
		log:   logger.With("channel", cfg.Channel, "emitter", cfg.Emitter.Name, "epoch", cfg.Epoch),
		slots: make(chan struct{}, cfg.Parallel),
	}
	if r.gate == nil {
		r.gate = NewGate(cfg.Emitter, Seed(cfg.ChannelIndex, cfg.EmitterIndex, 0))
	}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return r, nil
}

// Close takes nothing new, gives what is under way its grace, and then cuts it off: the claims of what was cut off end with the
// epoch, or are given back by the next process.
func (r *Replayer) Close() {
	r.mu.Lock()
	r.mu.closed = true
	r.mu.Unlock()
	timer := time.AfterFunc(r.cfg.Grace, r.cancel)
	r.units.Wait()
	timer.Stop()
	r.cancel()
}

// start runs a unit on a goroutine of its own; false when the Replayer is closed.
func (r *Replayer) start(u unit) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return false
	}
	r.units.Go(func() {
		select {
		case r.slots <- struct{}{}:
			defer func() { <-r.slots }()
			r.attempt(u)
		case <-r.ctx.Done():
			u.all(ReplayNotDelivered, "not sent: the emitter stops here")
		}
	})
	return true
}

// attempt claims, sends, commits and tells the volume, in this order. ok tells whether the destination took it, made whether
// it was asked at all.
func (r *Replayer) attempt(u unit) (ok, made bool) {
	var res Result
	counts := false
	defer func() {
		switch now := time.Now(); {
		case u.entered:
			r.gate.Leave(now, res, counts, true)
		case counts:
			r.gate.Note(now, res)
		}
	}()
	if !r.deps.Lease.Valid() {
		u.all(ReplayNotDelivered, "not sent: this node does not hold the lease")
		return false, false
	}
	if !r.claim(&u) {
		return false, false
	}
	deliveries, err := r.deps.Letters.Load(r.ctx, u.letters)
	if err == nil && len(deliveries) != len(u.letters) {
		err = fmt.Errorf("%d of %d events are in the log", len(deliveries), len(u.letters))
	}
	if err != nil || r.ctx.Err() != nil || !r.deps.Lease.Valid() {
		r.release(&u)
		r.log.Warn("dead letter is not replayed", "id", u.letters[0].ID, "error", err)
		u.all(ReplayNotDelivered, "not sent: the event cannot be read")
		return false, false
	}
	c := Compaction{ID: u.letters[0].CompactionID, First: deliveries[0].Seq, Last: deliveries[len(deliveries)-1].Seq, Deliveries: deliveries}
	began := time.Now()
	chaos.Point("replay.before_send")
	res = r.deps.Sink.Deliver(r.ctx, &c)
	chaos.Point("replay.after_send")
	if !res.OK && r.ctx.Err() != nil { // cut off: whether it arrived nobody knows, and it costs no attempt
		u.all(ReplayUnknown, "cut off; look the id up")
		return false, true
	}
	counts = true
	r.finish(u, res, time.Since(began))
	return res.OK, true
}

// claim reserves the letters of a unit, all or none, and answers for those it could not get.
func (r *Replayer) claim(u *unit) bool {
	ctx, cancel := context.WithTimeout(r.ctx, proposeTimeout)
	defer cancel()
	states, err := r.deps.Letters.Claim(ctx, u.claim, u.seqs())
	if err == nil && len(states) != len(u.letters) {
		err = errors.New("the claim was answered in part")
	}
	if err != nil {
		if !errors.Is(err, ErrStaleEpoch) { // it may hold: give it back
			r.release(u)
		}
		u.all(ReplayNotDelivered, "not sent: "+oneLine(err.Error()))
		return false
	}
	var got []uint64
	for i, s := range states {
		if s == LetterOpen {
			got = append(got, u.letters[i].Seq)
		}
	}
	if len(got) == len(u.letters) {
		return true
	}
	if len(got) > 0 {
		r.releaseSeqs(u.claim, got)
	}
	for i, l := range u.letters {
		s := ReplayStatus{ID: l.ID, State: stateOf(states[i])}
		if states[i] == LetterOpen {
			s = ReplayStatus{ID: l.ID, State: ReplayInProgress, Detail: "another letter of its compaction is not free"}
		}
		u.answer(s)
	}
	return false
}

func (r *Replayer) release(u *unit) { r.releaseSeqs(u.claim, u.seqs()) }

func (r *Replayer) releaseSeqs(claim Claim, seqs []uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), proposeTimeout)
	defer cancel()
	if err := r.deps.Letters.Release(ctx, claim, seqs); err != nil {
		r.log.Warn("replay claims are not released; they end with the epoch", "error", err)
	}
}

// finish commits the outcome, however often it takes while the lease is valid, and then tells the volume.
func (r *Replayer) finish(u unit, res Result, took time.Duration) {
	out := Outcome{Kind: Replayed, Attempts: 1, At: r.cfg.Now(), Status: res.Status}
	label, state := "delivered", ReplayDelivered
	if !res.OK {
		if res.Class == ClassNone || res.Class > ClassPoison {
			res.Class = ClassTransient
		}
		out.Kind, out.Class, out.Reason = ReplayFailed, res.Class, oneLine(res.Reason)
		label, state = "failed", ReplayNotDelivered
	}
	r.meter.attempt("replay_"+label, took)
	outcomes := make([]Outcome, 0, len(u.letters))
	for _, p := range stretches(deliveriesOf(u.letters)) {
		o := out
		o.First, o.Last = p.first, p.last
		outcomes = append(outcomes, o)
	}
	if err := r.commit(outcomes); err != nil {
		r.log.Warn("outcome of a replay is not committed", "id", u.letters[0].ID, "delivered", res.OK, "error", err)
		u.all(ReplayUnknown, "the outcome is not committed; look the id up")
		return
	}
	chaos.Point("replay.after_outcome")
	results := make([]LetterResult, len(u.letters))
	for i, l := range u.letters {
		results[i] = LetterResult{Letter: l, Delivered: res.OK}
		if !res.OK {
			results[i].Letter.Redeliveries++
			results[i].Attempt = Attempt{At: out.At, Class: out.Class, Status: out.Status, Reason: out.Reason, Body: res.Body}
		}
		r.meter.replayed(label)
		r.log.Info("dead letter replayed", "id", l.ID, "result", label, "status", res.Status, "reason", out.Reason)
	}
	u.all(state, out.Reason)
	r.deps.Letters.Resolved(context.WithoutCancel(r.ctx), results)
}

func deliveriesOf(letters []Letter) []Delivery {
	all := make([]Delivery, len(letters))
	for i := range letters {
		all[i].Seq = letters[i].Seq
	}
	slices.SortFunc(all, func(a, b Delivery) int { return int(int64(a.Seq) - int64(b.Seq)) })
	return all
}

// commit proposes until it is committed, the epoch is over, or the Replayer has ended.
func (r *Replayer) commit(outcomes []Outcome) error {
	for failures := 1; ; failures++ {
		err := errors.New("the lease is lost")
		if r.deps.Lease.Valid() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), proposeTimeout)
			err = r.deps.Proposer.Propose(ctx, outcomes)
			cancel()
		}
		if err == nil || errors.Is(err, ErrStaleEpoch) || r.ctx.Err() != nil {
			return err
		}
		sleep(r.ctx, pause(20*time.Millisecond, 2*time.Second, failures))
	}
}
