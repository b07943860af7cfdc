package wal

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"penstock/internal/vfs"
	"penstock/internal/vfs/memfs"
)

// TestReadsCompactionFloorAndAppendsMayRace: under -race, with checks that an
// entry at or above the floor is always there.
func TestReadsCompactionFloorAndAppendsMayRace(t *testing.T) {
	fsys := memfs.New()
	cfg := testConfig(t, fsys)
	cfg.MarkInterval = time.Microsecond
	l, err := Open(testDir, cfg)
	require.NoError(t, err)
	var last, floor atomic.Uint64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	background := func(fn func(r *rand.Rand)) {
		seed := rand.Uint64()
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for {
				select {
				case <-stop:
					return
				default:
					fn(r)
				}
			}
		})
	}
	for range 2 {
		background(func(r *rand.Rand) {
			f, n := max(floor.Load(), 1), last.Load()
			if f > n {
				return
			}
			i := f + r.Uint64N(n-f+1)
			var e raft.Log
			err := l.GetLog(i, &e)
			// A suffix cut may take what is above the floor as it is read.
			if err != nil && !(errors.Is(err, raft.ErrLogNotFound) && (i > last.Load() || i < floor.Load())) {
				t.Errorf("entry %d (floor %d, last %d): %v", i, f, n, err)
			}
			if err == nil && (e.Index != i || string(e.Data) != string(entry(i, e.Term, len(e.Data)).Data)) {
				t.Errorf("entry %d is not itself", i)
			}
		})
	}
	background(func(r *rand.Rand) { // compaction
		if n := last.Load(); n > 20 {
			first, err := l.FirstIndex()
			if err == nil {
				err = l.DeleteRange(first, min(n-10, first+r.Uint64N(30)))
			}
			if err != nil && !errors.Is(err, ErrBelowFloor) {
				t.Error(err)
			}
		}
		time.Sleep(100 * time.Microsecond)
	})
	background(func(*rand.Rand) {
		if n := last.Load(); n > 15 {
			floor.Store(n - 15)
			l.SetFloor(n - 15)
		}
		_ = l.Stats()
		_ = Walk(fsys, testDir, func(Record) error { return nil })
		time.Sleep(100 * time.Microsecond)
	})
	term := uint64(1)
	for range 400 {
		n := last.Load()
		if n > 30 && n%17 == 0 { // the writer cuts 1 to 3 entries, above the floor
			from := n - n%3
			last.Store(from - 1)
			require.NoError(t, l.DeleteRange(from, n))
			n, term = from-1, term+1
		}
		k := uint64(1 + n%5)
		require.NoError(t, l.StoreLogs(entries(n+1, n+k, term, int(n*977%9000))))
		last.Store(n + k)
	}
	close(stop)
	wg.Wait()
	require.NoError(t, l.Close())
	l, err = Open(testDir, testConfig(t, fsys))
	require.NoError(t, err)
	require.Equal(t, last.Load(), l.Stats().Last)
	require.Less(t, l.Stats().Segments, 12, "compaction kept up")
	require.NoError(t, l.Close())
}

// TestWalkOfALiveLogSeesAPrefix: offline reading beside a writer reports no
// damage and no gap.
func TestWalkOfALiveLogSeesAPrefix(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(t, vfs.OS)
	cfg.MarkInterval = time.Millisecond
	l, err := Open(dir, cfg)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := uint64(1); i < 600; i += 3 {
			if err := l.StoreLogs(entries(i, i+2, 1, 2500)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for walking := true; walking; {
		select {
		case <-done:
			walking = false
		default:
		}
		before := l.Stats().Last
		next := uint64(1)
		require.NoError(t, Walk(vfs.OS, dir, func(r Record) error {
			require.Equal(t, next, r.Index)
			require.True(t, string(r.Data) == string(entry(r.Index, 1, 2500).Data))
			next++
			return nil
		}))
		require.GreaterOrEqual(t, next-1, before)
	}
	require.NoError(t, l.Close())
}

func TestSecondOpenIsRefused(t *testing.T) {
	for _, fsys := range []vfs.FS{memfs.New(), vfs.OS} {
		dir := t.TempDir()
		l, err := Open(dir, testConfig(t, fsys))
		require.NoError(t, err)
		_, err = Open(dir, testConfig(t, fsys))
		require.ErrorIs(t, err, ErrInUse)
		require.NoError(t, l.Close())
		require.NoError(t, l.Close())
		require.ErrorIs(t, l.StoreLog(entry(1, 1, 1)), ErrClosed)
		require.ErrorIs(t, l.GetLog(1, new(raft.Log)), ErrClosed)
		l, err = Open(dir, testConfig(t, fsys))
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
}
