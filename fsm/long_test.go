package fsm

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/event"
	"penstock/fsm/command"
	"penstock/internal/spec"
)

// TestALongLogIsTheSameThroughRestarts has what short random logs have not: rows that fill up and are closed, points and
// runs and dedup chunks that are pruned, shards of the dedup index that are rebuilt, retry state far behind the tip.
func TestALongLogIsTheSameThroughRestarts(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2))
	r := newRig(t)
	sizes, single := fileEmitter("sizes", 50, 900, 0), fileEmitter("single", 1, 0, 0)
	c := channelOf("c", sizes, single)
	c.Dedup.Window, c.Retention.Keep = spec.Duration(64*second), spec.Duration(20*second)
	r.put(c)
	owners := []EmitterInfo{r.own(r.emitter("c", 0)), r.own(r.emitter("c", 1))}
	whole := newRig(t)
	copied := 0
	var at []event.Position
	for step := range 500 {
		r.stamp += chance.Int64N(second)
		ids := make([]string, 40+chance.IntN(80))
		for i := range ids {
			ids[i] = fmt.Sprintf("%d=%s", chance.IntN(1_000_000), strings.Repeat("x", chance.IntN(200)))
		}
		res := r.send("c", ids...)
		rejects, _ := r.m.Rejects(res.Index)
		for i := range res.Count {
			if !rejects.Event(i) {
				at = append(at, event.Position{Index: res.Index, Ordinal: i})
			}
		}
		for _, e := range owners {
			r.report(e, r.someOutcomes(chance, e, at)...)
		}
		require.LessOrEqual(t, r.m.Horizon(), r.m.Floor())
		for _, row := range r.ledger("c") {
			require.True(t, row.Balanced(), "step %d: %+v", step, row)
		}
		for ; copied < len(r.log); copied++ {
			_, err := whole.m.Apply(uint64(copied+1), 1, r.log[copied])
			require.NoError(t, err)
		}
		if step%83 == 0 {
			r.m = r.reopen()
			m, err := Open(r.store, Config{})
			require.NoError(t, err)
			r.m = m
			require.Equal(t, dumpOf(t, whole.m), dumpOf(t, r.m), "step %d", step)
		}
	}
	require.Equal(t, dumpOf(t, whole.m), dumpOf(t, r.m))
	require.Equal(t, dumpOf(t, whole.m), dumpOf(t, installSnapshot(t, r.m)))

	s := r.m.mu.names["c"]
	require.NotZero(t, s.dedup.firstChunk, "dedup chunks were dropped")
	first, _ := s.points.find(func(p *point) bool { return p.seq <= s.points.chunks[0].points[0].seq })
	require.Greater(t, first.seq, uint64(1), "points were pruned")
	require.Greater(t, s.emitters[0].runs.chunks[0].first, uint64(1), "runs were pruned")
	require.Greater(t, s.dedup.firstChunk+uint64(len(s.dedup.chunks)), uint64(4))
	for i := range s.dedup.chunks {
		for _, key := range s.dedup.chunks[i].keys {
			got, ok := s.dedup.find(&key)
			require.True(t, ok, "a live key is found")
			require.Equal(t, at[got.seq-1], got.position)
		}
	}
}

// someOutcomes resolves most of what is closed, and leaves some of it to be tried again.
func (r *rig) someOutcomes(chance *rand.Rand, e EmitterInfo, at []event.Position) (all []command.Outcome) {
	for _, run := range r.m.Runs(e.ChannelIndex, e.EmitterIndex, 0, 1<<20) {
		o := command.Outcome{First: run.First, Last: run.Last, Kind: command.Delivered, Attempts: 1, At: r.stamp}
		switch n := chance.IntN(1000); {
		case n < 50:
			o.Kind, o.Class, o.Status, o.Reason = command.Failed, command.ClassTransient, 503, "busy"
		case n < 60:
			o.Kind, o.Positions = command.Dead, at[run.First-1:run.Last]
		case n < 200:
			continue
		}
		all = append(all, o)
	}
	for _, d := range r.m.DeadLetters("c", e.Emitter, "") {
		if chance.IntN(5) > 0 {
			all = append(all, command.Outcome{First: d.Seq, Last: d.Seq, Kind: command.Discarded})
		}
	}
	return all
}
