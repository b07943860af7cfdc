package emit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/event"
	"penstock/internal/spec"
)

// world is the rest of Penstock for one emitter: the log with its pending compactions, the replicated state that outcomes are
// applied to, the volume, the lease and the destination. journal is what happened, in order.
type world struct {
	t  *testing.T
	mu sync.Mutex

	compactions []Compaction
	resolved    map[uint64]OutcomeKind // by sequence number
	prior       map[uint64]Prior       // by first sequence number
	changed     chan struct{}
	source      func() error

	journal  []string
	outcomes []Outcome
	propose  func(outcomes []Outcome) error // before they are applied; an error refuses them

	letters []DeadLetter
	write   func() error

	valid bool
	lost  chan struct{}

	deliver func(ctx context.Context, c *Compaction) Result
	sends   []send
	began   time.Time
}

type send struct {
	id   string
	seqs []uint64
	at   time.Duration
}

func newWorld(t *testing.T) *world {
	return &world{
		t: t, resolved: map[uint64]OutcomeKind{}, prior: map[uint64]Prior{}, changed: make(chan struct{}),
		valid: true, lost: make(chan struct{}), began: time.Now(),
		deliver: func(context.Context, *Compaction) Result { return Result{OK: true, Status: 200} },
	}
}

// add cuts a compaction of n events; keys are given to them in turn.
func (w *world) add(n int, keys ...uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := uint64(1)
	if k := len(w.compactions); k > 0 {
		first = w.compactions[k-1].Last + 1
	}
	c := Compaction{ID: fmt.Sprintf("c%d", first), First: first, Last: first + uint64(n) - 1}
	for i := range n {
		seq := first + uint64(i)
		d := Delivery{
			Seq: seq, Position: event.Position{Index: 100 + seq},
			Event: event.Event{ID: fmt.Sprintf("e%d", seq), Source: "/s", Type: "t", DataKind: event.DataJSON, Data: []byte(fmt.Sprint(seq))},
		}
		if len(keys) > 0 {
			d.OrderKey = keys[i%len(keys)]
		}
		c.Deliveries = append(c.Deliveries, d)
	}
	w.compactions = append(w.compactions, c)
	w.notify()
}

func (w *world) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *world) Next(ctx context.Context, after uint64) (Compaction, error) {
	for {
		w.mu.Lock()
		if w.source != nil {
			if err := w.source(); err != nil {
				w.mu.Unlock()
				return Compaction{}, err
			}
		}
		for _, c := range w.compactions {
			if c.First <= after {
				continue
			}
			out := c
			out.Deliveries = nil
			for _, d := range c.Deliveries {
				if w.resolved[d.Seq] == 0 {
					out.Deliveries = append(out.Deliveries, d)
				}
			}
			if len(out.Deliveries) > 0 {
				out.Prior = w.prior[c.First]
				w.mu.Unlock()
				return out, nil
			}
		}
		changed := w.changed
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return Compaction{}, ctx.Err()
		case <-changed:
		}
	}
}

func (w *world) Propose(_ context.Context, outcomes []Outcome) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.propose != nil {
		if err := w.propose(outcomes); err != nil {
			return err
		}
	}
	for _, o := range outcomes {
		w.journal = append(w.journal, fmt.Sprintf("%s %d-%d", o.Kind, o.First, o.Last))
		w.outcomes = append(w.outcomes, o)
		p := w.prior[o.First]
		switch {
		case o.Kind == Attempted:
			p.Attempted = true
			w.prior[o.First] = p
		case o.Kind == Failed:
			if p.Attempts == 0 {
				p.FirstFailed = o.At
			}
			if o.At.After(p.LastFailed) {
				p.Attempts += o.Attempts
			}
			p.LastFailed, p.Class, p.Status, p.Reason = o.At, o.Class, o.Status, o.Reason
			w.prior[o.First] = p
		default:
			for seq := o.First; seq <= o.Last; seq++ {
				if w.resolved[seq] == 0 {
					w.resolved[seq] = o.Kind
				}
			}
		}
	}
	w.notify()
	return nil
}

func (w *world) Write(_ context.Context, letters []DeadLetter) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.write != nil {
		if err := w.write(); err != nil {
			return err
		}
	}
	for _, l := range letters {
		w.journal = append(w.journal, fmt.Sprintf("fsync %d", l.Seq))
	}
	w.letters = append(w.letters, letters...)
	return nil
}

func (w *world) Valid() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.valid }
func (w *world) Lost() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

func (w *world) setLease(valid bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.valid && !valid {
		close(w.lost)
		w.lost = make(chan struct{})
	}
	w.valid = valid
}

func (w *world) Deliver(ctx context.Context, c *Compaction) Result {
	s := send{id: c.ID, at: time.Since(w.began)}
	for _, d := range c.Deliveries {
		s.seqs = append(s.seqs, d.Seq)
	}
	w.mu.Lock()
	w.sends = append(w.sends, s)
	w.journal = append(w.journal, "send "+c.ID)
	deliver := w.deliver
	w.mu.Unlock()
	return deliver(ctx, c)
}

func (w *world) Close() error { return nil }

// config is an emitter with plain retries: 1 s doubling to 1 m without jitter, ttl 30 m.
func config() Config {
	return Config{
		Channel: "ch", ChannelIndex: 1, EmitterIndex: 2, Node: "n1", Epoch: 7,
		Semantics: spec.AtLeastOnce, Order: spec.OrderNone, OnKeyFailure: "park",
		Emitter: spec.Emitter{
			Name: "em", Kind: "webhook", Concurrency: 4,
			Retry: spec.Retry{TTL: spec.Duration(30 * time.Minute), Backoff: spec.Backoff{
				Min: spec.Duration(time.Second), Max: spec.Duration(time.Minute),
			}},
			DeadLetter: spec.DeadLetter{MaxRetries: 5},
		},
	}
}

// start runs the emitter; the returned func ends it and gives its error.
func (w *world) start(cfg Config) (stop func() error) { return w.startWith(cfg, w) }

func (w *world) startGate(cfg Config, g *Gate) (stop func() error) { return w.startDeps(cfg, w, g) }

func (w *world) startWith(cfg Config, s Sink) (stop func() error) { return w.startDeps(cfg, s, nil) }

func (w *world) startDeps(cfg Config, s Sink, g *Gate) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, cfg, Deps{Source: w, Proposer: w, DeadLetters: w, Lease: w, Sink: s, Gate: g})
	}()
	return func() error {
		cancel()
		return <-ended
	}
}

// result gives a deliver func that always answers the same.
func result(r Result) func(context.Context, *Compaction) Result {
	return func(context.Context, *Compaction) Result { return r }
}

func transient() Result { return Result{Class: ClassTransient, Status: 503, Reason: "503"} }

func (w *world) kind(seq uint64) OutcomeKind {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.resolved[seq]
}

func (w *world) sent(id string) (at []time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sends {
		if s.id == id {
			at = append(at, s.at)
		}
	}
	return at
}

func (w *world) order() (ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sends {
		ids = append(ids, s.id)
	}
	return ids
}

func (w *world) events() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.journal)
}

func (w *world) set(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

// gaps gives the waits between attempts, rounded.
func gaps(at []time.Duration) (out []time.Duration) {
	for i := 1; i < len(at); i++ {
		out = append(out, (at[i] - at[i-1]).Round(10*time.Millisecond))
	}
	return out
}

// firstArrivals gives the ids in the order in which they were first sent.
func firstArrivals(ids []string) (out []string) {
	for _, id := range ids {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

var errRefused = errors.New("refused")

func noError(t *testing.T, stop func() error) {
	t.Helper()
	require.NoError(t, stop())
}

// dice is a seeded source of numbers for several goroutines.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func newDice(a, b uint64) *dice { return &dice{r: rand.New(rand.NewPCG(a, b))} }

func (d *dice) roll(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}
