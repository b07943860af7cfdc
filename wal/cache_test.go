package wal

import (
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"penstock/internal/vfs/errfs"
	"penstock/internal/vfs/memfs"
)

func newLog() *raft.Log { return new(raft.Log) }

func TestCacheHoldsTheNewestWithinItsBytes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := tailCache{limit: int64(rapid.IntRange(0, 5000).Draw(rt, "limit"))}
		last := uint64(rapid.IntRange(0, 100).Draw(rt, "start"))
		rt.Repeat(map[string]func(*rapid.T){
			"add": func(rt *rapid.T) {
				last++
				c.add(entry(last, 1, rapid.IntRange(0, 1000).Draw(rt, "size")))
			},
			"truncate": func(rt *rapid.T) {
				from := rapid.Uint64Range(1, last+1).Draw(rt, "from")
				c.truncate(from)
				last = min(last, from-1)
			},
			"clear": func(*rapid.T) { c.clear() },
			"": func(rt *rapid.T) {
				var bytes int64
				for i := range uint64(c.count) {
					var e raft.Log
					require.True(rt, c.get(c.first+i, &e))
					require.Equal(rt, c.first+i, e.Index)
					bytes += cost(&e)
				}
				require.Equal(rt, bytes, c.bytes)
				require.LessOrEqual(rt, c.bytes, c.limit)
				if c.count > 0 {
					require.Equal(rt, last, c.first+uint64(c.count)-1)
				}
				require.False(rt, c.get(last+1, new(raft.Log)))
			},
		})
	})
}

// TestTailIsReadWithoutTouchingTheDisk: and shares the stored slice.
func TestTailIsReadWithoutTouchingTheDisk(t *testing.T) {
	fsys := errfs.Wrap(memfs.New(), nil)
	cfg := testConfig(t, fsys)
	cfg.CacheBytes = 1 << 20
	l, err := Open(testDir, cfg)
	require.NoError(t, err)
	logs := entries(1, 10, 1, 100)
	require.NoError(t, l.StoreLogs(logs))
	fsys.Set(func(op errfs.Op) error {
		if op.Kind == errfs.Read {
			t.Errorf("read %s", op.Path)
		}
		return nil
	})
	var got raft.Log
	require.NoError(t, l.GetLog(7, &got))
	require.Same(t, &logs[6].Data[0], &got.Data[0])
	fsys.Set(nil)
	require.NoError(t, l.Close())
}
