package wal

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"penstock/internal/vfs"
	"penstock/internal/vfs/memfs"
)

// TestDeleteRangeTakesWhatRaftAsksFor: one row per kind of range, on a log
// [first, last] = [11, 20] above base 10, with the floor at 13.
func TestDeleteRangeTakesWhatRaftAsksFor(t *testing.T) {
	rows := map[string]struct {
		min, max    uint64
		first, last uint64
		err         error
	}{
		"nothing: (0,0)":                 {0, 0, 11, 20, nil},
		"nothing: below first":           {1, 10, 11, 20, nil},
		"nothing: past last":             {21, 30, 11, 20, nil},
		"nothing: inverted":              {15, 14, 11, 20, nil},
		"prefix of what is needed still": {11, 15, 11, 20, nil},
		"prefix from far below":          {0, 15, 11, 20, nil},
		"suffix":                         {15, 20, 11, 14, nil},
		"suffix past last":               {15, 99, 11, 14, nil},
		"last entry":                     {20, 20, 11, 19, nil},
		"suffix at the floor":            {13, 20, 11, 12, nil},
		"suffix below the floor":         {12, 20, 11, 20, ErrBelowFloor},
		"whole log below the floor":      {11, 20, 11, 20, ErrBelowFloor},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			fsys := memfs.New()
			l := mustOpen(t, fsys)
			require.NoError(t, l.Reset(10, 2))
			require.NoError(t, l.StoreLogs(entries(11, 20, 3, 10)))
			l.SetFloor(13)
			require.ErrorIs(t, l.DeleteRange(row.min, row.max), row.err)
			requireRange(t, l, row.first, row.last)
			l2 := mustOpen(t, fsys.CrashClone(0, 0)) // durable before the return
			requireRange(t, l2, row.first, row.last)
			next := []*raft.Log{entry(row.last+1, 5, 3)}
			require.NoError(t, l2.StoreLogs(next))
			requireEntry(t, l2, next[0])
		})
	}
	l := mustOpen(t, memfs.New())
	require.NoError(t, l.StoreLogs(entries(1, 20, 1, 10)))
	require.Error(t, l.DeleteRange(5, 10), "a hole in the middle")
}

// TestWholeLogDeleteKeepsTheBase: what Raft reads at its next start is still
// an (index, term) it can compare.
func TestWholeLogDeleteKeepsTheBase(t *testing.T) {
	fsys := memfs.New()
	l := mustOpen(t, fsys)
	require.NoError(t, l.StoreLogs(entries(1, 9, 1, 3000)))
	require.NoError(t, l.DeleteRange(1, 9))
	requireRange(t, l, 0, 0)
	require.ErrorIs(t, l.StoreLogs(entries(10, 11, 1, 1)), ErrNotContiguous)
	require.NoError(t, l.StoreLogs(entries(1, 2, 2, 1)))

	require.NoError(t, l.Reset(5000, 7))
	require.NoError(t, l.StoreLogs(entries(5001, 5004, 8, 100)))
	require.NoError(t, l.DeleteRange(5001, 5004))
	for _, l := range []*Log{l, mustOpen(t, fsys.CrashClone(0, 0))} {
		requireRange(t, l, 5001, 5000)
		var e raft.Log
		require.NoError(t, l.GetLog(5000, &e))
		require.Equal(t, raft.Log{Index: 5000, Term: 7, Type: raft.LogNoop}, e)
		require.ErrorIs(t, l.GetLog(5001, &e), raft.ErrLogNotFound)
		require.ErrorIs(t, l.GetLog(4999, &e), raft.ErrLogNotFound)
		require.NoError(t, l.DeleteRange(5001, 5000), "what removeOldLogs of an empty log would ask")
		require.ErrorIs(t, l.StoreLogs(entries(5002, 5002, 9, 1)), ErrNotContiguous)
	}
}

func TestResetThenStoreAtAFarIndex(t *testing.T) {
	fsys := memfs.New()
	l := mustOpen(t, fsys)
	require.Error(t, l.Reset(0, 0))
	require.Error(t, l.Reset(1, 1))
	require.NoError(t, l.StoreLogs(entries(1, 9, 1, 9000)))
	require.NoError(t, l.Reset(1<<40, 12))
	require.NoError(t, l.Reset(1<<40, 12), "again, as after a crash in the middle of an install")
	require.NoError(t, l.StoreLogs(entries(1<<40+1, 1<<40+9, 12, 9000)))
	for _, l := range []*Log{l, mustOpen(t, fsys.CrashClone(0, 0))} {
		requireRange(t, l, 1<<40+1, 1<<40+9)
		base, term := l.Base()
		require.Equal(t, []uint64{1 << 40, 12}, []uint64{base, term})
		requireEntry(t, l, entry(1<<40+5, 12, 9000))
	}
	require.NoError(t, l.Reset(500, 13), "also downwards: the state was replaced")
	requireRange(t, l, 501, 500)
}

// TestFloorHoldsSegments: nothing at or above floor-1 goes, whatever Raft
// allows, and nothing goes that Raft did not allow (I3).
func TestFloorHoldsSegments(t *testing.T) {
	fsys := memfs.New()
	l := mustOpen(t, fsys)
	for i := uint64(1); i <= 20; i++ {
		require.NoError(t, l.StoreLog(entry(i, 1, 14000))) // one or two to a segment
	}
	first := func() uint64 {
		f, err := l.FirstIndex()
		require.NoError(t, err)
		return f
	}
	require.NoError(t, l.DeleteRange(1, 15))
	require.Equal(t, uint64(1), first(), "no floor yet")
	l.SetFloor(8)
	held := first()
	require.LessOrEqual(t, held, uint64(7))
	require.Greater(t, held, uint64(4))
	requireEntry(t, l, entry(7, 1, 14000))
	base, term := l.Base()
	require.Equal(t, []uint64{held - 1, 1}, []uint64{base, term})
	l.SetFloor(3)
	require.Equal(t, held, first(), "the floor never goes down")
	l.SetFloor(21)
	require.LessOrEqual(t, first(), uint64(16), "Raft allowed 15")
	requireEntry(t, l, entry(16, 1, 14000))
	require.Eventually(t, func() bool { return len(segmentFiles(t, fsys)) == l.Stats().Segments }, time.Second, time.Millisecond)
	want := first()
	l2 := mustOpen(t, fsys.CrashClone(0, 0))
	got, err := l2.FirstIndex()
	require.NoError(t, err)
	require.LessOrEqual(t, got, want)
}

// segmentFiles lists the segment files on disk.
func segmentFiles(t *testing.T, fsys vfs.FS) (names []string) {
	t.Helper()
	dir, err := fsys.ReadDir(testDir)
	require.NoError(t, err)
	for _, e := range dir {
		if _, ok := parseName(e.Name(), segmentPrefix); ok {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestBaseIsNeverOne(t *testing.T) {
	l := mustOpen(t, memfs.New())
	require.NoError(t, l.StoreLog(entry(1, 1, 26000)))
	require.NoError(t, l.StoreLog(entry(2, 1, 26000)))
	require.NoError(t, l.StoreLog(entry(3, 1, 26000)))
	require.NoError(t, l.StoreLog(entry(4, 1, 26000)))
	l.SetFloor(3)
	require.NoError(t, l.DeleteRange(1, 1))
	requireRange(t, l, 1, 4)
	require.NoError(t, l.DeleteRange(1, 3))
	l.SetFloor(4)
	requireRange(t, l, 3, 4)
}

// TestTruncatedEntriesNeverComeBack: cut and grow again with other terms,
// lose each newest segment in turn, and see that no old record shows.
func TestTruncatedEntriesNeverComeBack(t *testing.T) {
	fsys := memfs.New()
	l, err := Open(testDir, testConfig(t, fsys))
	require.NoError(t, err)
	require.NoError(t, l.StoreLogs(entries(1, 6, 1, 3000)))
	require.NoError(t, l.DeleteRange(4, 6))
	require.NoError(t, l.StoreLogs(entries(4, 4, 2, 10)))
	require.NoError(t, l.Close())
	l = mustOpen(t, fsys)
	requireRange(t, l, 1, 4)
	requireEntry(t, l, entry(4, 2, 10))
	img := takeImage(t, fsys)
	delete(img, filepath.Base(l.tail().path))
	_, err = Open(testDir, testConfig(t, img.put(t)))
	var damage *DamageError
	require.ErrorAs(t, err, &damage)
	require.Equal(t, DamageMissing, damage.Kind)
}
