package dlq

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"penstock/internal/vfs"
	"penstock/internal/vfs/errfs"
	"penstock/internal/vfs/memfs"
)

func TestAppendedRecordsComeBackInOrder(t *testing.T) {
	v := open(t, memfs.New())
	require.NoError(t, v.Append(t.Context(), records(1, 3)))
	require.NoError(t, v.Append(t.Context(), nil))
	require.NoError(t, v.Append(t.Context(), records(4, 5)))
	require.Empty(t, cmp.Diff(records(1, 5), all(t, v)))
}

func TestNonEmptyActiveFileIsSealedAtStart(t *testing.T) {
	fsys := memfs.New()
	v := open(t, fsys)
	require.NoError(t, v.Append(t.Context(), records(1, 2)))
	require.NoError(t, v.Close())
	v = open(t, fsys)
	require.Equal(t, []string{sealedName(1)}, names(t, fsys))
	require.NoError(t, v.Append(t.Context(), records(3, 3)))
	require.Equal(t, []string{activeName, sealedName(1)}, names(t, fsys))
	require.Empty(t, cmp.Diff(records(1, 3), all(t, v)))
}

func TestFilesAreSealedBySize(t *testing.T) {
	fsys := memfs.New()
	v := open(t, fsys, func(c *Config) { c.SegmentBytes = 2000 })
	for n := 1; n <= 6; n++ {
		require.NoError(t, v.Append(t.Context(), records(n, n)))
	}
	require.Equal(t, []string{sealedName(1), sealedName(2), sealedName(3)}, names(t, fsys))
	require.Empty(t, cmp.Diff(records(1, 6), all(t, v)))
	st, err := v.Stats()
	require.NoError(t, err)
	require.Equal(t, 6, st.Dead)
	require.Equal(t, 3, st.SealedFiles)
	require.Equal(t, record(1).At, st.OldestDead)
}

func TestVolumeHasOneOwnerProcess(t *testing.T) { // S05
	real := t.TempDir()
	v, err := Open(real, Config{NodeID: "n1"})
	require.NoError(t, err)
	_, err = Open(real, Config{NodeID: "n1"})
	require.ErrorIs(t, err, vfs.ErrLocked)
	require.NoError(t, v.Close())
	require.NoError(t, os.WriteFile(filepath.Join(real, lockName), []byte("1\n"), 0o600), "left over, naming a living process")
	v, err = Open(real, Config{NodeID: "n1"})
	require.NoError(t, err)
	require.NoError(t, v.Close())
}

func TestVolumeOfAnotherNodeIsRefused(t *testing.T) {
	fsys := memfs.New()
	require.NoError(t, open(t, fsys).Close())
	_, err := Open(dir, Config{NodeID: "n2", FS: fsys})
	require.ErrorIs(t, err, ErrForeign)
	open(t, fsys) // and the refusal left no lock behind
}

func TestStartPutsADamagedVolumeInOrder(t *testing.T) {
	fsys := memfs.New()
	unknown := "what is this\n"
	bad := []string{"not JSON\n", "{\"v\":1}\n", strings.Replace(lineOf(t, record(9)), "orders", "0rders", 1)}
	torn := lineOf(t, record(4))[:200]
	put(t, fsys, sealedName(3), lineOf(t, record(1))+bad[0]+lineOf(t, record(2))+bad[1]+bad[2])
	put(t, fsys, sealedName(4), "x")
	put(t, fsys, activeName, lineOf(t, record(3))+torn)
	put(t, fsys, sealedName(3)+tmpSuffix, lineOf(t, record(1)))
	for _, name := range []string{"notes.txt", "sealed-3.jsonl", "other.jsonl", "x.jsonl.tmp"} {
		put(t, fsys, name, unknown)
	}
	reg := prometheus.NewRegistry()
	v := open(t, fsys, func(c *Config) { c.Registerer = reg })

	require.Empty(t, cmp.Diff(records(1, 3), all(t, v)))
	require.Equal(t, []string{
		"notes.txt", "other.jsonl", quarantineName, sealedName(3), sealedName(5), "sealed-3.jsonl", "x.jsonl.tmp",
	}, names(t, fsys))
	require.Equal(t, strings.Join(bad, "")+"x\n"+torn+"\n", read(t, fsys, quarantineName), "byte for byte")
	require.Equal(t, unknown, read(t, fsys, "other.jsonl"))
	require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
		# HELP penstock_dlq_quarantined_total Lines that were no dead letters and moved to the quarantine.
		# TYPE penstock_dlq_quarantined_total counter
		penstock_dlq_quarantined_total 5
	`), "penstock_dlq_quarantined_total"))

	require.NoError(t, v.Append(t.Context(), records(4, 4)))
	require.NoError(t, v.Close())
	v = open(t, fsys)
	require.Empty(t, cmp.Diff(records(1, 4), all(t, v)), "the torn line did not merge with the next record")
	require.Equal(t, strings.Join(bad, "")+"x\n"+torn+"\n", read(t, fsys, quarantineName), "nothing is quarantined again")
}

func TestQuarantineAndRecordsAreForTheOwnerOnly(t *testing.T) {
	real := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(real, activeName), []byte("junk"), 0o644))
	v, err := Open(real, Config{NodeID: "n1"})
	require.NoError(t, err)
	require.NoError(t, v.Append(t.Context(), records(1, 1)))
	for _, name := range []string{quarantineName, activeName} {
		info, err := os.Stat(filepath.Join(real, name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), name)
	}
	require.NoError(t, v.Close())
}

func TestNewerRecordsAreNeitherReadNorQuarantined(t *testing.T) {
	fsys := memfs.New()
	put(t, fsys, activeName, newerLine(t))
	_, err := Open(dir, Config{NodeID: "n1", FS: fsys})
	require.ErrorIs(t, err, ErrTooNew)
	require.Equal(t, newerLine(t), read(t, fsys, activeName))
}

func TestB01LinesHaveNoSmallLimit(t *testing.T) {
	for _, size := range []int{65_535, 65_536, 1 << 20, 3 << 20} {
		fsys := memfs.New()
		v := open(t, fsys)
		big := records(1, 5)
		big[2].Event.Data = []byte(`"` + strings.Repeat("x", size) + `"`)
		require.NoError(t, v.Append(t.Context(), big))
		require.NoError(t, v.Close())
		got := all(t, open(t, fsys))
		require.Equal(t, ids(big), ids(got))
		require.True(t, bytes.Equal(big[2].Event.Data, got[2].Event.Data))
	}
}

func TestGarbageWithoutNewlinesIsQuarantinedWithBoundedMemory(t *testing.T) {
	fsys := memfs.New()
	garbage := strings.Repeat("\x00", 300_000)
	put(t, fsys, activeName, lineOf(t, record(1))+garbage+"\n"+lineOf(t, record(2))+garbage)
	v := open(t, fsys, func(c *Config) { c.MaxLineBytes = 100_000 })
	require.Empty(t, cmp.Diff(records(1, 2), all(t, v)))
	require.Equal(t, garbage+"\n"+garbage+"\n", read(t, fsys, quarantineName))
}

func TestB21FullVolumeRefusesAndTakesAgainWhenThereIsRoom(t *testing.T) {
	for name, bound := range map[string]func(*Config){
		"bytes": func(c *Config) { c.MaxBytes, c.SegmentBytes = 4000, 1 },
		"files": func(c *Config) { c.MaxFiles, c.SegmentBytes = 3, 1 },
	} {
		fsys := memfs.New()
		v := open(t, fsys, bound)
		stored := 0
		var err error
		for n := 1; err == nil; n++ {
			if err = v.Append(t.Context(), records(n, n)); err == nil {
				stored = n
			}
		}
		require.ErrorIs(t, err, ErrFull, name)
		require.Equal(t, 3, stored, name)
		require.Len(t, all(t, v), stored, "nothing is lost or deleted at the bound")
		st, err := v.Stats()
		require.NoError(t, err)
		require.True(t, st.Full)
		require.NoError(t, v.Close())
		v = open(t, fsys, bound)
		require.ErrorIs(t, v.Append(t.Context(), records(9, 9)), ErrFull, "after a restart too")

		require.NoError(t, fsys.Remove(dir+"/"+sealedName(1)), "an operator makes room")
		require.NoError(t, v.Append(t.Context(), records(9, 9)), "without a restart")
		require.Equal(t, []string{"2", "3", "9"}, ids(all(t, v)))
		st, err = v.Stats()
		require.NoError(t, err)
		require.Equal(t, int64(len(lineOf(t, record(2)))*3), st.Bytes)
	}
}

func TestSealedNumbersAreNotUsedTwice(t *testing.T) {
	fsys := memfs.New()
	v := open(t, fsys, func(c *Config) { c.SegmentBytes = 1 })
	require.NoError(t, v.Append(t.Context(), records(1, 1)))
	require.NoError(t, fsys.Remove(dir+"/"+sealedName(1)))
	require.NoError(t, v.Append(t.Context(), records(2, 2)))
	require.Equal(t, []string{sealedName(2)}, names(t, fsys))
}

func TestFailedWritesAreMendedAndAckedRecordsStay(t *testing.T) {
	noSpace := errors.New("no space left on device")
	for name, fault := range map[string]struct {
		kind    errfs.Kind
		pattern string
		err     error
	}{
		"open": {errfs.Open, activeName, noSpace}, "write": {errfs.Write, activeName, noSpace},
		"short write": {errfs.Write, activeName, &errfs.Short{Bytes: 100, Err: noSpace}}, "fsync": {errfs.Sync, activeName, noSpace},
		"fsync of the directory": {errfs.SyncDir, "dlq", noSpace}, "truncate": {errfs.Trunc, activeName, noSpace},
		"rename": {errfs.Rename, "sealed-*", noSpace}, "close": {errfs.Close, activeName, noSpace},
	} {
		t.Run(name, func(t *testing.T) {
			for _, nth := range []int{1, 2, 3} {
				base := memfs.New()
				fsys := errfs.Wrap(base, nil)
				v := open(t, fsys, func(c *Config) { c.SegmentBytes = 2500 })
				fsys.Set(errfs.OnNth(fault.kind, fault.pattern, nth, fault.err, nil))
				acked := map[string]bool{}
				for n := 1; n <= 8; n++ {
					r := records(n, n)
					if v.Append(t.Context(), r) == nil {
						acked[r[0].ID] = true
						continue
					}
					require.NoError(t, v.Append(t.Context(), r), "the disk works again")
					acked[r[0].ID] = true
				}
				check := func(v *Volume) {
					seen := map[string]bool{}
					for _, r := range all(t, v) {
						seen[r.ID] = true
					}
					require.Equal(t, acked, seen)
				}
				fsys.Set(nil)
				check(v)
				for _, keep := range []float64{0, 0.5, 1} {
					crashed := base.CrashClone(uint64(nth), keep)
					again, err := Open(dir, Config{NodeID: "n1", FS: crashed})
					require.NoError(t, err)
					check(again)
					require.NoError(t, again.Close())
				}
			}
		})
	}
}

func TestI8EveryAckedRecordSurvivesACrashAtEveryStep(t *testing.T) {
	base := memfs.New()
	acked := 0
	type crash struct {
		fs    *memfs.FS
		acked int
	}
	var crashes []crash
	snap := func() {
		for seed := range uint64(3) {
			crashes = append(crashes, crash{base.CrashClone(seed, 0.5), acked})
		}
		crashes = append(crashes, crash{base.CrashClone(0, 0), acked}, crash{base.CrashClone(0, 1), acked})
	}
	fsys := errfs.Wrap(base, func(op errfs.Op) error {
		if op.Kind.Mutates() {
			snap()
		}
		return nil
	})
	for range 2 { // a start in between, for the sealing
		v := open(t, fsys, func(c *Config) { c.SegmentBytes = 3000 })
		for range 4 {
			require.NoError(t, v.Append(t.Context(), records(acked+1, acked+1)))
			acked++
		}
		require.NoError(t, v.Close())
	}
	snap()
	require.Greater(t, len(crashes), 100)
	for i, c := range crashes {
		// What recovery itself leaves behind is cut as well.
		cut := errfs.Wrap(c.fs, nil)
		var clones []*memfs.FS
		cut.Set(func(op errfs.Op) error {
			if op.Kind.Mutates() {
				clones = append(clones, c.fs.CrashClone(uint64(i), 0.5))
			}
			return nil
		})
		for _, fsys := range append([]vfs.FS{cut}, asFS(clones)...) {
			v, err := Open(dir, Config{NodeID: "n1", FS: fsys})
			require.NoError(t, err, "crash %d", i)
			seen := map[string]bool{}
			for _, r := range all(t, v) {
				seen[r.ID] = true
			}
			for n := 1; n <= c.acked; n++ {
				require.True(t, seen[record(n).ID], "crash %d lost record %d", i, n)
			}
			require.NoError(t, v.Append(t.Context(), records(0x99, 0x99)))
			require.Contains(t, ids(all(t, v)), "99")
			require.NoError(t, v.Close())
		}
	}
}

func asFS(clones []*memfs.FS) (out []vfs.FS) {
	for _, c := range clones {
		out = append(out, c)
	}
	return out
}

func TestMetricsShowDepthAgeAndFailures(t *testing.T) {
	fsys := memfs.New()
	reg := prometheus.NewRegistry()
	v := open(t, fsys, func(c *Config) {
		c.Registerer, c.Now, c.MaxBytes = reg, func() time.Time { return at.Add(time.Minute) }, 5000
	})
	poison := record(10)
	poison.State = Poison
	require.NoError(t, v.Append(t.Context(), append(records(1, 2), poison)))
	require.ErrorIs(t, v.Append(t.Context(), records(3, 6)), ErrFull)
	require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
		# HELP penstock_dlq_depth Dead-letter records in this node's volume.
		# TYPE penstock_dlq_depth gauge
		penstock_dlq_depth 2
		# HELP penstock_dlq_oldest_seconds Age of the oldest dead letter in this node's volume; 0 without one.
		# TYPE penstock_dlq_oldest_seconds gauge
		penstock_dlq_oldest_seconds 59
		# HELP penstock_dlq_write_failures_total Appends to the dead-letter volume that failed, those refused at its bound included.
		# TYPE penstock_dlq_write_failures_total counter
		penstock_dlq_write_failures_total 1
		# HELP penstock_poison_depth Poison records in this node's volume.
		# TYPE penstock_poison_depth gauge
		penstock_poison_depth 1
		# HELP penstock_poison_oldest_seconds Age of the oldest poison record in this node's volume; 0 without one.
		# TYPE penstock_poison_oldest_seconds gauge
		penstock_poison_oldest_seconds 50
	`), "penstock_dlq_depth", "penstock_dlq_oldest_seconds", "penstock_dlq_write_failures_total", "penstock_poison_depth", "penstock_poison_oldest_seconds"))
	require.NoError(t, v.Close())
	require.ErrorIs(t, v.Append(t.Context(), records(1, 1)), ErrClosed)
	count, err := testutil.GatherAndCount(reg)
	require.NoError(t, err)
	require.Zero(t, count, "a closed volume shows nothing")
}
