package dlq

import (
	"bytes"
	"errors"
	"iter"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"penstock/internal/vfs/memfs"
)

func seq(rs ...Record) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for _, r := range rs {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func TestGetReadsOneRecordByID(t *testing.T) {
	v := open(t, memfs.New(), func(c *Config) { c.SegmentBytes = 3000 })
	for n := 1; n <= 9; n++ {
		require.NoError(t, v.Append(t.Context(), records(n, n)))
	}
	for n := 1; n <= 9; n++ {
		r, ok, err := v.Get(record(n).ID)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, record(n), r)
	}
	_, ok, err := v.Get("nothing")
	require.NoError(t, err)
	require.False(t, ok)
}

func TestExportIsByteExact(t *testing.T) {
	fsys := memfs.New()
	v := open(t, fsys, func(c *Config) { c.SegmentBytes = 3000 })
	var want strings.Builder
	for n := 1; n <= 7; n++ {
		require.NoError(t, v.Append(t.Context(), records(n, n)))
		want.WriteString(lineOf(t, record(n)))
	}
	require.NoError(t, v.Append(t.Context(), records(7, 7)))
	var got bytes.Buffer
	n, err := v.Export(t.Context(), &got, nil)
	require.NoError(t, err)
	require.Equal(t, 7, n)
	require.Equal(t, want.String(), got.String())
	got.Reset()
	n, err = v.Export(t.Context(), &got, func(r *Record) bool { return r.Seq == 5 })
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, lineOf(t, record(5)), got.String())
	_, err = v.Export(t.Context(), failing{}, nil)
	require.Error(t, err)
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("no") }

func TestRebuildFillsWhatIsMissingAndMayBeRepeated(t *testing.T) {
	v := open(t, memfs.New())
	require.NoError(t, v.Append(t.Context(), records(1, 2)))
	newer := record(2)
	newer.Epoch, newer.Owner = 8, "n1"
	added, err := v.Rebuild(t.Context(), seq(record(1), newer, record(3)))
	require.NoError(t, err)
	require.Equal(t, 1, added, "two were there, and know more")
	added, err = v.Rebuild(t.Context(), seq(record(1), record(2), newer, record(3)))
	require.NoError(t, err)
	require.Zero(t, added)
	got := latest(t, v)
	require.Len(t, got, 3)
	require.Equal(t, record(2), got[record(2).ID])
	broken := func(yield func(Record, error) bool) { yield(Record{}, errors.New("the log is not readable")) }
	_, err = v.Rebuild(t.Context(), broken)
	require.ErrorContains(t, err, "the log is not readable")
}

func TestPruneRemovesWhatIsNoLongerOurs(t *testing.T) {
	v := open(t, memfs.New(), func(c *Config) { c.SegmentBytes = 3000 })
	require.NoError(t, v.Append(t.Context(), records(1, 8)))
	require.NoError(t, v.Append(t.Context(), records(9, 12)))
	removed, err := v.Prune(t.Context(), func(r *Record) bool { return r.Seq%3 == 0 })
	require.NoError(t, err)
	require.Equal(t, 8, removed)
	require.Len(t, latest(t, v), 4)
}

// TestRandomVolumes holds the volume to a map over random appends, updates, merges, losses of files and restarts.
func TestRandomVolumes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fsys := memfs.New()
		cfg := Config{NodeID: "n1", FS: fsys, SegmentBytes: 2500, MaxFiles: 8, SealAge: 1}
		v, err := Open(dir, cfg)
		require.NoError(rt, err)
		model := map[string]int{} // id -> redeliveries
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			n := rapid.IntRange(1, 12).Draw(rt, "n")
			id := record(n).ID
			switch rapid.IntRange(0, 6).Draw(rt, "what") {
			case 0, 1, 2:
				r := record(n)
				r.RedeliveryCount = model[id]
				require.NoError(rt, v.Append(rt.Context(), []Record{r}))
				model[id] = r.RedeliveryCount
			case 3:
				require.NoError(rt, v.Update(rt.Context(), []Change{{ID: id, Resolved: true}}))
				delete(model, id)
			case 4:
				count := rapid.IntRange(0, 9).Draw(rt, "count")
				require.NoError(rt, v.Update(rt.Context(), []Change{failedReplay(id, count)}))
				if old, ok := model[id]; ok {
					model[id] = max(old, count)
				}
			case 5:
				require.NoError(rt, v.Maintain(rt.Context()))
			case 6:
				require.NoError(rt, v.Close())
				v, err = Open(dir, cfg)
				require.NoError(rt, err)
			}
			got := map[string]int{}
			for r, err := range v.All() {
				require.NoError(rt, err)
				got[r.ID] = r.RedeliveryCount
			}
			require.Equal(rt, model, got)
			st, err := v.Stats()
			require.NoError(rt, err)
			require.Equal(rt, len(model), st.Dead)
		}
		require.NoError(rt, v.Close())
	})
}
