package memfs

import (
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func write(t *testing.T, f *FS, name string, b string, off int64, sync bool) {
	t.Helper()
	h, err := f.OpenFile(name, os.O_RDWR|os.O_CREATE, 0)
	require.NoError(t, err)
	_, err = h.WriteAt([]byte(b), off)
	require.NoError(t, err)
	if sync {
		require.NoError(t, h.Sync())
	}
	require.NoError(t, h.Close())
}

func content(t *testing.T, f *FS, name string) string {
	t.Helper()
	_, n, _ := f.lookup(name)
	require.NotNil(t, n)
	return string(n.data)
}

func block(c byte) string {
	b := make([]byte, sectorSize)
	for i := range b {
		b[i] = c
	}
	return string(b)
}

func TestPowerCutKeepsOnlyWhatWasSynced(t *testing.T) {
	f := New()
	write(t, f, "a", block('1')+block('2'), 0, true)
	require.NoError(t, f.SyncDir("/"))
	write(t, f, "a", "x", 3, false)
	write(t, f, "a", block('3'), 2*sectorSize, false)
	write(t, f, "b", "new", 0, true) // its name is not synced
	require.Equal(t, block('1')+block('2'), content(t, f.CrashClone(1, 0), "a"))
	_, err := f.CrashClone(1, 0).Stat("b")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.Equal(t, content(t, f, "a"), content(t, f.CrashClone(1, 1), "a"))
	require.Equal(t, "new", content(t, f.CrashClone(1, 1), "b"))
}

// TestPowerCutKeepsAnySubsetOfSectors: with a probability in between every
// combination comes up, and the seed decides which.
func TestPowerCutKeepsAnySubsetOfSectors(t *testing.T) {
	f := New()
	write(t, f, "a", block('1')+block('2'), 0, true)
	require.NoError(t, f.SyncDir("/"))
	write(t, f, "a", block('3')+block('4'), 0, false)
	seen := map[string]bool{}
	for seed := range uint64(50) {
		c := f.CrashClone(seed, 0.5)
		require.Equal(t, content(t, c, "a"), content(t, f.CrashClone(seed, 0.5), "a"), "same seed, same disk")
		seen[content(t, c, "a")] = true
	}
	require.Len(t, seen, 4)
}

func TestUnsyncedNamesSurviveAsAPrefix(t *testing.T) {
	f := New()
	for _, name := range []string{"a", "b", "c"} {
		write(t, f, name, name, 0, true)
	}
	require.NoError(t, f.Rename("a", "z"))
	for seed := range uint64(50) {
		names := f.CrashClone(seed, 0.5).root.entries
		if names["z"] != nil {
			require.Nil(t, names["a"], "a rename is one step")
			require.NotNil(t, names["c"])
		}
		if names["c"] != nil {
			require.NotNil(t, names["b"])
		}
	}
}

func TestUnsyncedTruncateMayBeUndone(t *testing.T) {
	f := New()
	write(t, f, "a", block('1')+block('2'), 0, true)
	require.NoError(t, f.SyncDir("/"))
	h, err := f.OpenFile("a", os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, h.Truncate(0))
	require.Empty(t, content(t, f, "a"))
	require.Equal(t, block('1')+block('2'), content(t, f.CrashClone(0, 0), "a"))
	require.NoError(t, h.Sync())
	require.Empty(t, content(t, f.CrashClone(0, 0), "a"))
}

func TestCloneIsIndependent(t *testing.T) {
	f := New()
	write(t, f, "a", "1", 0, true)
	require.NoError(t, f.SyncDir("/"))
	c := f.CrashClone(0, 0)
	write(t, c, "a", "2", 0, true)
	require.Equal(t, "1", content(t, f, "a"))
	_, err := c.Lock("l")
	require.NoError(t, err)
}
