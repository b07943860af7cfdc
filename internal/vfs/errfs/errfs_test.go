package errfs

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/internal/vfs"
	"penstock/internal/vfs/memfs"
)

func TestNthOperationFailsOnce(t *testing.T) {
	boom := errors.New("boom")
	var fired atomic.Bool
	fsys := Wrap(memfs.New(), OnNth(Sync, "a*", 2, boom, &fired))
	b, err := fsys.Create("/b")
	require.NoError(t, err)
	a, err := fsys.Create("/a1")
	require.NoError(t, err)
	require.NoError(t, b.Sync())
	require.NoError(t, a.Sync())
	require.False(t, fired.Load())
	require.ErrorIs(t, a.Sync(), boom)
	require.True(t, fired.Load())
	require.NoError(t, a.Sync())
}

func TestShortWriteStoresItsPart(t *testing.T) {
	boom := errors.New("boom")
	fsys := Wrap(memfs.New(), OnNth(Write, "*", 1, &Short{Bytes: 3, Err: boom}, nil))
	f, err := fsys.Create("/a")
	require.NoError(t, err)
	n, err := f.WriteAt([]byte("hello"), 0)
	require.Equal(t, 3, n)
	require.ErrorIs(t, err, boom)
	got, err := vfs.ReadFile(fsys, "/a")
	require.NoError(t, err)
	require.Equal(t, "hel", string(got))
}
