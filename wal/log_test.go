package wal

import (
	"log/slog"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"penstock/internal/vfs"
	"penstock/internal/vfs/memfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testDir = "/wal"

// testConfig is a log of small segments whose failure fails the test.
func testConfig(t testing.TB, fsys vfs.FS) Config {
	return Config{
		FS: fsys, SegmentBytes: 8 * blockSize, CacheBytes: 4 << 10, MarkInterval: time.Hour,
		Logger: slog.New(slog.DiscardHandler),
		Fatal:  func(err error) { t.Errorf("fatal: %v", err) },
	}
}

func mustOpen(t testing.TB, fsys vfs.FS) *Log {
	t.Helper()
	l, err := Open(testDir, testConfig(t, fsys))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// entry makes an entry whose content follows from its index, term and size.
func entry(index, term uint64, size int) *raft.Log {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(index*31 + term*7 + uint64(i)*13 + uint64(i)>>8)
	}
	return &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: data}
}

func entries(from, to, term uint64, size int) []*raft.Log {
	var out []*raft.Log
	for i := from; i <= to; i++ {
		out = append(out, entry(i, term, size))
	}
	return out
}

func requireEntry(t testing.TB, l *Log, want *raft.Log) {
	t.Helper()
	var got raft.Log
	require.NoError(t, l.GetLog(want.Index, &got))
	require.Equal(t, want.Index, got.Index)
	require.Equal(t, want.Term, got.Term)
	require.Equal(t, want.Type, got.Type)
	require.Equal(t, len(want.Data), len(got.Data))
	require.True(t, string(want.Data) == string(got.Data), "data of %d", want.Index)
	require.True(t, string(want.Extensions) == string(got.Extensions), "extensions of %d", want.Index)
	require.True(t, want.AppendedAt.Equal(got.AppendedAt), "appended at of %d", want.Index)
}

func requireRange(t testing.TB, l *Log, first, last uint64) {
	t.Helper()
	f, err := l.FirstIndex()
	require.NoError(t, err)
	n, err := l.LastIndex()
	require.NoError(t, err)
	require.Equal(t, []uint64{first, last}, []uint64{f, n}, "first and last index")
}

func TestFreshLogIsEmptyAsRaftExpects(t *testing.T) {
	l := mustOpen(t, memfs.New())
	requireRange(t, l, 0, 0)
	require.True(t, l.Recovery().Fresh)
	var e raft.Log
	require.ErrorIs(t, l.GetLog(0, &e), raft.ErrLogNotFound)
	require.ErrorIs(t, l.GetLog(1, &e), raft.ErrLogNotFound)
	require.NoError(t, l.DeleteRange(0, 0))
}

func TestStoredEntriesComeBackAfterReopen(t *testing.T) {
	fsys := memfs.New()
	l, err := Open(testDir, testConfig(t, fsys))
	require.NoError(t, err)
	var all []*raft.Log
	sizes := []int{0, 1, 471, 472, 473, 3951, 3952, 3953, 4000, 9000, 40000, 7}
	for i, size := range sizes {
		e := entry(uint64(i+1), 3, size)
		e.Type = raft.LogType(i % 6)
		if i%2 == 0 {
			e.Extensions = []byte("ext")
			e.AppendedAt = time.Unix(1700000000+int64(i), 123456789)
		}
		all = append(all, e)
	}
	require.NoError(t, l.StoreLogs(all[:4]))
	require.NoError(t, l.StoreLog(all[4]))
	require.NoError(t, l.StoreLogs(all[5:]))
	for _, e := range all {
		requireEntry(t, l, e)
	}
	require.NoError(t, l.Close())
	l = mustOpen(t, fsys)
	requireRange(t, l, 1, uint64(len(sizes)))
	for _, e := range all {
		requireEntry(t, l, e)
	}
	i := 0
	require.NoError(t, Walk(fsys, testDir, func(r Record) error {
		require.Equal(t, all[i].Index, r.Index)
		require.True(t, string(all[i].Data) == string(r.Data))
		i++
		return nil
	}))
	require.Equal(t, len(all), i)
}
