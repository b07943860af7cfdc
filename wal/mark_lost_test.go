package wal

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"penstock/internal/vfs"
	"penstock/internal/vfs/memfs"
)

// spoilMark makes the mark useless in one of the ways in which a file goes.
var spoilMark = map[string]func(t *testing.T, fsys *memfs.FS){
	"missing": func(t *testing.T, fsys *memfs.FS) { require.NoError(t, fsys.Remove(filepath.Join(testDir, markName))) },
	"empty": func(t *testing.T, fsys *memfs.FS) {
		f, err := fsys.Create(filepath.Join(testDir, markName))
		require.NoError(t, err)
		require.NoError(t, f.Close())
	},
	"both slots bad": func(t *testing.T, fsys *memfs.FS) {
		f, err := fsys.OpenFile(filepath.Join(testDir, markName), 2, 0)
		require.NoError(t, err)
		for slot := range int64(markSlots) {
			_, err = f.WriteAt([]byte{0xff}, slot*blockSize+40)
			require.NoError(t, err)
		}
		require.NoError(t, f.Close())
	},
}

// A lost mark is damage unless the caller says that it knows: then what the files show is there, the mark is made anew, and
// only after the caller was told.
func TestLostMarkIsDamageUnlessTheCallerNotesTheDoubt(t *testing.T) {
	for name, spoil := range spoilMark {
		t.Run(name, func(t *testing.T) {
			fsys := memfs.New()
			l, err := Open(testDir, testConfig(t, fsys))
			require.NoError(t, err)
			for i := uint64(1); i <= 40; i++ {
				require.NoError(t, l.StoreLog(entry(i, 1, 2000)))
			}
			require.NoError(t, l.DeleteRange(31, 40)) // a dead suffix must not come back
			require.NoError(t, l.StoreLog(entry(31, 2, 100)))
			l.SetFloor(20)
			require.NoError(t, l.DeleteRange(1, 18))
			require.NoError(t, l.tidy())
			base, _ := l.Base()
			require.Greater(t, base, uint64(2))
			require.NoError(t, l.Close())
			spoil(t, fsys)

			_, err = Open(testDir, testConfig(t, fsys))
			var damage *DamageError
			require.ErrorAs(t, err, &damage)
			require.Equal(t, DamageMark, damage.Kind)
			cfg := testConfig(t, fsys)
			cfg.AllowDamage = true
			_, err = Open(testDir, cfg)
			require.ErrorAs(t, err, &damage, "to allow damage is not to know what was lost")
			no := errors.New("no")
			cfg.MarkLost = func(error) error { return no }
			_, err = Open(testDir, cfg)
			require.ErrorIs(t, err, no)
			require.ErrorAs(t, err, &damage)

			told := false
			cfg.MarkLost = func(err error) error {
				told = true
				_, _, merr := readMark(fsys, testDir)
				require.Error(t, merr, "told before it is made anew")
				return nil
			}
			l, err = Open(testDir, cfg)
			require.NoError(t, err)
			require.True(t, told)
			require.Error(t, l.Recovery().MarkLost)
			require.Empty(t, l.Damage())
			got, _ := l.Base()
			require.LessOrEqual(t, got, base)
			for i := base + 1; i <= 30; i++ {
				requireEntry(t, l, entry(i, 1, 2000))
			}
			requireEntry(t, l, entry(31, 2, 100))
			last, err := l.LastIndex()
			require.NoError(t, err)
			require.Equal(t, uint64(31), last)
			require.NoError(t, l.StoreLog(entry(32, 2, 100)))
			require.NoError(t, l.Close())
			l = mustOpen(t, fsys)
			require.NoError(t, l.Recovery().MarkLost)
			requireEntry(t, l, entry(32, 2, 100))
		})
	}
}

// Without a mark nothing may be called torn: what it vouched for is not known.
func TestWithoutAMarkABadTailIsDamageAndNotTorn(t *testing.T) {
	fsys := memfs.New()
	l, err := Open(testDir, testConfig(t, fsys))
	require.NoError(t, err)
	require.NoError(t, l.StoreLogs(entries(1, 3, 1, 100)))
	require.NoError(t, l.StoreLog(entry(4, 1, 9000)))
	tail := l.tail()
	path, last := tail.path, int64(tail.end-1)*blockSize
	require.NoError(t, l.Close())
	f, err := fsys.OpenFile(path, 2, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(make([]byte, blockSize), last) // as a torn write would leave it
	require.NoError(t, err)
	require.NoError(t, f.Close())
	spoilMark["missing"](t, fsys)
	cfg := testConfig(t, fsys)
	cfg.AllowDamage, cfg.MarkLost = true, func(error) error { return nil }
	l, err = Open(testDir, cfg)
	require.NoError(t, err)
	require.NotEmpty(t, l.Damage())
	require.Zero(t, l.Recovery().TornBytes)
	require.Error(t, l.StoreLog(entry(4, 1, 1)), "nothing is appended behind it")
	require.NoError(t, l.Close())
	l, err = Open(testDir, cfg) // the mark was made anew; it vouches for nothing at the end
	require.NoError(t, err)
	require.NotEmpty(t, l.Damage())
	require.NoError(t, l.Close())
}

// An entry that turns out damaged when it is read is damage for everybody, and repaired, also in the newest segment.
func TestRecheckFindsWhatAReadMetAlsoInTheNewestSegment(t *testing.T) {
	for _, newest := range []bool{false, true} {
		fsys := memfs.New()
		cfg := testConfig(t, fsys)
		cfg.CacheBytes = -1
		l, err := Open(testDir, cfg)
		require.NoError(t, err)
		n := uint64(3)
		if !newest {
			n = 30
		}
		for i := uint64(1); i <= n; i++ {
			require.NoError(t, l.StoreLog(entry(i, 1, 2000)))
		}
		seg := l.findLocked(2)
		pos, _ := seg.span(2)
		at, _ := posRaw(pos + recordHeaderSize + 100)
		flipBit(t, fsys, seg.path, int64(at))
		var got raft.Log
		var damage *DamageError
		require.ErrorAs(t, l.GetLog(2, &got), &damage)
		require.Equal(t, uint64(2), damage.Damaged())
		require.Empty(t, l.Damage())
		found, err := l.Recheck(context.Background(), 2)
		require.NoError(t, err)
		require.NotEmpty(t, found)
		require.NotEmpty(t, l.Damage())
		require.NoError(t, l.StoreLog(entry(n+1, 1, 10)), "the log goes on")
		require.NoError(t, l.Repair([]*raft.Log{entry(2, 1, 2000)}))
		require.Empty(t, l.Damage())
		for i := uint64(1); i <= n; i++ {
			requireEntry(t, l, entry(i, 1, 2000))
		}
		found, err = l.Recheck(context.Background(), 2)
		require.NoError(t, err)
		require.Empty(t, found)
		require.NoError(t, l.Close())
		l = mustOpen(t, fsys)
		requireEntry(t, l, entry(n+1, 1, 10))
	}
}

func flipBit(t *testing.T, fsys vfs.FS, path string, at int64) {
	t.Helper()
	f, err := fsys.OpenFile(path, 2, 0)
	require.NoError(t, err)
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	require.NoError(t, err)
	b[0] ^= 8
	_, err = f.WriteAt(b[:], at)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}
