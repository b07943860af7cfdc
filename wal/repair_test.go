package wal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"penstock/internal/vfs"
	"penstock/internal/vfs/errfs"
	"penstock/internal/vfs/memfs"
)

func openDamaged(t testing.TB, fsys vfs.FS) *Log {
	t.Helper()
	cfg := testConfig(t, fsys)
	cfg.AllowDamage = true
	l, err := Open(testDir, cfg)
	require.NoError(t, err)
	return l
}

// lost is the entries that a log says it lost, from the list of writes; those
// of an open end too.
func (sp *specimen) lost(l *Log) (out []*raft.Log) {
	for _, d := range l.Damage() {
		for i := d.First; i > 0 && d.covers(i) && sp.want[i] != nil; i++ {
			out = append(out, sp.want[i])
		}
	}
	return out
}

// check compares an open log with the list of writes up to last, damage aside.
func (sp *specimen) check(l *Log, last uint64) error {
	if got, err := l.LastIndex(); err != nil || got != last {
		return fmt.Errorf("last index %d, want %d: %w", got, last, err)
	}
	base, _ := l.Base()
	for i := max(base, sp.base) + 1; i <= last; i++ {
		var e raft.Log
		err := l.GetLog(i, &e)
		var damage *DamageError
		if errors.As(err, &damage) && len(l.Damage()) > 0 && damage.Index == i {
			continue
		}
		if err != nil {
			return err
		}
		if want := sp.want[i]; e.Term != want.Term || string(e.Data) != string(want.Data) || string(e.Extensions) != string(want.Extensions) {
			return fmt.Errorf("entry %d is another", i)
		}
	}
	return nil
}

// payload is where an entry's payload lies.
func (sp *specimen) payload(t *testing.T, index uint64) (name string, at int) {
	t.Helper()
	require.NotEmpty(t, sp.want[index].Data)
	ld, err := load(flatFS{files: sp.files}, testDir, os.O_RDONLY, false, false)
	require.NoError(t, err)
	for _, seg := range ld.segs {
		if index >= seg.start && index < seg.next() {
			pos, _ := seg.span(index)
			at, _ = posRaw(pos + recordHeaderSize)
			name = filepath.Base(seg.path)
		}
	}
	return name, at
}

// damages is one way each to damage the specimen.
func (sp *specimen) damages() map[string]image {
	out := map[string]image{}
	flip := func(what, name string, at int) {
		out[what+" of "+name] = sp.files.with(name, func(b []byte) []byte {
			b[at] ^= 0x10
			return b
		})
	}
	for _, name := range sp.names() {
		if name == markName {
			continue
		}
		flip("header", name, 40)
		flip("block header", name, blockSize+20)
		flip("record header", name, blockSize+blockHeaderSize+10)
		flip("payload", name, blockSize+blockHeaderSize+recordHeaderSize+60)
		flip("tag", name, 2*blockSize+sectorData+2)
		flip("last batch", name, 5*blockSize+300)
		gone := sp.files.with(name, func(b []byte) []byte { return b })
		delete(gone, name)
		out["loss of "+name] = gone
		out["zeros in "+name] = sp.files.with(name, func(b []byte) []byte {
			clear(b[blockSize : 3*blockSize])
			return b
		})
		out["short "+name] = sp.files.with(name, func(b []byte) []byte { return b[:5000] })
	}
	names := sp.names()
	two := sp.files.with(names[1], func(b []byte) []byte {
		b[blockSize+100] ^= 1
		return b
	})
	out["two segments"] = two.with(names[2], func(b []byte) []byte {
		b[10] ^= 1
		b[blockSize+500] ^= 1
		return b
	})
	return out
}

// TestRepairMakesTheLogWhole: with the lost entries from elsewhere the log
// reads as it was written, takes entries, and opens the strict way; the
// damaged files are kept apart.
func TestRepairMakesTheLogWhole(t *testing.T) {
	sp := newSpecimen(t)
	for what, img := range sp.damages() {
		fsys := img.put(t)
		l, err := Open(testDir, testConfig(t, fsys))
		var damage *DamageError
		if err == nil {
			require.NoError(t, l.Close())
			t.Logf("%s: hits nothing that lives", what)
			continue
		}
		require.ErrorAs(t, err, &damage, what)

		l = openDamaged(t, fsys)
		require.NotEmpty(t, l.Damage(), what)
		require.Equal(t, l.Damage(), l.Recovery().Damaged)
		last, err := l.LastIndex()
		require.NoError(t, err)
		require.NoError(t, sp.check(l, last), what)
		if last < sp.last || l.mu.stuck != nil {
			require.ErrorAs(t, l.StoreLog(entry(last+1, 9, 10)), &damage, what)
		}
		require.NoError(t, l.Repair(sp.lost(l)), what)
		require.Empty(t, l.Damage(), what)
		require.NoError(t, sp.check(l, sp.last), what)
		next := entry(sp.last+1, 9, 3000)
		require.NoError(t, l.StoreLog(next), what)
		require.NoError(t, l.Close())

		l, err = Open(testDir, testConfig(t, fsys))
		require.NoError(t, err, what)
		require.False(t, l.Recovery().Short)
		requireEntry(t, l, next)
		sp := sp.private()
		sp.want = map[uint64]*raft.Log{sp.last + 1: next}
		for i, e := range newSpecimenWants(sp, l) {
			sp.want[i] = e
		}
		require.NoError(t, l.Close())
		if !strings.HasPrefix(what, "loss") {
			in, err := Inspect(fsys, testDir)
			require.NoError(t, err)
			require.NotEmpty(t, in.Quarantined, what)
		}
	}
}

// newSpecimenWants reads everything, for the comparison of a reopened log.
func newSpecimenWants(sp *specimen, l *Log) map[uint64]*raft.Log {
	out := map[uint64]*raft.Log{}
	for i := sp.base + 1; i <= sp.last; i++ {
		e := new(raft.Log)
		if l.GetLog(i, e) == nil {
			out[i] = e
		}
	}
	return out
}

// repairCrashes runs fn on a damaged log and clones the disk before each
// operation that changes it.
func repairCrashes(t *testing.T, img image, fn func(l *Log)) []*memfs.FS {
	t.Helper()
	mem := img.put(t)
	var mu sync.Mutex
	var disks []*memfs.FS
	fsys := errfs.Wrap(mem, nil)
	l := openDamaged(t, fsys)
	fsys.Set(func(op errfs.Op) error {
		if op.Kind.Mutates() {
			mu.Lock()
			defer mu.Unlock()
			for s, keep := range []float64{0, 1, 0.5, 0.8, 0.2} {
				disks = append(disks, mem.CrashClone(uint64(s+len(disks)), keep))
			}
		}
		return nil
	})
	fn(l)
	require.NoError(t, l.Close())
	return append(disks, mem.CrashClone(0, 0))
}

// TestCrashInARepairLosesNothing: at each operation of it the power goes; the
// log comes back with the damage or without it, never with less than there
// was, and a second repair completes it.
func TestCrashInARepairLosesNothing(t *testing.T) {
	sp := newSpecimen(t)
	n := 0
	for what, img := range sp.damages() {
		if _, err := img.open(t, newModel()); !errors.As(err, new(*DamageError)) {
			continue
		}
		var lastBefore uint64
		disks := repairCrashes(t, img, func(l *Log) {
			lastBefore = l.Stats().Last
			require.NoError(t, l.Repair(sp.lost(l)), what)
		})
		for i, disk := range disks {
			l := openDamaged(t, disk)
			last := l.Stats().Last
			require.GreaterOrEqual(t, last, lastBefore, what)
			require.NoError(t, sp.check(l, last), "%s, disk %d", what, i)
			if last < sp.last {
				// The end was open: it still is, or the log knows that it is short.
				require.True(t, l.mu.openEnd != nil || l.Recovery().Short, "%s, disk %d", what, i)
			}
			require.NoError(t, l.Repair(sp.lost(l)), "%s, disk %d", what, i)
			for i := l.Stats().Last + 1; i <= sp.last; i++ {
				require.NoError(t, l.StoreLog(sp.want[i]))
			}
			require.Empty(t, l.Damage(), what)
			require.NoError(t, sp.check(l, sp.last), what)
			require.NoError(t, l.Close())
			l, err := Open(testDir, testConfig(t, disk))
			require.NoError(t, err, what)
			require.NoError(t, sp.check(l, sp.last), what)
			require.NoError(t, l.Close())
			n++
		}
	}
	t.Logf("%d crashes", n)
}

// TestCutAtKeepsWhatItTakesApart: the log ends before the cut, says at each
// start how far it once reached until it does again, and the damaged file is
// still there under another name.
func TestCutAtKeepsWhatItTakesApart(t *testing.T) {
	sp := newSpecimen(t)
	names := sp.names()
	img := sp.files.with(names[2], func(b []byte) []byte {
		b[blockSize+300] ^= 4
		return b
	})
	for i, disk := range repairCrashes(t, img, func(l *Log) {
		at := l.Damage()[0].First
		require.NoError(t, l.CutAt(at, 0))
		require.Empty(t, l.Damage())
		require.NoError(t, sp.check(l, at-1))
	}) {
		l := openDamaged(t, disk)
		r := l.Recovery()
		last := l.Stats().Last
		require.NoError(t, sp.check(l, last), "disk %d", i)
		require.GreaterOrEqual(t, r.MarkIndex, sp.marked)
		if last < r.MarkIndex {
			require.True(t, r.Short, "disk %d", i)
			require.Empty(t, l.Damage())
			for n := last + 1; n <= sp.last; n++ {
				require.NoError(t, l.StoreLog(sp.want[n]))
			}
			require.NoError(t, l.Close())
			l = mustOpen(t, disk)
			require.False(t, l.Recovery().Short)
			require.NoError(t, sp.check(l, sp.last))
			in, err := Inspect(disk, testDir)
			require.NoError(t, err)
			require.NotEmpty(t, in.Quarantined, "disk %d", i)
		}
		require.NoError(t, l.Close())
	}
}

// TestHolesStayUntilTheyAreRepaired: what a snapshot covers may be left lost.
func TestHolesStayUntilTheyAreRepaired(t *testing.T) {
	sp := newSpecimen(t)
	name, at := sp.payload(t, sp.base+3)
	img := sp.files.with(name, func(b []byte) []byte {
		b[blockSize+40] ^= 4 // a record's header
		b[at] ^= 1           // and a payload
		return b
	})
	fsys := img.put(t)
	l := openDamaged(t, fsys)
	before := l.Damage()
	last := before[len(before)-1].Last
	require.NoError(t, l.LeaveHoles(before[0].First-1))
	require.Equal(t, before, l.Damage(), "a hole above the snapshot is none")
	require.NoError(t, l.LeaveHoles(last))
	holes := l.Damage()
	require.NotEmpty(t, holes)
	for _, d := range holes {
		require.Equal(t, DamageHole, d.Kind)
	}
	require.NoError(t, l.StoreLog(entry(sp.last+1, 9, 10)))
	require.NoError(t, l.LeaveHoles(last), "again: nothing to do")
	require.NoError(t, l.Close())

	_, err := Open(testDir, testConfig(t, fsys))
	var damage *DamageError
	require.ErrorAs(t, err, &damage)
	require.Equal(t, DamageHole, damage.Kind)
	require.ErrorAs(t, Walk(fsys, testDir, func(Record) error { return nil }), &damage)

	l = openDamaged(t, fsys)
	require.Equal(t, holes, l.Damage())
	lost := sp.lost(l)
	require.NoError(t, l.Repair(lost[:1]))
	require.NoError(t, l.Repair(lost[1:]))
	require.Empty(t, l.Damage())
	require.NoError(t, l.Close())
	require.NoError(t, mustOpen(t, fsys).StoreLog(entry(sp.last+2, 9, 10)))
}

// TestRepairRefusesWhatWasNotLost: another term, another payload, an entry
// that is here and other, one that breaks the order of terms.
func TestRepairRefusesWhatWasNotLost(t *testing.T) {
	sp := newSpecimen(t)
	name, at := sp.payload(t, sp.base+3)
	img := sp.files.with(name, func(b []byte) []byte {
		b[at] ^= 1
		return b
	})
	l := openDamaged(t, img.put(t))
	d := l.Damage()[0]
	require.True(t, d.Known)
	good := sp.want[d.First]
	for _, bad := range []*raft.Log{
		{Index: good.Index, Term: good.Term + 1, Data: good.Data, Extensions: good.Extensions},
		{Index: good.Index, Term: good.Term, Data: []byte("other")},
		entry(sp.last, 3, 17),
		entry(sp.base+1, 77, 0),
	} {
		require.ErrorIs(t, l.Repair([]*raft.Log{bad}), ErrMismatch)
	}
	require.NoError(t, l.Repair([]*raft.Log{sp.want[sp.last], good}))
	require.Empty(t, l.Damage())
	require.NoError(t, l.Close())

	img = sp.files.with(sp.names()[2], func(b []byte) []byte {
		b[blockSize+blockHeaderSize+10] ^= 1
		return b
	})
	l = openDamaged(t, img.put(t))
	lost := sp.lost(l)
	odd := *lost[0]
	odd.Term = 1000
	require.ErrorIs(t, l.Repair(append([]*raft.Log{&odd}, lost[1:]...)), ErrMismatch)
	require.NotEmpty(t, l.Damage())
	require.NoError(t, l.Repair(lost))
	require.Empty(t, l.Damage())
	require.NoError(t, l.Close())
}

// TestResetOverDamageKeepsTheFilesApart: a snapshot from another node replaces
// a damaged log; nothing of it is removed.
func TestResetOverDamageKeepsTheFilesApart(t *testing.T) {
	sp := newSpecimen(t)
	img := sp.files.with(sp.newest, func(b []byte) []byte {
		b[blockSize+40] ^= 4
		return b
	})
	for _, disk := range repairCrashes(t, img, func(l *Log) {
		require.NoError(t, l.Reset(1000, 7))
		require.Empty(t, l.Damage())
		require.NoError(t, l.StoreLog(entry(1001, 7, 10)))
	}) {
		l := openDamaged(t, disk)
		if l.Stats().Last >= 1000 {
			require.Empty(t, l.Damage())
			require.NoError(t, l.Close())
			_, err := disk.Stat(filepath.Join(testDir, sp.newest))
			require.Error(t, err)
			in, err := Inspect(disk, testDir)
			require.NoError(t, err)
			require.NotEmpty(t, in.Quarantined)
			continue
		}
		require.NotEmpty(t, l.Damage(), "last %d", l.Stats().Last)
		require.NoError(t, l.Close())
	}
}

// TestFailedOperationInARepairIsFatalAndTheNextStartRepairs: each operation of
// it that changes the disk fails once (I11); what was there before still is.
func TestFailedOperationInARepairIsFatalAndTheNextStartRepairs(t *testing.T) {
	sp := newSpecimen(t)
	for _, name := range []string{sp.names()[1], sp.newest} {
		img := sp.files.with(name, func(b []byte) []byte {
			b[blockSize+40] ^= 4
			return b
		})
		for n := 1; ; n++ {
			mem := img.put(t)
			fsys := errfs.Wrap(mem, nil)
			var fatals, seen, fired atomic.Int32
			cfg := testConfig(t, fsys)
			cfg.AllowDamage = true
			cfg.Fatal = func(error) { fatals.Add(1) }
			l, err := Open(testDir, cfg)
			require.NoError(t, err)
			require.Eventually(t, func() bool { return l.Stats().Spares > 0 }, 5*time.Second, time.Millisecond)
			fsys.Set(func(op errfs.Op) error {
				if op.Kind.Mutates() && op.Kind != errfs.Remove && !isSpare(op) && seen.Add(1) == int32(n) {
					fired.Store(1)
					return syscall.EIO
				}
				return nil
			})
			err = l.Repair(sp.lost(l))
			if fired.Load() == 0 {
				require.NoError(t, err)
				require.NoError(t, l.Close())
				require.Greater(t, n, 6)
				break
			}
			require.Eventually(t, func() bool { return fatals.Load() == 1 }, 5*time.Second, time.Millisecond, "operation %d", n)
			fsys.Set(nil)
			_ = l.Close()
			l = openDamaged(t, mem.CrashClone(uint64(n), 0.5))
			require.NoError(t, l.Repair(sp.lost(l)))
			for i := l.Stats().Last + 1; i <= sp.last; i++ {
				require.NoError(t, l.StoreLog(sp.want[i]))
			}
			require.Empty(t, l.Damage())
			require.NoError(t, sp.check(l, sp.last))
			require.NoError(t, l.Close())
		}
	}
}
