package wal

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/internal/vfs/memfs"
)

// TestTheMarkOfAClosedLogIsTakenBackBeforeAnythingIsWritten: only between Close and the next Open does the mark say that nothing lies
// behind its end; a process that then ends without Close leaves a log that is read as after any crash.
func TestTheMarkOfAClosedLogIsTakenBackBeforeAnythingIsWritten(t *testing.T) {
	fsys := memfs.New()
	closed := func() bool {
		m, doubt, err := readMark(fsys, testDir)
		require.NoError(t, err)
		require.NoError(t, doubt)
		ld, err := load(fsys, testDir, os.O_RDONLY, false, false)
		require.NoError(t, err)
		defer ld.close()
		require.Equal(t, m.closed, ld.closedAt(ld.segs[len(ld.segs)-1].segmentHeader))
		return m.closed
	}
	l, err := Open(testDir, testConfig(t, fsys))
	require.NoError(t, err)
	require.NoError(t, l.StoreLogs(entries(1, 20, 1, 900)))
	require.NoError(t, l.Close())
	require.True(t, closed())

	l, err = Open(testDir, testConfig(t, fsys))
	require.NoError(t, err)
	require.False(t, closed(), "from here on it may be written")
	require.NoError(t, l.StoreLogs(entries(21, 30, 1, 900)))
	require.NoError(t, l.tidy())
	require.False(t, closed(), "a mark of a running log")
	require.NoError(t, l.Close())
	require.True(t, closed())

	l = mustOpen(t, fsys)
	for _, want := range entries(1, 30, 1, 900) {
		requireEntry(t, l, want)
	}
}

// TestBehindTheEndOfAClosedLogNothingIsRead: what a disk does to blocks that hold nothing is no damage of the log; below the end it is.
func TestBehindTheEndOfAClosedLogNothingIsRead(t *testing.T) {
	fsys := memfs.New()
	l, err := Open(testDir, testConfig(t, fsys))
	require.NoError(t, err)
	require.NoError(t, l.StoreLogs(entries(1, 3, 1, 900)))
	path, end := l.tail().path, int64(l.tail().end)*blockSize
	require.NoError(t, l.Close())

	flip := func(at int64) {
		f, err := fsys.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		defer func() { require.NoError(t, f.Close()) }()
		b := make([]byte, 1)
		_, err = f.ReadAt(b, at)
		require.NoError(t, err)
		b[0] ^= 0x55
		_, err = f.WriteAt(b, at)
		require.NoError(t, err)
	}
	flip(end + 100)
	l, err = Open(testDir, testConfig(t, fsys))
	require.NoError(t, err)
	require.Equal(t, uint64(3), l.Stats().Last)
	require.Zero(t, l.recovery.TornBytes)
	require.NoError(t, l.StoreLogs(entries(4, 6, 1, 900)), "the flipped block is overwritten")
	require.NoError(t, l.Close())

	flip(end - 2000)
	_, err = Open(testDir, testConfig(t, fsys))
	var damage *DamageError
	require.ErrorAs(t, err, &damage)
	require.Equal(t, filepath.Base(path), filepath.Base(damage.File))
}
