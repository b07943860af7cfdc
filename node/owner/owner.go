// Package owner runs the emitters this node owns and, while it leads, decides who owns which.
//
// It owns the adapters between emit (which knows deliveries), fsm (which knows what is pending and whose it is), the log
// (which holds the events), cluster (which commits outcomes and grants the lease) and dlq (which holds this node's dead
// letters). It promises that an emitter runs here only while the replicated state names this node as its owner in the
// epoch the runner was started with; the lease is emit's to check. It decides nothing about retries or classes.
package owner

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"penstock/emit"
	"penstock/fsm"
	"penstock/node/logread"
)

// restartPause is the wait before an emitter that could not run is tried again.
const restartPause = time.Second

// Cluster is what this package needs of the cluster.
type Cluster interface {
	Propose(ctx context.Context, command []byte) ([]byte, error)
	Now() time.Time
}

// Deps are the parts an owner works with. All but the durations are required.
type Deps struct {
	NodeID  string
	Machine *fsm.Machine
	Reader  *logread.Reader
	Cluster Cluster
	Lease   emit.Lease
	// CaughtUp tells whether this node has applied, once since its start, everything committed before; nil: it has.
	CaughtUp func() bool
	Dead     DeadLetterVolume
	Sinks    emit.SinkDeps
	Metrics  *emit.Metrics
	Logger   *slog.Logger
	// Grace is how long attempts in flight may go on once an emitter is to stop, Flush how long its known outcomes may then
	// take to be committed; 0 is emit's default.
	Grace, Flush time.Duration
	// Beside, when set, runs next to each emitter's Run, with the same sink and gate, until its ctx ends: replays.
	Beside func(ctx context.Context, info fsm.EmitterInfo, cfg emit.Config, deps emit.Deps)
}

// Runners runs one emit.Run for each emitter this node owns.
type Runners struct {
	deps Deps
	// Owned by the goroutine of Run: the runners that should run, and the last one of an emitter that was told to stop.
	running  map[key]*runner
	stopping map[place]*runner

	notDrained atomic.Bool
	// run runs an emitter once; runOnce but in tests.
	run func(ctx context.Context, info fsm.EmitterInfo) error
}

// errMoved is why a runner is stopped that is to stop alone, not with the node.
var errMoved = errors.New("the emitter has another owner, epoch or spec")

// key names one term of ownership: a change of any part of it means a new runner.
type key struct {
	channelIndex, emitterIndex, epoch, version uint64
}

// place names an emitter.
type place struct{ channelIndex, emitterIndex uint64 }

func (k key) place() place { return place{k.channelIndex, k.emitterIndex} }

type runner struct {
	info   fsm.EmitterInfo
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// New makes Runners; Run starts them.
func New(deps Deps) *Runners {
	r := &Runners{deps: deps, running: make(map[key]*runner), stopping: make(map[place]*runner)}
	r.run = r.runOnce
	return r
}

// Run keeps the set of runners equal to what the replicated state says until ctx ends, then stops them all and waits:
// each flushes the outcomes it already knows, within the bound that flush gives.
func (r *Runners) Run(ctx context.Context) {
	if !r.awaitCaughtUp(ctx) {
		return
	}
	defer r.stopAll()
	for {
		changed := r.deps.Machine.Changed()
		r.reconcile(ctx)
		select {
		case <-changed:
		case <-time.After(restartPause): // what was stopping may have ended
		case <-ctx.Done():
			return
		}
		// Many entries are applied a second and few of them move an owner: look at most every 20 ms.
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// reconcile stops and starts. Stopping may take as long as an attempt in flight, so nothing waits for it but the next
// runner of the same emitter.
// awaitCaughtUp waits until this node has applied, once since its start, all that was committed before. What it reads until
// then is its state of long ago: it would send again what it has delivered, or what another node owns now.
func (r *Runners) awaitCaughtUp(ctx context.Context) bool {
	for r.deps.CaughtUp != nil && !r.deps.CaughtUp() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (r *Runners) reconcile(ctx context.Context) {
	want := r.wanted()
	for k, run := range r.running {
		if _, ok := want[k]; ok {
			continue
		}
		r.deps.Logger.Info("emitter stops here", "channel", run.info.Channel, "emitter", run.info.Emitter, "epoch", run.info.Epoch)
		run.cancel(errMoved)
		delete(r.running, k)
		r.stopping[k.place()] = run
	}
	for place, run := range r.stopping {
		select {
		case <-run.done:
			delete(r.stopping, place)
			if !r.named(run.info) {
				r.deps.Metrics.Forget(run.info.Channel, run.info.Emitter)
			}
		default:
		}
	}
	for k, info := range want {
		if _, ok := r.running[k]; !ok {
			r.running[k] = r.start(ctx, info, r.stopping[k.place()])
		}
	}
}

// named tells whether there is an emitter by that name, the same or one made anew: its metrics are labelled alike.
func (r *Runners) named(info fsm.EmitterInfo) bool {
	ch, ok := r.deps.Machine.Channel(info.Channel)
	if ok {
		_, ok = r.deps.Machine.EmitterNamed(ch.Index, info.Emitter)
	}
	return ok
}

func (r *Runners) wanted() map[key]fsm.EmitterInfo {
	want := make(map[key]fsm.EmitterInfo)
	for _, info := range r.deps.Machine.Emitters() {
		if info.Owner != r.deps.NodeID || info.Paused {
			continue
		}
		want[key{info.ChannelIndex, info.EmitterIndex, info.Epoch, info.ChannelVersion}] = info
	}
	return want
}

// start runs the emitter once the one before it, if it still runs, has ended: two must not write the same files.
func (r *Runners) start(ctx context.Context, info fsm.EmitterInfo, before *runner) *runner {
	ctx, cancel := context.WithCancelCause(ctx)
	run := &runner{info: info, cancel: cancel, done: make(chan struct{})}
	r.deps.Logger.Info("emitter starts here", "channel", info.Channel, "emitter", info.Emitter, "epoch", info.Epoch)
	go func() {
		defer close(run.done)
		if before != nil {
			<-before.done
		}
		r.keepRunning(ctx, info)
	}()
	return run
}

// keepRunning runs the emitter until ctx ends. A run that ends by itself (a sink that cannot be opened, say) is started
// anew: while the state names this node the emitter is its duty. One that ended since its epoch is over is not: every
// attempt it made would be one too many. This node has only not applied yet what the leader knows, and will stop it then.
func (r *Runners) keepRunning(ctx context.Context, info fsm.EmitterInfo) {
	logger := r.deps.Logger.With("channel", info.Channel, "emitter", info.Emitter, "epoch", info.Epoch)
	for ctx.Err() == nil {
		err := r.run(ctx, info)
		if ctx.Err() != nil {
			if errors.Is(err, emit.ErrNotDrained) {
				logger.Warn("emitter not drained", "error", err)
				// Only a node that stops has failed to drain. What a moved emitter could not say its next owner finds pending.
				if !errors.Is(context.Cause(ctx), errMoved) {
					r.notDrained.Store(true)
				}
			}
			return
		}
		logger.Warn("emitter interrupted", "error", err)
		if errors.Is(err, emit.ErrStaleEpoch) {
			<-ctx.Done()
			return
		}
		select {
		case <-time.After(restartPause):
		case <-ctx.Done():
		}
	}
}

func (r *Runners) runOnce(ctx context.Context, info fsm.EmitterInfo) error {
	sink, err := emit.NewSink(info.Spec, r.deps.Sinks)
	if err != nil {
		return err
	}
	defer func() {
		if err := sink.Close(); err != nil {
			r.deps.Logger.Warn("sink not closed", "channel", info.Channel, "emitter", info.Emitter, "error", err)
		}
	}()
	cfg := runConfig(info, r.deps)
	deps := emit.Deps{
		Source: &source{
			machine: r.deps.Machine, reader: r.deps.Reader, channelIndex: info.ChannelIndex, emitterIndex: info.EmitterIndex,
		},
		Proposer:    &proposer{deps: r.deps, info: info},
		DeadLetters: &deadLetters{deps: r.deps},
		Lease:       r.deps.Lease,
		Sink:        sink,
		Gate:        emit.NewGate(info.Spec, emit.Seed(info.ChannelIndex, info.EmitterIndex, 0)),
		Metrics:     r.deps.Metrics,
		Logger:      r.deps.Logger,
	}
	defer r.beside(ctx, info, cfg, deps)()
	return emit.Run(ctx, cfg, deps)
}

// beside starts what runs next to an emitter; the func it gives ends that and waits for it, before the sink is closed.
func (r *Runners) beside(ctx context.Context, info fsm.EmitterInfo, cfg emit.Config, deps emit.Deps) func() {
	if r.deps.Beside == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.deps.Beside(ctx, info, cfg, deps)
	}()
	return func() {
		cancel()
		<-done
	}
}

func runConfig(info fsm.EmitterInfo, deps Deps) emit.Config {
	return emit.Config{
		Channel: info.Channel, ChannelIndex: info.ChannelIndex, EmitterIndex: info.EmitterIndex, Epoch: info.Epoch,
		Emitter: info.Spec, Semantics: info.Semantics, Order: info.Order, OnKeyFailure: info.OnKeyFailure,
		Node: deps.NodeID, Now: deps.Cluster.Now, Grace: deps.Grace, Drain: deps.Flush,
		Pending: func() uint64 { return pending(deps.Machine, info) }, Overfull: overfull(deps.Machine, info),
	}
}

// overfull tells whether the emitter has more undelivered than its channel allows; nil unless that is to end in dead letters.
func overfull(m *fsm.Machine, info fsm.EmitterInfo) func() bool {
	ch, ok := m.Channel(info.Channel)
	if !ok || ch.Spec.Retention.OnUnresolved != "dead_letter" {
		return nil
	}
	most := uint64(ch.Spec.Retention.MaxUnresolved)
	return func() bool {
		now, ok := m.Emitter(info.ChannelIndex, info.EmitterIndex)
		return ok && now.UnresolvedBytes > most
	}
}

// pending is how many deliveries of the emitter are not resolved.
func pending(m *fsm.Machine, info fsm.EmitterInfo) uint64 {
	now, ok := m.Emitter(info.ChannelIndex, info.EmitterIndex)
	if !ok {
		return 0
	}
	return now.Pending
}

// stopAll stops every runner at once, so that the slowest flush bounds the whole and not their sum.
func (r *Runners) stopAll() {
	for _, run := range r.running {
		run.cancel(nil)
	}
	for _, run := range r.running {
		<-run.done
	}
	for _, run := range r.stopping {
		<-run.done
	}
}

// Flushed is nil when, after Run has returned, no emitter knows an outcome that it could not commit.
func (r *Runners) Flushed() error {
	if r.notDrained.Load() {
		return emit.ErrNotDrained
	}
	return nil
}
