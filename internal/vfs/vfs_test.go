package vfs_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/internal/vfs"
	"penstock/internal/vfs/errfs"
	"penstock/internal/vfs/memfs"
)

// eachFS runs the same claims over every implementation.
func eachFS(t *testing.T, fn func(t *testing.T, fsys vfs.FS, dir string)) {
	t.Run("os", func(t *testing.T) { fn(t, vfs.OS, t.TempDir()) })
	t.Run("memfs", func(t *testing.T) { fn(t, memIn(t, "/d"), "/d") })
	t.Run("errfs", func(t *testing.T) { fn(t, errfs.Wrap(memIn(t, "/d"), nil), "/d") })
}

func memIn(t *testing.T, dir string) *memfs.FS {
	m := memfs.New()
	require.NoError(t, m.MkdirAll(dir, 0o700))
	return m
}

func TestFilesHoldWhatIsWritten(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys vfs.FS, dir string) {
		name := filepath.Join(dir, "f")
		_, err := fsys.Open(name)
		require.ErrorIs(t, err, fs.ErrNotExist)
		f, err := fsys.Create(name)
		require.NoError(t, err)
		_, err = f.Write([]byte("hello "))
		require.NoError(t, err)
		_, err = f.Write([]byte("world"))
		require.NoError(t, err)
		_, err = f.WriteAt([]byte("W"), 6)
		require.NoError(t, err)
		_, err = f.WriteAt([]byte("!"), 14)
		require.NoError(t, err)
		require.NoError(t, f.Sync())
		b := make([]byte, 20)
		n, err := f.ReadAt(b, 0)
		require.Equal(t, io.EOF, err)
		require.Equal(t, "hello World\x00\x00\x00!", string(b[:n]))
		require.NoError(t, f.Truncate(5))
		pos, err := f.Seek(1, io.SeekStart)
		require.NoError(t, err)
		require.Equal(t, int64(1), pos)
		got, err := io.ReadAll(f)
		require.NoError(t, err)
		require.Equal(t, "ello", string(got))
		require.NoError(t, f.Close())

		a, err := fsys.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
		require.NoError(t, err)
		_, err = a.Write([]byte("++"))
		require.NoError(t, err)
		require.NoError(t, a.Close())
		got, err = vfs.ReadFile(fsys, name)
		require.NoError(t, err)
		require.Equal(t, "hello++", string(got))
		_, err = fsys.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		require.ErrorIs(t, err, fs.ErrExist)
	})
}

func TestNamesMoveAndGo(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys vfs.FS, dir string) {
		sub := filepath.Join(dir, "a", "b")
		require.NoError(t, fsys.MkdirAll(sub, 0o700))
		require.NoError(t, fsys.MkdirAll(sub, 0o700))
		require.NoError(t, vfs.WriteFileAtomic(fsys, filepath.Join(sub, "x"), []byte("1"), 0o600))
		require.NoError(t, vfs.WriteFileAtomic(fsys, filepath.Join(sub, "x"), []byte("22"), 0o600))
		require.NoError(t, vfs.WriteFileAtomic(fsys, filepath.Join(sub, "y"), nil, 0o600))
		require.NoError(t, fsys.Rename(filepath.Join(sub, "x"), filepath.Join(dir, "z")))
		require.NoError(t, fsys.SyncDir(dir))
		list, err := fsys.ReadDir(sub)
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Equal(t, "y", list[0].Name())
		st, err := fsys.Stat(filepath.Join(dir, "z"))
		require.NoError(t, err)
		require.Equal(t, int64(2), st.Size())
		require.Error(t, fsys.Remove(sub), "not empty")
		require.NoError(t, fsys.Remove(filepath.Join(sub, "y")))
		require.ErrorIs(t, fsys.Remove(filepath.Join(sub, "y")), fs.ErrNotExist)
		require.NoError(t, fsys.Remove(sub))
	})
}

func TestLockIsExclusive(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys vfs.FS, dir string) {
		name := filepath.Join(dir, "LOCK")
		l, err := fsys.Lock(name)
		require.NoError(t, err)
		_, err = fsys.Lock(name)
		require.ErrorIs(t, err, vfs.ErrLocked)
		require.NoError(t, l.Close())
		l, err = fsys.Lock(name)
		require.NoError(t, err)
		require.NoError(t, l.Close())
	})
}

// TestWriteFileAtomicSurvivesACrashAnywhere: the old content or the new, and
// the new one once it returned.
func TestWriteFileAtomicSurvivesACrashAnywhere(t *testing.T) {
	mem := memIn(t, "/d")
	require.NoError(t, vfs.WriteFileAtomic(mem, "/d/f", []byte("old"), 0o600))
	var clones []*memfs.FS
	fsys := errfs.Wrap(mem, func(op errfs.Op) error {
		for s, keep := range []float64{0, 1, 0.5, 0.5, 0.5, 0.5} {
			clones = append(clones, mem.CrashClone(uint64(s), keep))
		}
		return nil
	})
	require.NoError(t, vfs.WriteFileAtomic(fsys, "/d/f", []byte("the new one"), 0o600))
	for _, c := range clones {
		b, err := vfs.ReadFile(c, "/d/f")
		require.NoError(t, err)
		require.Contains(t, []string{"old", "the new one"}, string(b))
	}
	b, err := vfs.ReadFile(mem.CrashClone(1, 0), "/d/f")
	require.NoError(t, err)
	require.Equal(t, "the new one", string(b))
}

func TestWriteFileAtomicFailsWithEachOperation(t *testing.T) {
	boom := errors.New("boom")
	for _, kind := range []errfs.Kind{errfs.Open, errfs.Write, errfs.Sync, errfs.Close, errfs.Rename, errfs.SyncDir} {
		fsys := errfs.Wrap(memIn(t, "/d"), errfs.OnNth(kind, "*", 1, boom, nil))
		require.ErrorIs(t, vfs.WriteFileAtomic(fsys, "/d/f", []byte("x"), 0o600), boom, kind)
	}
}

func TestFreeBytesIsKnown(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys vfs.FS, dir string) {
		free, err := vfs.FreeBytes(fsys, dir)
		require.NoError(t, err)
		require.Positive(t, free)
	})
}

func TestFullFileSystemSaysSo(t *testing.T) {
	m := memIn(t, "/d")
	m.SetCapacity(10)
	f, err := m.Create("/d/f")
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("12345678"), 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("abc"), 8)
	require.ErrorIs(t, err, syscall.ENOSPC)
	_, err = f.WriteAt([]byte("abcdefgh"), 0)
	require.NoError(t, err, "overwriting takes no room")
	free, err := m.FreeBytes("/d")
	require.NoError(t, err)
	require.Equal(t, int64(2), free)
	require.NoError(t, m.Remove("/d/f"))
	free, err = m.FreeBytes("/d")
	require.NoError(t, err)
	require.Equal(t, int64(10), free)
}
