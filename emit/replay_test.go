package emit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/event"
)

// graveyard is the authority over the dead letters of one emitter, in memory.
type graveyard struct {
	mu         sync.Mutex
	letters    []*grave
	maxRetries uint32
	claims     int
	stale      int
	claimErr   error
	proposeErr error
	volume     []LetterResult
}

type grave struct {
	Letter
	state  LetterState // open, resolved
	holder [16]byte
}

func newGraveyard(n int) *graveyard {
	g := &graveyard{maxRetries: 5}
	for i := range n {
		g.letters = append(g.letters, &grave{state: LetterOpen, Letter: Letter{
			ID: fmt.Sprintf("id%d", i+1), Seq: uint64(i + 1), CompactionID: fmt.Sprintf("c%d", i/2),
		}})
	}
	return g
}

func (g *graveyard) Replayable(_ context.Context, after uint64, limit int) (out []Letter, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.letters {
		free := l.state == LetterOpen && !l.Poison && l.holder == [16]byte{} && l.Redeliveries < g.maxRetries
		if l.Seq > after && free && len(out) < limit {
			out = append(out, l.Letter)
		}
	}
	return out, nil
}

func (g *graveyard) Find(_ context.Context, id string) (Letter, LetterState, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.letters {
		if l.ID == id {
			if l.state == LetterOpen && l.holder != [16]byte{} {
				return l.Letter, LetterInProgress, nil
			}
			return l.Letter, l.state, nil
		}
	}
	return Letter{}, LetterNotFound, nil
}

func (g *graveyard) Compaction(_ context.Context, id string) (out []Letter, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.letters {
		if l.CompactionID == id && l.state == LetterOpen {
			out = append(out, l.Letter)
		}
	}
	return out, nil
}

func (g *graveyard) Load(_ context.Context, letters []Letter) (out []Delivery, err error) {
	for _, l := range letters {
		out = append(out, Delivery{Seq: l.Seq, Position: event.Position{Index: l.Seq}, Event: event.Event{ID: "e" + l.ID}})
	}
	return out, nil
}

func (g *graveyard) Claim(_ context.Context, c Claim, seqs []uint64) (out []LetterState, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.claims++; g.claimErr != nil {
		return nil, g.claimErr
	}
	for _, seq := range seqs {
		l := g.letters[seq-1]
		switch {
		case l.state != LetterOpen:
			out = append(out, l.state)
		case l.holder != [16]byte{} && l.holder != c.ID:
			out = append(out, LetterInProgress)
		case c.Scheduled && l.Redeliveries >= g.maxRetries:
			out = append(out, LetterExhausted)
		default:
			l.holder = c.ID
			out = append(out, LetterOpen)
		}
	}
	return out, nil
}

func (g *graveyard) Release(_ context.Context, c Claim, seqs []uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, seq := range seqs {
		if g.letters[seq-1].holder == c.ID {
			g.letters[seq-1].holder = [16]byte{}
		}
	}
	return nil
}

func (g *graveyard) ReleaseStale(context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stale++
	for _, l := range g.letters {
		l.holder = [16]byte{}
	}
	return nil
}

func (g *graveyard) Resolved(_ context.Context, results []LetterResult) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.volume = append(g.volume, results...)
}

func (g *graveyard) Propose(_ context.Context, outcomes []Outcome) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.proposeErr != nil {
		return g.proposeErr
	}
	for _, o := range outcomes {
		for seq := o.First; seq <= o.Last; seq++ {
			l := g.letters[seq-1]
			if o.Kind == Replayed {
				l.state = LetterResolved
			} else if l.holder != [16]byte{} {
				l.Redeliveries += o.Attempts
			}
			l.holder = [16]byte{}
		}
	}
	return nil
}

func (g *graveyard) open() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.letters {
		if l.state == LetterOpen {
			n++
		}
	}
	return n
}

func replayer(t *testing.T, w *world, g *graveyard, change ...func(*ReplayConfig)) *Replayer {
	t.Helper()
	cfg := ReplayConfig{Config: config()}
	for _, c := range change {
		c(&cfg)
	}
	r, err := NewReplayer(t.Context(), cfg, ReplayDeps{Deps: Deps{Proposer: g, Lease: w, Sink: w}, Letters: g})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r
}

func states(all []ReplayStatus) (out []ReplayState) {
	for _, s := range all {
		out = append(out, s.State)
	}
	return out
}

var operator = Claim{ID: [16]byte{1}}

func TestB25EachIDHasAStatusAndOnlyValidOnesAreSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := newWorld(t), newGraveyard(50)
		g.letters[10].Poison = true
		g.letters[11].state = LetterResolved
		g.letters[12].holder = [16]byte{9}
		w.deliver = func(_ context.Context, c *Compaction) Result {
			if c.First == 5 {
				return transient()
			}
			return Result{OK: true}
		}
		r := replayer(t, w, g)
		ids := []string{"id1", "id2", "id1", "nobody", "id5", "id11", "id12", "id13", "id2"}
		all, err := r.Replay(t.Context(), operator, ids, false)
		require.NoError(t, err)
		require.Equal(t, []ReplayState{
			ReplayDelivered, ReplayDelivered, ReplayDelivered, ReplayNotFound, ReplayNotDelivered, ReplayForbidden, ReplayResolved,
			ReplayInProgress, ReplayDelivered,
		}, states(all))
		counts, err := CountReplay(ids, all)
		require.NoError(t, err)
		require.Equal(t, 4, counts[ReplayDelivered])
		require.ElementsMatch(t, []string{"c0", "c0", "c2"}, w.order(), "two letters of one compaction, and one that fails")
		require.EqualValues(t, 1, g.letters[4].Redeliveries)

		_, err = r.Replay(t.Context(), operator, make([]string, 51), false)
		require.Error(t, err)
		_, err = r.Replay(t.Context(), operator, nil, false)
		require.Error(t, err)
		forced, err := r.Replay(t.Context(), Claim{ID: [16]byte{2}, Force: true}, []string{"id11"}, false)
		require.NoError(t, err)
		require.Equal(t, []ReplayState{ReplayDelivered}, states(forced))
		n := len(w.order())
		dry, err := r.Replay(t.Context(), operator, []string{"id1", "id20"}, true)
		require.NoError(t, err)
		require.Equal(t, []ReplayState{ReplayResolved, ReplayWould}, states(dry))
		require.Len(t, w.order(), n, "a dry run sends nothing")
		synctest.Wait()
		require.Len(t, g.volume, 4, "the volume learns of each")
		require.Equal(t, "503", g.volume[slices.IndexFunc(g.volume, func(x LetterResult) bool { return !x.Delivered })].Attempt.Reason)
	})
}

func TestTwoOperatorsAtOnceDeliverOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := newWorld(t), newGraveyard(20)
		w.deliver = func(ctx context.Context, _ *Compaction) Result {
			sleep(ctx, time.Second)
			return Result{OK: true}
		}
		var ids []string
		for _, l := range g.letters {
			ids = append(ids, l.ID)
		}
		r := replayer(t, w, g)
		var all [2][]ReplayStatus
		var group sync.WaitGroup
		for i := range all {
			group.Go(func() { all[i], _ = r.Replay(t.Context(), Claim{ID: [16]byte{byte(i + 1)}}, ids, false) })
		}
		group.Wait()
		require.Len(t, w.order(), 20, "each letter is sent once")
		for i := range ids {
			pair := []ReplayState{all[0][i].State, all[1][i].State}
			require.Contains(t, pair, ReplayDelivered)
			require.NotEqual(t, pair[0], pair[1])
		}
	})
}

func TestK21ATimeoutIsUnknownAndTheReplayGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := newWorld(t), newGraveyard(2)
		w.deliver = func(ctx context.Context, c *Compaction) Result {
			if c.First == 2 {
				sleep(ctx, 10*time.Second)
			}
			return Result{OK: true}
		}
		r := replayer(t, w, g)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ids := []string{"id1", "id2"}
		all, err := r.Replay(ctx, operator, ids, false)
		require.NoError(t, err)
		require.Equal(t, []ReplayState{ReplayDelivered, ReplayUnknown}, states(all))
		again, err := r.Replay(t.Context(), Claim{ID: [16]byte{2}}, ids[1:], false)
		require.NoError(t, err)
		require.Equal(t, []ReplayState{ReplayInProgress}, states(again))
		time.Sleep(20 * time.Second)
		_, state, _ := g.Find(t.Context(), "id2")
		require.Equal(t, LetterResolved, state, "looking it up resolves it")
		require.Len(t, w.order(), 2)
	})
}

func TestWithoutQuorumNothingIsDispatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := newWorld(t), newGraveyard(3)
		g.claimErr = errors.New("no leader")
		r := replayer(t, w, g)
		all, err := r.Replay(t.Context(), operator, []string{"id1"}, false)
		require.NoError(t, err)
		require.Equal(t, ReplayNotDelivered, all[0].State)
		require.Contains(t, all[0].Detail, "not sent")
		w.setLease(false)
		g.claimErr = nil
		all, err = r.Replay(t.Context(), operator, []string{"id1"}, false)
		require.NoError(t, err)
		require.Contains(t, all[0].Detail, "not sent")
		require.Empty(t, w.order())
	})
}

func TestAnOutcomeThatIsNotCommittedIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := newWorld(t), newGraveyard(1)
		g.proposeErr = ErrStaleEpoch
		r := replayer(t, w, g)
		all, err := r.Replay(t.Context(), operator, []string{"id1"}, false)
		require.NoError(t, err)
		require.Equal(t, ReplayUnknown, all[0].State)
		require.Empty(t, g.volume, "the record stays until the outcome is committed")
	})
}

func TestScheduledReplayStopsAtMaxRetriesAndSparesADestinationThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := newWorld(t), newGraveyard(40)
		g.letters[39].Poison = true
		w.deliver = result(transient())
		r := replayer(t, w, g)
		require.True(t, r.Prepare(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { r.Run(ctx) })
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		require.Positive(t, g.stale)
		require.LessOrEqual(t, len(w.order()), 3*scanFailures, "a scan stops when its replays fail")
		seen := map[uint64]bool{}
		w.set(func() {
			for _, s := range w.sends {
				require.False(t, seen[s.seqs[0]], "the next scan goes on behind the ones that failed")
				seen[s.seqs[0]] = true
			}
		})
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		for _, l := range g.letters[:39] {
			require.Equal(t, g.maxRetries, l.Redeliveries, l.ID)
		}
		require.Len(t, w.order(), 39*int(g.maxRetries))
		time.Sleep(24 * time.Hour)
		require.Len(t, w.order(), 39*int(g.maxRetries), "at max_retries no further send, and poison has none at all")
		require.Equal(t, 40, g.open(), "they are still there")
		all, err := r.Replay(t.Context(), operator, []string{"id1"}, false)
		require.NoError(t, err)
		require.Equal(t, ReplayNotDelivered, all[0].State, "by hand it is still tried")
		cancel()
		run.Wait()
	})
}

func TestScheduledReplayIsRampedAndRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := newWorld(t), newGraveyard(1000)
		r := replayer(t, w, g, func(c *ReplayConfig) { c.Rate = 10 })
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { r.Run(ctx) })
		for g.open() > 0 {
			time.Sleep(time.Second)
		}
		cancel()
		run.Wait()
		require.Len(t, w.sends, 1000)
		require.GreaterOrEqual(t, w.sends[1].at-w.sends[0].at, time.Second/2)
		for i := 10; i < 1000; i++ {
			require.GreaterOrEqual(t, w.sends[i].at-w.sends[i-1].at, time.Second/10)
		}
	})
}

func TestScheduledReplayOnlyProbesWhileTheBreakerIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := newWorld(t), newGraveyard(100)
		w.deliver = result(transient())
		r := replayer(t, w, g)
		for range breakerFailures {
			r.gate.Note(time.Now(), transient())
		}
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { r.Run(ctx) })
		time.Sleep(20 * time.Minute)
		require.InDelta(t, 19, len(w.order()), 2, "one a scan")
		w.set(func() { w.deliver = result(Result{OK: true}) })
		time.Sleep(5 * time.Minute)
		require.Zero(t, g.open(), "one success lets the others follow")
		cancel()
		run.Wait()
	})
}

func TestACompactionIsReplayedWholeWhereItsIdCounts(t *testing.T) { // P6, S12
	synctest.Test(t, func(t *testing.T) {
		w, g := newWorld(t), newGraveyard(6)
		r := replayer(t, w, g, func(c *ReplayConfig) { c.Whole = true })
		all, err := r.Replay(t.Context(), operator, []string{"id3"}, false)
		require.NoError(t, err)
		require.Equal(t, []ReplayState{ReplayDelivered}, states(all))
		require.Equal(t, []uint64{3, 4}, w.sends[0].seqs)
		require.Equal(t, 4, g.open())
		g.letters[0].holder = [16]byte{9}
		all, err = r.Replay(t.Context(), Claim{ID: [16]byte{3}}, []string{"id2"}, false)
		require.NoError(t, err)
		require.Equal(t, ReplayInProgress, all[0].State, "its sibling is in another replay")
		require.Equal(t, [16]byte{}, g.letters[1].holder, "and its own claim is given back")
	})
}

func TestCloseCutsOffAndSaysUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := newWorld(t), newGraveyard(1)
		w.deliver = func(ctx context.Context, _ *Compaction) Result {
			<-ctx.Done()
			return transient()
		}
		r := replayer(t, w, g)
		answer := make(chan []ReplayStatus)
		go func() {
			all, _ := r.Replay(t.Context(), operator, []string{"id1"}, false)
			answer <- all
		}()
		synctest.Wait()
		go r.Close()
		require.Equal(t, []ReplayState{ReplayUnknown}, states(<-answer))
		require.Zero(t, g.letters[0].Redeliveries, "a cut-off attempt costs nothing")
		synctest.Wait()
		all, err := r.Replay(t.Context(), operator, []string{"id1"}, false)
		require.NoError(t, err)
		require.NotEqual(t, ReplayDelivered, all[0].State)
	})
}

func TestAnAnswerThatDoesNotAddUpIsRefused(t *testing.T) { // K20
	_, err := CountReplay([]string{"a", "b"}, []ReplayStatus{{ID: "a", State: ReplayDelivered}})
	require.Error(t, err)
	_, err = CountReplay([]string{"a"}, []ReplayStatus{{ID: "b", State: ReplayDelivered}})
	require.Error(t, err)
	_, err = CountReplay([]string{"a"}, []ReplayStatus{{ID: "a", State: "fine"}})
	require.Error(t, err)
}
