package wal

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"penstock/internal/vfs"
	"penstock/internal/vfs/memfs"
)

// recycled is a log whose newest segment overwrites an older one: its first
// batches are current, the rest of the file is of older generations.
func recycled(t *testing.T, fsys vfs.FS) (*Log, *model) {
	t.Helper()
	l, err := Open(testDir, testConfig(t, fsys))
	require.NoError(t, err)
	m := newModel()
	store := func(n uint64, size int) {
		logs := entries(m.last+1, m.last+n, 1, size)
		require.NoError(t, l.StoreLogs(logs))
		m.store(logs)
	}
	for l.Stats().Segments < 3 {
		store(1, 7000)
	}
	l.SetFloor(m.last)
	require.NoError(t, l.DeleteRange(1, m.last-1))
	m.floor, m.allowed = m.last, m.last-1
	require.Eventually(t, func() bool { return testutil.ToFloat64(l.metrics.recycled) > 0 }, 5*time.Second, time.Millisecond)
	for !l.tailIsRecycled(t) {
		store(1, 7000)
	}
	store(2, 100)
	return l, m
}

// tailIsRecycled: something in the newest segment is of an older generation.
func (l *Log) tailIsRecycled(t *testing.T) bool {
	t.Helper()
	seg := l.tail()
	sec := make([]byte, sectorSize)
	for s := uint32(sectorsPerBlock); s < seg.blocks*sectorsPerBlock; s++ {
		_, err := seg.file.ReadAt(sec, int64(s)*sectorSize)
		require.NoError(t, err)
		if _, state := readTag(sec, seg.gen, s); state == sectorOld {
			return true
		}
	}
	return false
}

func spares(t *testing.T, fsys vfs.FS) (n int) {
	t.Helper()
	dir, err := fsys.ReadDir(testDir)
	require.NoError(t, err)
	for _, e := range dir {
		if _, ok := parseName(e.Name(), sparePrefix); ok {
			n++
		}
	}
	return n
}

// TestDroppedSegmentIsUsedAgainAndNothingOldShows: what an older use left
// behind the end never comes back, also not in a log that was cut off there.
func TestDroppedSegmentIsUsedAgainAndNothingOldShows(t *testing.T) {
	fsys := memfs.New()
	l, m := recycled(t, fsys)
	limit := m.limit()
	require.NoError(t, m.check(l, limit))
	for _, keep := range []float64{0, 0.5, 1} {
		l2, err := Open(testDir, testConfig(t, fsys.CrashClone(1, keep)))
		require.NoError(t, err)
		require.NoError(t, m.check(l2, limit))
		require.NoError(t, l2.Close())
	}
	require.NoError(t, l.DeleteRange(m.last, m.last))
	m.cut(m.last)
	require.NoError(t, m.check(l, limit))
	require.NoError(t, l.Close())
	l2 := mustOpen(t, fsys)
	require.NoError(t, m.check(l2, limit))
	require.NoError(t, m.checkWalk(fsys, l2))
}

// TestTornBatchInARecycledSegmentIsTorn: any subset of the last batch's
// sectors over old blocks instead of zeros.
func TestTornBatchInARecycledSegmentIsTorn(t *testing.T) {
	fsys := memfs.New()
	l, m := recycled(t, fsys)
	_, err := l.markNow(false)
	require.NoError(t, err)
	before, mAfter := takeImage(t, fsys), m.clone()
	logs := entries(m.last+1, m.last+3, 2, 2500)
	require.NoError(t, l.StoreLogs(logs))
	mAfter.store(logs)
	after := takeImage(t, fsys)
	require.NoError(t, l.Close())
	name, from, to := lastBatch(before, after)
	n := (to - from) / sectorSize
	require.Equal(t, 16, n)
	for set := uint64(0); set < 1<<n; set += 331 {
		img := after.with(name, func(b []byte) []byte {
			for s := range n {
				if set>>s&1 == 0 {
					at := from + s*sectorSize
					copy(b[at:at+sectorSize], before[name][at:])
				}
			}
			return b
		})
		_, err := img.open(t, m)
		require.NoError(t, err, "sectors %b", set)
	}
	_, err = after.open(t, mAfter)
	require.NoError(t, err)
}

// TestSparesAreBounded: what is more is removed, and a log that does not want
// any keeps only the one that is prepared ahead.
func TestSparesAreBounded(t *testing.T) {
	for bound, most := range map[int]int{-1: 2, 2: 3} {
		fsys := memfs.New()
		cfg := testConfig(t, fsys)
		cfg.Spares = bound
		l, err := Open(testDir, cfg)
		require.NoError(t, err)
		require.NoError(t, l.StoreLogs(entries(1, 60, 1, 3000)))
		l.SetFloor(60)
		require.NoError(t, l.DeleteRange(1, 59))
		require.NoError(t, l.tidy())
		require.LessOrEqual(t, spares(t, fsys), most)
		require.NoError(t, l.Close())
		require.Equal(t, bound > 0, testutil.ToFloat64(l.metrics.recycled) > 0)
	}
}

// TestHeldSegmentIsNotUsedAgain: a reader may still be at its blocks.
func TestHeldSegmentIsNotUsedAgain(t *testing.T) {
	fsys := memfs.New()
	l := mustOpen(t, fsys)
	require.NoError(t, l.StoreLogs(entries(1, 30, 1, 3000)))
	seg := l.mu.segs[0]
	pos, end := seg.span(1)
	seg.file.acquire()
	l.SetFloor(30)
	require.NoError(t, l.DeleteRange(1, 29))
	require.NoError(t, l.StoreLogs(entries(31, 60, 1, 3000)))
	require.NoError(t, l.tidy())
	h, payload, err := readRecord(seg.file, seg.path, 1, pos, end)
	require.NoError(t, err)
	require.Equal(t, uint64(1), h.index)
	require.Equal(t, entry(1, 1, 3000).Data, payload)
	require.NoError(t, seg.file.release())
}

// TestSegmentLostRightAfterItsFirstAckIsNoticed: the mark names a segment
// before anything in it is acked.
func TestSegmentLostRightAfterItsFirstAckIsNoticed(t *testing.T) {
	fsys := memfs.New()
	l := mustOpen(t, fsys)
	for n := l.tail().number; l.tail().number == n; {
		last, err := l.LastIndex()
		require.NoError(t, err)
		require.NoError(t, l.StoreLog(entry(last+1, 1, 7000)))
	}
	lost := l.tail().path
	crashed := fsys.CrashClone(0, 0)
	require.NoError(t, crashed.Remove(lost))
	_, err := Open(testDir, testConfig(t, crashed))
	var damage *DamageError
	require.ErrorAs(t, err, &damage)
	require.Equal(t, DamageMissing, damage.Kind)
	require.Equal(t, filepath.Base(lost), filepath.Base(damage.File))
}

// TestWalkOfALiveLogStepsOverWhatIsDroppedMeanwhile: a file that is renamed
// and written again under the reader is not damage.
func TestWalkOfALiveLogStepsOverWhatIsDroppedMeanwhile(t *testing.T) {
	fsys := memfs.New()
	l := mustOpen(t, fsys)
	require.NoError(t, l.StoreLogs(entries(1, 40, 1, 3000)))
	var got []string
	require.NoError(t, Walk(fsys, testDir, func(r Record) error {
		if len(got) == 0 {
			l.SetFloor(40)
			require.NoError(t, l.DeleteRange(1, 39))
			require.NoError(t, l.tidy())
			require.NoError(t, l.StoreLogs(entries(41, 80, 2, 3000)))
			l.SetFloor(80)
			require.NoError(t, l.DeleteRange(1, 79))
			require.NoError(t, l.tidy())
			require.NoError(t, l.StoreLogs(entries(81, 120, 3, 3000)))
		}
		require.Equal(t, entry(r.Index, r.Term, 3000).Data, r.Data)
		got = append(got, describe(r.Index, r.Term, raft.LogCommand, r.Data, nil, time.Time{}))
		return nil
	}))
	require.True(t, strings.HasPrefix(got[0], "1 1 "))
}
