package file

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"penstock/emit/sink"
	"penstock/emit/sink/sinktest"
	"penstock/event"
	"penstock/internal/vfs"
	"penstock/internal/vfs/errfs"
	"penstock/internal/vfs/memfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const id = "00112233445566778899aabbccddeeff"

func open(t *testing.T, fsys vfs.FS) *Sink {
	t.Helper()
	s, err := Open(fsys, "/data/out", "n1")
	require.NoError(t, err)
	return s
}

func names(t *testing.T, fsys vfs.FS) (out []string) {
	t.Helper()
	entries, err := fsys.ReadDir("/data/out")
	require.NoError(t, err)
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func content(t *testing.T, fsys vfs.FS, name string) string {
	t.Helper()
	b, err := vfs.ReadFile(fsys, filepath.Join("/data/out", name))
	require.NoError(t, err)
	return string(b)
}

// journal shows each version of a file as it becomes visible, so that a repeat shows twice.
func journal(base vfs.FS) (fsys vfs.FS, received func() []string) {
	var mu sync.Mutex
	var got []string
	wrapped := errfs.Wrap(base, nil)
	wrapped.Set(func(op errfs.Op) error {
		if op.Kind != errfs.SyncDir || !strings.HasSuffix(op.Path, "out") {
			return nil
		}
		entries, err := base.ReadDir(op.Path)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, e := range entries {
			if b, err := vfs.ReadFile(base, filepath.Join(op.Path, e.Name())); err == nil {
				got = append(got, string(b))
			}
		}
		return nil
	})
	return wrapped, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), got...)
	}
}

func TestSinkContract(t *testing.T) {
	fsys, received := journal(memfs.New())
	sinktest.Run(t, open(t, fsys), received)
}

func TestFileHoldsOneStructuredEventPerLine(t *testing.T) {
	fsys := memfs.New()
	s := open(t, fsys)
	c := sinktest.Compaction(id, sinktest.Awkward...)
	require.True(t, s.Deliver(t.Context(), c).OK)
	require.Equal(t, []string{id + ".ndjson"}, names(t, fsys))
	text := content(t, fsys, id+".ndjson")
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	require.Len(t, lines, len(sinktest.Awkward))
	for i, line := range lines {
		e, err := event.ParseStructured([]byte(line))
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("id-%d", i), e.ID)
		if !strings.ContainsAny(sinktest.Awkward[i], "\n ") {
			require.Equal(t, sinktest.Awkward[i], string(e.Data))
		}
	}
}

func TestRetryOverwritesTheFileWithItself(t *testing.T) { // S12
	fsys := memfs.New()
	c := sinktest.Compaction(id, "1", "2")
	require.True(t, open(t, fsys).Deliver(t.Context(), c).OK)
	first := content(t, fsys, id+".ndjson")
	other, err := Open(fsys, "/data/out", "n2") // the emitter moved to another node on shared storage
	require.NoError(t, err)
	require.True(t, other.Deliver(t.Context(), c).OK)
	require.Equal(t, first, content(t, fsys, id+".ndjson"))
	require.Len(t, names(t, fsys), 1)
}

func TestS12CrashAtAnyStepLeavesTheWholeFileOrNone(t *testing.T) {
	base := memfs.New()
	var crashes []*memfs.FS
	fsys := errfs.Wrap(base, func(op errfs.Op) error {
		if op.Kind.Mutates() {
			for seed := range uint64(4) {
				crashes = append(crashes, base.CrashClone(seed, 0.5))
			}
			crashes = append(crashes, base.CrashClone(0, 0), base.CrashClone(0, 1))
		}
		return nil
	})
	c := sinktest.Compaction(id, sinktest.Awkward...)
	s := open(t, fsys)
	require.True(t, s.Deliver(t.Context(), c).OK)
	whole := content(t, base, id+".ndjson")
	require.True(t, s.Deliver(t.Context(), c).OK, "a repeat, crashes in it too")
	acked := base.CrashClone(0, 0)
	require.Equal(t, whole, content(t, acked, id+".ndjson"), "durable once delivered")
	require.Greater(t, len(crashes), 40)
	for i, crashed := range crashes {
		entries, err := crashed.ReadDir("/data/out")
		if err != nil {
			continue // before the directory was made
		}
		for _, e := range entries {
			if e.Name() == id+".ndjson" {
				require.Equal(t, whole, content(t, crashed, e.Name()), "crash %d", i)
			}
		}
		again := open(t, crashed)
		require.True(t, again.Deliver(t.Context(), c).OK)
		require.Equal(t, whole, content(t, crashed, id+".ndjson"))
	}
}

func TestLeftoversOfAnEarlierProcessAreRemovedAndNothingElse(t *testing.T) {
	fsys := memfs.New()
	open(t, fsys)
	put := func(name string) {
		require.NoError(t, vfs.WriteFileAtomic(fsys, filepath.Join("/data/out", name), []byte("x"), 0o644))
	}
	keep := []string{
		id + ".ndjson", "notes.txt", ".hidden",
		"." + id + "~n2~aaaaaaaaaaaa" + tmpSuffix,   // another node's, on shared storage
		"." + id + "~n1~" + run + tmpSuffix,         // this process's, of another emitter with the same directory
		"." + id + "~x.n1~aaaaaaaaaaaa" + tmpSuffix, // a node whose name ends like ours
	}
	for _, name := range keep {
		put(name)
	}
	put("." + id + "~n1~aaaaaaaaaaaa" + tmpSuffix)
	open(t, fsys)
	require.ElementsMatch(t, keep, names(t, fsys))
}

func TestDiskFaultsAreTransientLeaveNothingBehindAndPass(t *testing.T) {
	noSpace := errors.New("no space left on device")
	for _, op := range []struct {
		kind    errfs.Kind
		pattern string
		err     error
	}{
		{errfs.Open, "*.tmp", noSpace}, {errfs.Write, "*.tmp", noSpace}, {errfs.Write, "*.tmp", &errfs.Short{Bytes: 7, Err: noSpace}},
		{errfs.Sync, "*.tmp", noSpace}, {errfs.Close, "*.tmp", noSpace}, {errfs.Rename, "*", noSpace}, {errfs.SyncDir, "out", noSpace},
	} {
		base := memfs.New()
		fsys := errfs.Wrap(base, nil)
		s := open(t, fsys)
		fsys.Set(errfs.OnNth(op.kind, op.pattern, 1, op.err, nil))
		c := sinktest.Compaction(id, "1")
		res := s.Deliver(t.Context(), c)
		require.False(t, res.OK, "%v", op)
		require.Equal(t, sink.Transient, res.Class)
		require.Contains(t, res.Reason, "no space left")
		require.NotContains(t, res.Reason, "/data", "reasons are the same on all nodes")
		for _, name := range names(t, base) {
			require.Equal(t, id+".ndjson", name, "%v", op)
		}
		require.True(t, s.Deliver(t.Context(), c).OK)
	}
}

func TestIDThatIsNoFileNameIsPoison(t *testing.T) {
	s := open(t, memfs.New())
	for _, bad := range []string{"", "../x", "a/b", "a\x00"} {
		require.Equal(t, sink.Poison, s.Deliver(t.Context(), sinktest.Compaction(bad, "1")).Class)
	}
}

func TestCutOffBeforeItBeganWritesNothing(t *testing.T) {
	fsys := memfs.New()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, open(t, fsys).Deliver(ctx, sinktest.Compaction(id, "1")).OK)
	require.Empty(t, names(t, fsys))
}
