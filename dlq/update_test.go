package dlq

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/vfs"
	"penstock/internal/vfs/errfs"
	"penstock/internal/vfs/memfs"
)

func latest(t *testing.T, v *Volume) map[string]Record {
	t.Helper()
	out := map[string]Record{}
	for r, err := range v.All() {
		require.NoError(t, err)
		require.NotContains(t, out, r.ID, "an id came twice")
		out[r.ID] = r
	}
	return out
}

func failedReplay(id string, count int) Change {
	return Change{ID: id, RedeliveryCount: count, Attempt: &Attempt{At: at.Add(time.Hour), Class: "transient", Status: 502, Error: "again"}}
}

func TestAFailedReplayIsWrittenIntoTheRecordAndTheOthersStayByteForByte(t *testing.T) { // K16, K17
	fsys := memfs.New()
	v := open(t, fsys, func(c *Config) { c.SegmentBytes = 3000 })
	require.NoError(t, v.Append(t.Context(), records(1, 2)))
	require.NoError(t, v.Append(t.Context(), records(3, 4)))
	name := sealedName(1)
	before := strings.SplitAfter(read(t, fsys, name), "\n")
	require.NoError(t, v.Update(t.Context(), []Change{failedReplay(record(1).ID, 4), failedReplay("unknown", 1)}))
	after := strings.SplitAfter(read(t, fsys, name), "\n")
	require.Equal(t, before[1:], after[1:])
	require.NotEqual(t, before[0], after[0])

	got, ok, err := v.Get(record(1).ID)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, 4, got.RedeliveryCount)
	require.EqualValues(t, 13, got.AttemptCount)
	require.Equal(t, "again", got.Attempts[2].Error)
	require.Equal(t, record(1).ID, got.ID, "ids never change")
	require.Equal(t, record(1).Event, got.Event)

	require.NoError(t, v.Update(t.Context(), []Change{{ID: record(1).ID, RedeliveryCount: 2}}))
	got, _, _ = v.Get(record(1).ID)
	require.Equal(t, 4, got.RedeliveryCount, "the count never goes down")
	for n := range 20 {
		require.NoError(t, v.Update(t.Context(), []Change{failedReplay(record(1).ID, 5+n)}))
	}
	got, _, _ = v.Get(record(1).ID)
	require.Len(t, got.Attempts, attemptsKept)
}

func TestResolvedRecordsGoWithEveryRepeatOfThem(t *testing.T) {
	fsys := memfs.New()
	v := open(t, fsys, func(c *Config) { c.SegmentBytes = 2000 })
	require.NoError(t, v.Append(t.Context(), records(1, 2)))
	require.NoError(t, v.Append(t.Context(), records(1, 3))) // a repeat in a later file
	require.NoError(t, v.Append(t.Context(), records(3, 3)))
	st, err := v.Stats()
	require.NoError(t, err)
	require.Equal(t, 3, st.Dead, "an id counts once")
	require.NoError(t, v.Update(t.Context(), []Change{{ID: record(1).ID, Resolved: true}, {ID: record(3).ID, Resolved: true}}))
	require.Equal(t, []string{record(2).ID}, slices.Collect(maps.Keys(latest(t, v))))
	st, err = v.Stats()
	require.NoError(t, err)
	require.Equal(t, 1, st.Dead)
	require.NoError(t, v.Update(t.Context(), []Change{{ID: record(2).ID, Resolved: true}}))
	require.Empty(t, names(t, fsys), "a file without a record goes")
	require.NoError(t, v.Close())
	require.Empty(t, latest(t, open(t, fsys)), "nothing comes back at a start")
}

// I8 over rewriting: whatever step a crash or an error hits, each record that was not resolved is there afterwards, once, with
// its id, and what was resolved may only have stayed too long.
func TestUpdateSurvivesACrashAndAnErrorAtEveryStep(t *testing.T) {
	build := func() *memfs.FS {
		base := memfs.New()
		v, err := Open(dir, Config{NodeID: "n1", FS: base, SegmentBytes: 2500})
		require.NoError(t, err)
		for n := 1; n <= 9; n += 3 {
			require.NoError(t, v.Append(t.Context(), records(n, n+2)))
		}
		require.NoError(t, v.Append(t.Context(), records(10, 10)))
		require.NoError(t, v.Close())
		return base
	}
	act := func(v *Volume) error {
		return errors.Join(
			v.Update(t.Context(), []Change{{ID: record(1).ID, Resolved: true}, failedReplay(record(2).ID, 9), failedReplay(record(10).ID, 9)}),
			v.Update(t.Context(), []Change{{ID: record(4).ID, Resolved: true}, {ID: record(5).ID, Resolved: true}, {ID: record(6).ID, Resolved: true}}),
			v.Maintain(t.Context()),
		)
	}
	check := func(t *testing.T, fsys vfs.FS) {
		v, err := Open(dir, Config{NodeID: "n1", FS: fsys})
		require.NoError(t, err)
		defer func() { require.NoError(t, v.Close()) }()
		got := latest(t, v)
		for _, n := range []int{2, 3, 7, 8, 9, 10} {
			r, ok := got[record(n).ID]
			require.True(t, ok, "record %d is lost", n)
			require.Equal(t, record(n).Event, r.Event)
			require.Contains(t, []int{1, 9}, r.RedeliveryCount)
		}
		for _, name := range names(t, fsys) {
			require.NotContains(t, name, tmpSuffix, "a leftover stayed")
		}
		require.NoError(t, v.Append(t.Context(), records(0x99, 0x99)))
		require.NoError(t, act(v))
		require.NotContains(t, latest(t, v), record(1).ID)
	}
	t.Run("crash", func(t *testing.T) {
		base := build()
		var crashes []*memfs.FS
		fsys := errfs.Wrap(base, func(op errfs.Op) error {
			if op.Kind.Mutates() {
				crashes = append(crashes, base.CrashClone(1, 0.5), base.CrashClone(0, 0), base.CrashClone(0, 1))
			}
			return nil
		})
		v, err := Open(dir, Config{NodeID: "n1", FS: fsys, MaxFiles: 2})
		require.NoError(t, err)
		require.NoError(t, act(v))
		require.NoError(t, v.Close())
		require.Greater(t, len(crashes), 40)
		for i, c := range crashes {
			t.Run(fmt.Sprint(i), func(t *testing.T) { check(t, c) })
		}
	})
	for _, kind := range []errfs.Kind{errfs.Write, errfs.Sync, errfs.SyncDir, errfs.Rename, errfs.Remove, errfs.Open, errfs.Close} {
		t.Run("error of "+string(kind), func(t *testing.T) {
			for nth := 1; nth < 12; nth++ {
				base := build()
				fsys := errfs.Wrap(base, nil)
				v, err := Open(dir, Config{NodeID: "n1", FS: fsys, MaxFiles: 2})
				require.NoError(t, err)
				fsys.Set(errfs.OnNth(kind, "*", nth, errors.New("disk"), nil))
				_ = act(v)
				fsys.Set(nil)
				require.NoError(t, act(v), "it goes on when the disk is mended")
				require.Len(t, latest(t, v), 6)
				require.NoError(t, v.Close())
				check(t, base.CrashClone(uint64(nth), 0))
			}
		})
	}
}

func TestRewritingMovesDamageToTheQuarantine(t *testing.T) {
	fsys := memfs.New()
	v := open(t, fsys, func(c *Config) { c.SegmentBytes = 2500 })
	require.NoError(t, v.Append(t.Context(), records(1, 3)))
	text := read(t, fsys, sealedName(1))
	damaged := strings.Replace(text, `"n":2`, `"n":7`, 1)
	put(t, fsys, sealedName(1), damaged)
	require.NoError(t, v.Update(t.Context(), []Change{{ID: record(1).ID, Resolved: true}}))
	require.Equal(t, []string{record(3).ID}, slices.Collect(maps.Keys(latest(t, v))))
	require.Equal(t, strings.SplitAfter(damaged, "\n")[1], read(t, fsys, quarantineName))
}
