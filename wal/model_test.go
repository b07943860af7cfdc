package wal

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"penstock/internal/vfs"
	"penstock/internal/vfs/memfs"
)

// model is what the log must be, in memory. Entries that Raft and the floor
// let go stay in it: the log may keep them too.
type model struct {
	base, baseTerm uint64
	last           uint64
	floor, allowed uint64
	entries        map[uint64]*raft.Log
}

func newModel() *model { return &model{entries: map[uint64]*raft.Log{}} }

func (m *model) clone() *model {
	c := *m
	c.entries = maps.Clone(m.entries)
	return &c
}

func (m *model) store(logs []*raft.Log) {
	for _, e := range logs {
		m.entries[e.Index] = e
		m.last = e.Index
	}
}

func (m *model) cut(from uint64) {
	for i := from; i <= m.last; i++ {
		delete(m.entries, i)
	}
	m.last = from - 1
}

func (m *model) reset(index, term uint64) {
	*m = model{base: index, baseTerm: term, last: index, floor: m.floor, allowed: min(m.allowed, index), entries: map[uint64]*raft.Log{}}
}

// restart forgets what lives in memory only.
func (m *model) restart() { m.floor, m.allowed = 0, 0 }

func (m *model) limit() uint64 {
	if m.floor < 2 {
		return 0
	}
	return min(m.allowed+1, m.floor-1)
}

// check compares; limit is the highest index that was ever free to go.
func (m *model) check(l *Log, limit uint64) error {
	base, baseTerm := l.Base()
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	switch {
	case last != m.last:
		return fmt.Errorf("last index %d, want %d", last, m.last)
	case base == 1:
		return errors.New("base is 1")
	case base < m.base || base > m.last || base > m.base && base+1 > limit:
		return fmt.Errorf("base %d, want from %d, limit %d", base, m.base, limit)
	case base > m.base && baseTerm != m.entries[base].Term, base == m.base && baseTerm != m.baseTerm:
		return fmt.Errorf("base %d has term %d", base, baseTerm)
	case last == 0 && first != 0, last > 0 && first != base+1:
		return fmt.Errorf("first index %d with base %d", first, base)
	}
	for i := max(base, 1) - 1; i <= last+1; i++ {
		if err := m.checkEntry(l, i, base, baseTerm); err != nil {
			return err
		}
	}
	return nil
}

func (m *model) checkEntry(l *Log, i, base, baseTerm uint64) error {
	var got raft.Log
	err := l.GetLog(i, &got)
	switch {
	case i == base && base > 0:
		if err != nil || got.Type != raft.LogNoop || got.Term != baseTerm || got.Index != base || len(got.Data) > 0 {
			return fmt.Errorf("base entry: %v %v", got, err)
		}
	case i <= base || i > m.last:
		if err != raft.ErrLogNotFound { //nolint:errorlint // raft compares with ==
			return fmt.Errorf("index %d outside [%d,%d]: %v", i, base+1, m.last, err)
		}
	default:
		want := m.entries[i]
		if err != nil || want == nil || got.Index != i || got.Term != want.Term || got.Type != want.Type ||
			string(got.Data) != string(want.Data) || string(got.Extensions) != string(want.Extensions) ||
			!got.AppendedAt.Equal(want.AppendedAt) {
			return fmt.Errorf("index %d differs: %v", i, err)
		}
	}
	return nil
}

// checkWalk compares what Walk sees with the log's own view.
func (m *model) checkWalk(fsys vfs.FS, l *Log) error {
	base, _ := l.Base()
	next := base + 1
	err := Walk(fsys, testDir, func(r Record) error {
		if r.Index <= base {
			return nil // dropped, the file is still there
		}
		if want := m.entries[r.Index]; r.Index != next || want == nil || string(want.Data) != string(r.Data) || want.Term != r.Term {
			return fmt.Errorf("walk: got %d, want %d", r.Index, next)
		}
		next++
		return nil
	})
	if err == nil && next != m.last+1 {
		err = fmt.Errorf("walk ended at %d, want %d", next, m.last+1)
	}
	return err
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// TestLogBehavesAsItsModel drives a log and a map through the same random
// calls, restarts and power cuts, and compares them after each.
func TestLogBehavesAsItsModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fsys := memfs.New()
		cfg := testConfig(t, fsys)
		cfg.MarkInterval = time.Millisecond
		cfg.SegmentBytes = int64(rapid.IntRange(4, 12).Draw(rt, "blocks")) * blockSize
		cfg.CacheBytes = rapid.SampledFrom([]int64{-1, 2000, 1 << 20}).Draw(rt, "cache")
		l, err := Open(testDir, cfg)
		require.NoError(rt, err)
		defer func() { _ = l.Close() }()
		m, term, limit := newModel(), uint64(1), uint64(0)
		reopen := func() {
			cfg.FS = fsys
			l, err = Open(testDir, cfg)
			require.NoError(rt, err)
			m.restart()
		}
		rt.Repeat(map[string]func(*rapid.T){
			"store": func(rt *rapid.T) {
				n := rapid.IntRange(1, 12).Draw(rt, "n")
				size := rapid.SampledFrom([]int{0, 1, 100, 1024, 3952, 5000, 20000}).Draw(rt, "size")
				logs := entries(m.last+1, m.last+uint64(n), term, size)
				logs[0].Extensions = []byte("x")
				logs[n-1].AppendedAt = time.Unix(1e9, int64(n))
				require.NoError(rt, l.StoreLogs(logs))
				m.store(logs)
			},
			"gap": func(rt *rapid.T) {
				require.ErrorIs(rt, l.StoreLog(entry(m.last+2, term, 1)), ErrNotContiguous)
			},
			"suffix": func(rt *rapid.T) {
				base, _ := l.Base()
				if m.last == base {
					rt.Skip("empty")
				}
				from := rapid.Uint64Range(base+1, m.last).Draw(rt, "from")
				err := l.DeleteRange(from, m.last+rapid.Uint64Range(0, 2).Draw(rt, "past"))
				if from < m.floor {
					require.ErrorIs(rt, err, ErrBelowFloor)
					return
				}
				require.NoError(rt, err)
				m.cut(from)
				term++
			},
			"prefix": func(rt *rapid.T) {
				if m.last < m.base+2 {
					rt.Skip("short")
				}
				base, _ := l.Base()
				if base+1 > m.last-1 {
					rt.Skip("short")
				}
				to := rapid.Uint64Range(base+1, m.last-1).Draw(rt, "to")
				require.NoError(rt, l.DeleteRange(rapid.Uint64Range(0, base+1).Draw(rt, "min"), to))
				m.allowed = max(m.allowed, to)
			},
			"stale": func(rt *rapid.T) {
				base, _ := l.Base()
				require.NoError(rt, l.DeleteRange(0, base))
				require.NoError(rt, l.DeleteRange(m.last+1, m.last+9))
			},
			"floor": func(rt *rapid.T) {
				f := rapid.Uint64Range(0, m.last+1).Draw(rt, "floor")
				l.SetFloor(f)
				m.floor = max(m.floor, f)
			},
			"reset": func(rt *rapid.T) {
				index := m.last + rapid.Uint64Range(2, 500).Draw(rt, "ahead")
				require.NoError(rt, l.Reset(index, term))
				m.reset(index, term)
				limit = 0
			},
			"restart": func(*rapid.T) {
				require.NoError(rt, l.Close())
				reopen()
			},
			"power cut": func(rt *rapid.T) {
				keep := rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(rt, "keep")
				crashed := fsys.CrashClone(rapid.Uint64().Draw(rt, "seed"), keep)
				require.NoError(rt, l.Close())
				fsys = crashed
				reopen()
			},
			"walk": func(*rapid.T) { require.NoError(rt, m.checkWalk(fsys, l)) },
			"": func(*rapid.T) {
				limit = max(limit, m.limit())
				require.NoError(rt, m.check(l, limit))
			},
		})
	})
}
