package wal

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/internal/vfs/errfs"
	"penstock/internal/vfs/memfs"
)

func walkAll(t *testing.T, img image) (indexes []uint64, err error) {
	t.Helper()
	fsys := errfs.Wrap(img.put(t), func(op errfs.Op) error {
		if op.Kind.Mutates() {
			t.Errorf("walk did %s %s", op.Kind, op.Path)
		}
		return nil
	})
	err = Walk(fsys, testDir, func(r Record) error {
		indexes = append(indexes, r.Index)
		return nil
	})
	return indexes, err
}

// TestWalkGoesOnBehindDamageAndNamesIt: two damaged blocks in two segments,
// both reported, the entries around them delivered, nothing written.
func TestWalkGoesOnBehindDamageAndNamesIt(t *testing.T) {
	_, after, _, m := threeSegments(t)
	all, err := walkAll(t, after)
	require.NoError(t, err)
	require.Len(t, all, int(m.last))
	bad := after.with(segmentName(1), func(b []byte) []byte {
		b[blockSize+100] ^= 1
		return b
	}).with(segmentName(3), func(b []byte) []byte {
		b[blockSize+200] ^= 1
		return b
	})
	got, err := walkAll(t, bad)
	var damage *DamageError
	require.ErrorAs(t, err, &damage)
	var joined interface{ Unwrap() []error }
	require.True(t, errors.As(err, &joined))
	require.Len(t, joined.Unwrap(), 2)
	require.Equal(t, DamageBlock, damage.Kind)
	require.Equal(t, int64(blockSize), damage.Offset)
	require.Equal(t, uint64(1), damage.Index)
	require.Contains(t, damage.File, segmentName(1))
	require.NotContains(t, got, uint64(1))
	require.Contains(t, got, uint64(6))
	require.Contains(t, got, m.last)
}

func TestWalkStopsWithTheCallersError(t *testing.T) {
	_, after, _, _ := threeSegments(t)
	stop := errors.New("stop")
	n := 0
	err := Walk(after.put(t), testDir, func(Record) error {
		if n++; n == 3 {
			return stop
		}
		return nil
	})
	require.Equal(t, stop, err)
	require.Equal(t, 3, n)
}

func TestWalkOfAFolderWithoutALogSaysSo(t *testing.T) {
	fsys := memfs.New()
	require.ErrorIs(t, Walk(fsys, testDir, nil), fs.ErrNotExist)
	require.NoError(t, fsys.MkdirAll(testDir, 0o700))
	require.ErrorIs(t, Walk(fsys, testDir, nil), fs.ErrNotExist)
}

// TestReadDamageIsTypedAndNeverNotFound: rot behind the back of an open log.
func TestReadDamageIsTypedAndNeverNotFound(t *testing.T) {
	fsys := memfs.New()
	cfg := testConfig(t, fsys)
	cfg.CacheBytes = -1
	l, err := Open(testDir, cfg)
	require.NoError(t, err)
	require.NoError(t, l.StoreLogs(entries(1, 5, 1, 2000)))
	f, err := fsys.OpenFile(l.tail().path, 2, 0)
	require.NoError(t, err)
	for at := int64(blockSize); at < 4*blockSize; at++ {
		var b [1]byte
		_, err := f.ReadAt(b[:], at)
		require.NoError(t, err)
		_, err = f.WriteAt([]byte{b[0] ^ 0x10}, at)
		require.NoError(t, err)
		for i := uint64(1); i <= 5; i++ {
			var damage *DamageError
			if err := l.GetLog(i, newLog()); err != nil {
				require.ErrorAs(t, err, &damage)
				require.Equal(t, i, damage.Index)
			}
		}
		_, err = f.WriteAt(b[:], at)
		require.NoError(t, err)
		at += 16
	}
	require.NoError(t, l.Close())
}
