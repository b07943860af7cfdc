package wal

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"penstock/internal/vfs"
	"penstock/internal/vfs/memfs"
)

// repairedFixture is the log in testdata/format/v1-repair: a repaired segment
// with one hole in it, headers that repeat the one before, a mark that repeats
// the newest, blocks that count their records.
func repairedFixture(t *testing.T, fsys vfs.FS, dir string) (want []*raft.Log, hole uint64) {
	t.Helper()
	cfg := testConfig(t, fsys)
	cfg.SegmentBytes, cfg.AllowDamage = 4*blockSize, true
	l, err := Open(dir, cfg)
	require.NoError(t, err)
	for i := uint64(1); i <= 4; i++ {
		e := entry(i, 2, int(i)*1200)
		require.NoError(t, l.StoreLog(e))
		want = append(want, e)
	}
	require.NoError(t, l.Close())
	at := map[uint64]int64{}
	require.NoError(t, Walk(fsys, dir, func(r Record) error {
		at[r.Index] = r.Offset
		return nil
	}))
	f, err := fsys.OpenFile(filepath.Join(dir, segmentName(1)), os.O_RDWR, 0)
	require.NoError(t, err)
	for _, index := range []uint64{1, 2} {
		b := make([]byte, 1)
		_, err = f.ReadAt(b, at[index]+100)
		require.NoError(t, err)
		b[0] ^= 1
		_, err = f.WriteAt(b, at[index]+100)
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	l, err = Open(dir, cfg)
	require.NoError(t, err)
	require.NoError(t, l.Repair([]*raft.Log{want[0]}))
	require.NoError(t, l.LeaveHoles(2))
	require.NoError(t, l.Close())
	return want, 2
}

// TestRepairedFormatV1DecodesForEver: as TestFormatV1DecodesForEver, for what
// only damage brings about.
func TestRepairedFormatV1DecodesForEver(t *testing.T) {
	golden := filepath.Join("testdata", "format", "v1-repair")
	if *update {
		require.NoError(t, os.RemoveAll(golden))
		repairedFixture(t, vfs.OS, golden)
		names, err := os.ReadDir(golden)
		require.NoError(t, err)
		for _, e := range names {
			if _, ok := parseName(e.Name(), segmentPrefix); !ok && e.Name() != markName {
				require.NoError(t, os.Remove(filepath.Join(golden, e.Name())))
			}
		}
	}
	want, hole := repairedFixture(t, memfs.New(), testDir)
	fsys := memfs.New()
	require.NoError(t, fsys.MkdirAll(testDir, 0o700))
	names, err := os.ReadDir(golden)
	require.NoError(t, err)
	for _, e := range names {
		b, err := os.ReadFile(filepath.Join(golden, e.Name()))
		require.NoError(t, err)
		require.NoError(t, vfs.WriteFileAtomic(fsys, filepath.Join(testDir, e.Name()), b, 0o600))
	}
	l := openDamaged(t, fsys)
	damage := l.Damage()
	require.Len(t, damage, 1)
	lost := want[hole-1]
	require.Equal(t, Damage{
		Kind: DamageHole, File: filepath.Join(testDir, segmentName(1)), Offset: damage[0].Offset,
		First: hole, Last: hole, Known: true, Term: lost.Term, PayloadCRC: PayloadCRC(lost), Err: errHole,
	}, damage[0])
	require.Equal(t, kindRepair, l.mu.segs[0].kind)
	require.NotZero(t, l.mu.segs[1].prevCopy.start)
	require.NoError(t, l.Repair([]*raft.Log{lost}))
	require.Empty(t, l.Damage())
	for _, e := range want {
		requireEntry(t, l, e)
	}
	require.NoError(t, l.Close())
}
