package owner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/emit"
	"penstock/fsm"
	"penstock/fsm/command"
	"penstock/node/internal/testbed"
)

// runs records what Runners runs, in place of emit.Run.
type runs struct {
	mu   sync.Mutex
	now  map[place]int
	log  []string
	most int
	// stopping is how long a run takes to end once told to; end is what it ends with.
	stopping time.Duration
	end      error
	// fail ends a run at once.
	fail error
}

func (r *runs) run(ctx context.Context, info fsm.EmitterInfo) error {
	at := place{info.ChannelIndex, info.EmitterIndex}
	r.note(at, 1, fmt.Sprintf("+%s/%d", info.Emitter, info.Epoch))
	defer r.note(at, -1, fmt.Sprintf("-%s/%d", info.Emitter, info.Epoch))
	if err := r.failure(); err != nil {
		return err
	}
	<-ctx.Done()
	time.Sleep(r.stopping)
	return r.end
}

func (r *runs) note(at place, change int, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now == nil {
		r.now = map[place]int{}
	}
	r.now[at] += change
	r.most = max(r.most, r.now[at])
	r.log = append(r.log, text)
}

// running is how many run now, and the most that ever ran at once, of one emitter.
func (r *runs) running(e fsm.EmitterInfo) (now, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now[place{e.ChannelIndex, e.EmitterIndex}], r.most
}

func (r *runs) failWith(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

func (r *runs) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fail
}

func (r *runs) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.log, " ")
}

// started runs Runners with recorded runs inside a synctest bubble; stop ends it and waits.
func started(b *testbed.Bed, r *runs) (runners *Runners, stop func()) {
	runners = New(depsOf(b))
	runners.run = r.run
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		runners.Run(ctx)
	}()
	settle()
	return runners, func() { cancel(); <-done }
}

// settle lets Runners see what has been committed.
func settle() { time.Sleep(100 * time.Millisecond); synctest.Wait() }

func bubble(t *testing.T, f func(t *testing.T, b *testbed.Bed)) {
	synctest.Test(t, func(t *testing.T) {
		b := testbed.New(t)
		b.Put(orders(stdout("out")))
		f(t, b)
	})
}

func TestAnEmitterRunsHereOnlyWhileThisNodeOwnsIt(t *testing.T) {
	bubble(t, func(t *testing.T, b *testbed.Bed) {
		r := &runs{}
		_, stop := started(b, r)
		require.Empty(t, r.text())
		e := owned(b)
		settle()
		require.Equal(t, "+out/1", r.text())
		b.Send("orders", "a")
		settle()
		require.Equal(t, "+out/1", r.text(), "what changes nothing of the ownership starts nothing anew")
		e = b.Own(e, "n2")
		settle()
		require.Equal(t, "+out/1 -out/1", r.text())
		b.Own(e, "n1")
		settle()
		require.Equal(t, "+out/1 -out/1 +out/3", r.text())
		b.Commit(command.EmitterPause{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Paused: true})
		settle()
		require.Equal(t, "+out/1 -out/1 +out/3 -out/3", r.text())
		b.Commit(command.EmitterPause{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex})
		settle()
		stop()
		require.Equal(t, "+out/1 -out/1 +out/3 -out/3 +out/3 -out/3", r.text())
	})
}

// However often an emitter changes hands while one run of it takes its time to stop, two never run at once.
func TestAnEmitterNeverRunsTwiceAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *testbed.Bed) {
		r := &runs{stopping: 5 * time.Second}
		_, stop := started(b, r)
		e := owned(b)
		settle()
		for i := range 6 {
			node := "n1"
			if i%2 == 0 {
				node = "n2"
			}
			e = b.Own(e, node)
			settle()
		}
		c := orders(stdout("out"))
		c.Dedup.MaxKeys = 77
		b.Put(c) // another version of the spec
		settle()
		time.Sleep(time.Minute)
		now, most := r.running(e)
		require.Equal(t, 1, most)
		require.Equal(t, 1, now, "the last one runs")
		require.True(t, strings.HasSuffix(r.text(), fmt.Sprintf("+out/%d", e.Epoch)))
		stop()
		now, most = r.running(e)
		require.Zero(t, now)
		require.Equal(t, 1, most)
	})
}

func TestRunnersStopSideBySide(t *testing.T) {
	bubble(t, func(t *testing.T, b *testbed.Bed) {
		b.Put(orders(stdout("a"), stdout("b"), stdout("c")))
		for _, name := range []string{"a", "b", "c"} {
			b.Own(b.Emitter("orders", name), "n1")
		}
		r := &runs{stopping: 5 * time.Second}
		_, stop := started(b, r)
		begin := time.Now()
		stop()
		require.Less(t, time.Since(begin), 6*time.Second)
		require.Equal(t, 3, strings.Count(r.text(), "-"))
	})
}

func TestARunThatEndsByItselfIsStartedAnew(t *testing.T) {
	bubble(t, func(t *testing.T, b *testbed.Bed) {
		r := &runs{fail: errors.New("no such directory")}
		owned(b)
		_, stop := started(b, r)
		time.Sleep(10 * restartPause)
		stop()
		n := strings.Count(r.text(), "+")
		require.GreaterOrEqual(t, n, 10)
		require.LessOrEqual(t, n, 12, "with a pause")
	})
}

// The leader knows of the new epoch before this node does. An attempt made under the old one could only be repeated.
func TestARunOfAStaleEpochIsNotStartedAnew(t *testing.T) {
	bubble(t, func(t *testing.T, b *testbed.Bed) {
		r := &runs{fail: fmt.Errorf("run: %w", emit.ErrStaleEpoch)}
		e := owned(b)
		_, stop := started(b, r)
		time.Sleep(time.Minute)
		require.Equal(t, "+out/1 -out/1", r.text())
		r.failWith(nil)
		b.Own(e, "n1")
		settle()
		require.Equal(t, "+out/1 -out/1 +out/2", r.text())
		stop()
	})
}

// Exit code 14 is for outcomes that this node knew when it stopped, not for those of an emitter that had moved before.
func TestOnlyAnEmitterThatStopsWithTheNodeFailsTheDrain(t *testing.T) {
	bubble(t, func(t *testing.T, b *testbed.Bed) {
		r := &runs{end: fmt.Errorf("run: %w", emit.ErrNotDrained)}
		e := owned(b)
		runners, stop := started(b, r)
		b.Own(e, "n2")
		settle()
		require.Equal(t, "+out/1 -out/1", r.text())
		stop()
		require.NoError(t, runners.Flushed())
	})
	bubble(t, func(t *testing.T, b *testbed.Bed) {
		r := &runs{end: fmt.Errorf("run: %w", emit.ErrNotDrained)}
		owned(b)
		runners, stop := started(b, r)
		require.NoError(t, runners.Flushed())
		stop()
		require.ErrorIs(t, runners.Flushed(), emit.ErrNotDrained)
	})
}

// The whole path: pending in the state machine, read from the log, delivered, outcome committed, ledger balanced.
func TestWhatIsOwnedIsDeliveredAndMarked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := testbed.New(t)
		b.Put(orders(stdout("out")))
		owned(b)
		var out bytes.Buffer
		deps := depsOf(b)
		deps.Sinks = emit.SinkDeps{DataDir: t.TempDir(), NodeID: "n1", Stdout: &out}
		runners := New(deps)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); runners.Run(ctx) }()
		for i := range 50 {
			b.Send("orders", fmt.Sprint(i, "a"), fmt.Sprint(i, "b"), fmt.Sprint(i, "a"))
		}
		time.Sleep(10 * time.Second)
		e := b.Emitter("orders", "out")
		require.Zero(t, e.Pending)
		rows, _ := b.Machine.Ledger("orders")
		require.True(t, rows[0].Balanced())
		require.Equal(t, uint64(100), rows[0].Delivered)
		cancel()
		<-done
		require.NoError(t, runners.Flushed())
		require.Equal(t, 100, bytes.Count(out.Bytes(), []byte{'\n'}), "each accepted event once")
	})
}

// What a node knows right after its start is its state of long ago: it would send again what it has delivered.
func TestNoEmitterStartsBeforeTheNodeHasCaughtUp(t *testing.T) {
	bubble(t, func(t *testing.T, b *testbed.Bed) {
		owned(b)
		r := &runs{}
		var caughtUp atomic.Bool
		deps := depsOf(b)
		deps.CaughtUp = caughtUp.Load
		runners := New(deps)
		runners.run = r.run
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			runners.Run(ctx)
		}()
		settle()
		require.Empty(t, r.text())
		caughtUp.Store(true)
		settle()
		require.Equal(t, "+out/1", r.text())
		caughtUp.Store(false) // once is enough: from then on the lease decides
		settle()
		require.Equal(t, "+out/1", r.text())
		cancel()
		<-done
	})
}
