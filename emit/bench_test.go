package emit

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"penstock/event"
)

// flood is a source, proposer and sink that cost nothing, to show what the machinery itself costs.
type flood struct {
	n    uint64
	done atomic.Uint64
	end  context.CancelFunc
}

func (f *flood) Next(ctx context.Context, after uint64) (Compaction, error) {
	if after >= f.n {
		<-ctx.Done()
		return Compaction{}, ctx.Err()
	}
	seq := after + 1
	return Compaction{ID: "c", First: seq, Last: seq, Deliveries: []Delivery{{Seq: seq, Event: event.Event{ID: "e"}}}}, nil
}

func (f *flood) Propose(_ context.Context, outcomes []Outcome) error {
	time.Sleep(2 * time.Millisecond) // a commit
	if f.done.Add(uint64(len(outcomes))) >= f.n {
		f.end()
	}
	return nil
}

func (f *flood) Write(context.Context, []DeadLetter) error   { return nil }
func (f *flood) Valid() bool                                 { return true }
func (f *flood) Lost() <-chan struct{}                       { return nil }
func (f *flood) Deliver(context.Context, *Compaction) Result { return Result{OK: true} }
func (f *flood) Close() error                                { return nil }

func BenchmarkRunOverhead(b *testing.B) {
	b.ReportAllocs()
	ctx, cancel := context.WithCancel(b.Context())
	f := &flood{n: uint64(b.N), end: cancel}
	cfg := config()
	cfg.Emitter.Concurrency = 64
	if err := Run(ctx, cfg, Deps{Source: f, Proposer: f, DeadLetters: f, Lease: f, Sink: f}); err != nil {
		b.Fatal(err)
	}
}
