package wal

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/vfs/errfs"
	"penstock/internal/vfs/memfs"
)

// TestFullDiskUsesSparesAndReserveBeforeItFails (B35): with the disk full the
// log goes on for as long as spares and the reserve last, a restart works, and
// once there is room again everything is as before without a hand on a file.
func TestFullDiskUsesSparesAndReserveBeforeItFails(t *testing.T) {
	mem := memfs.New()
	cfg := testConfig(t, mem)
	cfg.SpaceCheck = time.Millisecond
	cfg.ReserveBytes = 2 * cfg.SegmentBytes
	cfg.LowWaterBytes = 2 * cfg.SegmentBytes
	cfg.StallTimeout = 20 * time.Second
	l, err := Open(testDir, cfg)
	require.NoError(t, err)
	stats := func(ok func(Stats) bool, what string) {
		t.Helper()
		require.Eventually(t, func() bool { return ok(l.Stats()) }, 5*time.Second, time.Millisecond, what)
	}
	stats(func(s Stats) bool { return s.ReserveBytes == cfg.ReserveBytes && s.Spares == 1 }, "ready")
	require.False(t, l.Stats().LowWater)
	s := l.Stats()
	require.Equal(t, s.RetainedBytes+s.ReserveBytes+cfg.SegmentBytes, s.DiskBytes)

	// Somebody else fills the disk: the reserve goes back at once, and is not
	// counted as room.
	mem.SetCapacity(used(t, mem) + cfg.SegmentBytes/4)
	stats(func(s Stats) bool { return s.LowWater && s.ReserveBytes == 0 && s.FreeBytes >= 0 }, "low")

	// The log goes on: the tail, the spare, and two more out of the reserve.
	store := func(n int) {
		for range n {
			require.NoError(t, l.StoreLog(entry(l.Stats().Last+1, 1, 7000)))
		}
	}
	store(3 * 3)
	require.True(t, l.Stats().LowWater)
	require.NoError(t, l.Close())
	l, err = Open(testDir, cfg)
	require.NoError(t, err, "restart with a full disk")
	store(1)

	// Room again.
	mem.SetCapacity(100 * cfg.SegmentBytes)
	stats(func(s Stats) bool { return !s.LowWater && s.ReserveBytes == cfg.ReserveBytes && s.Spares > 0 }, "recovered")
	store(20)
	require.NoError(t, l.Close())
}

func used(t *testing.T, mem *memfs.FS) (sum int64) {
	for _, b := range takeImage(t, mem) {
		sum += int64(len(b))
	}
	return sum
}

// TestWriterThatNeedsASegmentGetsTheReserve: also when nobody looked at the
// free space before.
func TestWriterThatNeedsASegmentGetsTheReserve(t *testing.T) {
	for _, size := range []int{7000, 60000} { // a usual segment, and one of its own
		mem := memfs.New()
		var blind atomic.Bool
		fsys := errfs.Wrap(mem, nil)
		cfg := testConfig(t, fsys)
		cfg.SpaceCheck = time.Millisecond
		cfg.ReserveBytes = 3 * cfg.SegmentBytes
		l, err := Open(testDir, cfg)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			s := l.Stats()
			return s.ReserveBytes > 0 && s.Spares > 0
		}, 5*time.Second, time.Millisecond)
		blind.Store(true)
		fsys.Set(func(op errfs.Op) error {
			if op.Kind == errfs.Other && op.Path == testDir && blind.Load() {
				return errors.New("not now")
			}
			return nil
		})
		require.Eventually(t, func() bool { return l.Stats().FreeBytes == -1 }, 5*time.Second, time.Millisecond)
		mem.SetCapacity(used(t, mem))
		for l.Stats().ReserveBytes > 0 {
			require.NoError(t, l.StoreLog(entry(l.Stats().Last+1, 1, size)))
		}
		require.NoError(t, l.Close())
	}
}
