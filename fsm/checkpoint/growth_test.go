package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/event"
	"penstock/fsm"
	"penstock/fsm/command"
	"penstock/internal/spec"
)

// grower applies batches of events with producer ids that were never seen, whose dedup keys are spread as the keyed hash spreads
// them, to a channel whose emitter delivers nothing.
type grower struct {
	t       testing.TB
	m       *fsm.Machine
	index   uint64
	stamp   int64
	body    []byte
	keys    []int // where the dedup keys stand in body
	n       uint64
	entries []byte
}

const growthBatch = 100

func newGrower(t testing.TB, m *fsm.Machine) *grower {
	g := &grower{t: t, m: m, stamp: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixNano()}
	c := spec.Channel{Name: "c", Semantics: spec.AtLeastOnce, Order: spec.OrderNone, Emitters: []spec.Emitter{
		{Name: "out", Kind: spec.KindStdout, Stdout: &spec.Stdout{}},
	}}
	c.ApplyDefaults()
	c.Dedup.MaxKeys = 100_000_000
	require.NoError(t, c.Validate())
	g.apply(command.Encode(command.ClusterInit{ClusterID: [16]byte{1}, Key: event.HashKey{1}, Name: "growth"}))
	g.apply(command.Encode(command.ChannelPut{Spec: c.Canonical()}))
	info, ok := m.Channel("c")
	require.True(t, ok)
	events := make([]event.Event, growthBatch)
	for i := range events {
		events[i] = event.Event{ID: fmt.Sprint(i), Source: "/s", Type: "t", DataKind: event.DataJSON, Data: []byte(`{"n":1}`)}
	}
	body, err := event.EncodeBatch(nil, event.BatchHeader{ChannelIndex: info.Index, SpecVersion: info.Version}, event.HashKey{1}, events, nil)
	require.NoError(t, err)
	b, err := event.DecodeBatch(body)
	require.NoError(t, err)
	for i := range b.Len() {
		x := b.Envelope(i)
		for at := 0; ; at++ {
			if [16]byte(body[at:at+16]) == x.DedupKey {
				g.keys = append(g.keys, at)
				break
			}
		}
	}
	g.body = command.EncodeBatch(body)
	for i := range g.keys {
		g.keys[i] += len(g.body) - len(body)
	}
	return g
}

func (g *grower) apply(cmd []byte) {
	g.index++
	g.entries = command.AppendEntry(g.entries[:0], g.stamp, [][]byte{cmd})
	_, err := g.m.Apply(g.index, 1, g.entries)
	require.NoError(g.t, err)
}

// grow adds events until there are n, and gives the median time per event of stretches of 100 batches: the median, because
// other work of the machine comes in bursts.
func (g *grower) grow(n uint64) (perEvent time.Duration) {
	var times []time.Duration
	for g.n < n {
		began := time.Now()
		for range 100 {
			for _, at := range g.keys {
				g.n++
				binary.LittleEndian.PutUint64(g.body[at:], mix(2*g.n))
				binary.LittleEndian.PutUint64(g.body[at+8:], mix(2*g.n+1))
			}
			g.stamp += 1000
			g.apply(g.body)
		}
		times = append(times, time.Since(began)/(100*growthBatch))
	}
	return median(times)
}

// mix spreads the bits of n as a hash does (splitmix64): a multiple of a constant has the low bits of n in its low bits, which
// are what a hash table looks at.
func mix(n uint64) uint64 {
	n += 0x9E3779B97F4A7C15
	n = (n ^ n>>30) * 0xBF58476D1CE4E5B9
	n = (n ^ n>>27) * 0x94D049BB133111EB
	return n ^ n>>31
}

func median(times []time.Duration) time.Duration {
	best := time.Duration(math.MaxInt64)
	for _, t := range times {
		below := 0
		for _, o := range times {
			if o <= t {
				below++
			}
		}
		if 2*below >= len(times) && t < best {
			best = t
		}
	}
	return best
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// TestGrowthOfProducerIDs is shows 9 of the log for the state machine: with 10 million producer ids remembered and as many
// deliveries pending (scaled without PENSTOCK_FULL=1), the time per event is what it was at 100 000, a key costs what dedup.go
// says, and the state is checkpointed, snapshotted and loaded again in bounded time. It prints the numbers.
func TestGrowthOfProducerIDs(t *testing.T) {
	total := uint64(500_000)
	full := os.Getenv("PENSTOCK_FULL") == "1"
	if full {
		total = 10_000_000
	} else {
		t.Logf("scaled: %d ids instead of 10000000 (PENSTOCK_FULL=1 runs the full form)", total)
	}
	path := filepath.Join(t.TempDir(), "fsm.db")
	store, err := Open(path, Config{})
	require.NoError(t, err)
	before := heap()
	m, err := fsm.Open(store, fsm.Config{DirtyBytes: 1 << 40}) // the checkpoint is measured by itself
	require.NoError(t, err)
	g := newGrower(t, m)
	g.grow(100_000)
	small := g.grow(200_000)
	g.grow(total - 100_000)
	large := g.grow(total)
	perKey := float64(heap()-before) / float64(g.n)
	t.Logf("%d ids: %v per event at 100k to 200k, %v at the end; %.1f bytes of memory per key", g.n, small, large, perKey)
	require.Less(t, perKey, 80.0)

	began := time.Now()
	require.NoError(t, m.Checkpoint())
	t.Logf("checkpoint of all of it: %v", time.Since(began).Round(time.Millisecond))
	began = time.Now()
	snap, err := m.Snapshot()
	require.NoError(t, err)
	out, err := os.Create(filepath.Join(t.TempDir(), "snap"))
	require.NoError(t, err)
	size, err := snap.WriteTo(out)
	require.NoError(t, err)
	require.NoError(t, out.Sync())
	require.NoError(t, out.Close())
	require.NoError(t, snap.Close())
	t.Logf("snapshot: %d MiB in %v", size>>20, time.Since(began).Round(time.Millisecond))
	_, hash, _ := m.StateHash()
	require.NoError(t, store.Close())

	m, g.m = nil, nil
	before = heap()
	began = time.Now()
	store, err = Open(path, Config{})
	require.NoError(t, err)
	defer store.Close()
	m, err = fsm.Open(store, fsm.Config{})
	require.NoError(t, err)
	took := time.Since(began)
	t.Logf("load: %v, %.1f bytes of memory per key", took.Round(time.Millisecond), float64(heap()-before)/float64(g.n))
	_, again, _ := m.StateHash()
	require.Equal(t, hash, again)
	info, _ := m.Channel("c")
	require.Equal(t, g.n, info.DedupKeys)
	if full {
		require.LessOrEqual(t, large, small*12/10, "time per event")
		require.Less(t, took, 10*time.Second)
	}
}
