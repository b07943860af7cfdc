package wal

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"penstock/internal/vfs/errfs"
	"penstock/internal/vfs/memfs"
	"penstock/internal/watchdog/watchdogtest"
)

// failing opens a log on a file system that can be made to fail, and counts
// what Fatal hears.
func failing(t *testing.T) (l *Log, mem *memfs.FS, fsys *errfs.FS, fatals *atomic.Int32) {
	t.Helper()
	mem = memfs.New()
	fsys, fatals = errfs.Wrap(mem, nil), new(atomic.Int32)
	cfg := testConfig(t, fsys)
	cfg.StallTimeout = 10 * time.Second
	cfg.Fatal = func(error) { fatals.Add(1) }
	l, err := Open(testDir, cfg)
	require.NoError(t, err)
	return l, mem, fsys, fatals
}

// requireFailed: every call answers with the failure, and nothing is written.
func requireFailed(t *testing.T, l *Log, fsys *errfs.FS) {
	t.Helper()
	fsys.Set(func(op errfs.Op) error {
		// (The keeper and the preparer may be in the middle of another file.)
		if op.Kind.Mutates() && strings.HasPrefix(filepath.Base(op.Path), segmentPrefix) {
			t.Errorf("%s %s after the failure", op.Kind, op.Path)
		}
		return nil
	})
	var e raft.Log
	_, err1 := l.FirstIndex()
	_, err2 := l.LastIndex()
	for i, err := range []error{
		err1, err2, l.GetLog(1, &e), l.StoreLogs(entries(100, 101, 1, 1)), l.StoreLogs(entries(4, 4, 1, 1)),
		l.DeleteRange(1, 2), l.DeleteRange(1, 100), l.Reset(50, 1),
	} {
		require.ErrorIs(t, err, ErrFailed, "call %d", i)
	}
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
}

// TestFailedOperationIsFatalAndNeverAcked fails, one at a time, each operation
// that changes the disk during an append, a roll, a truncation and a reset (I11).
func TestFailedOperationIsFatalAndNeverAcked(t *testing.T) {
	calls := map[string]func(l *Log) error{
		"append":   func(l *Log) error { return l.StoreLogs(entries(4, 5, 1, 500)) },
		"roll":     func(l *Log) error { return l.StoreLogs(entries(4, 5, 1, 14000)) },
		"large":    func(l *Log) error { return l.StoreLogs(entries(4, 4, 1, 50000)) },
		"truncate": func(l *Log) error { return l.DeleteRange(2, 3) },
		"reset":    func(l *Log) error { return l.Reset(70, 3) },
	}
	for name, call := range calls {
		for _, cause := range []error{syscall.EIO, syscall.ENOSPC, &errfs.Short{Bytes: 700, Err: syscall.ENOSPC}} {
			fired := 0
			for n := 1; ; n++ {
				if !failNth(t, name, call, n, cause) {
					break
				}
				fired++
			}
			require.NotZero(t, fired, name)
		}
	}
}

// failNth fails the n-th operation of a call; false when there are not so many.
func failNth(t *testing.T, name string, call func(*Log) error, n int, cause error) bool {
	t.Helper()
	what := fmt.Sprintf("%s, operation %d, %v", name, n, cause)
	l, mem, fsys, fatals := failing(t)
	require.NoError(t, l.StoreLogs(entries(1, 3, 1, 500)))
	var seen atomic.Int32
	var fired, removal atomic.Bool
	fsys.Set(func(op errfs.Op) error {
		var short *errfs.Short
		if !op.Kind.Mutates() || errors.As(cause, &short) && op.Kind != errfs.Write || isSpare(op) {
			return nil
		}
		if seen.Add(1) != int32(n) {
			return nil
		}
		removal.Store(op.Kind == errfs.Remove)
		fired.Store(true)
		return cause
	})
	err := call(l)
	if !fired.Load() {
		require.NoError(t, err, what)
		fsys.Set(nil)
		require.NoError(t, l.Close())
		return false
	}
	if err == nil && (removal.Load() || errors.Is(cause, syscall.ENOSPC) && fatals.Load() == 0 && name != "append") {
		// A dead file stays, or it was the preparer's folder sync: no space
		// there is waited out.
		fsys.Set(nil)
		require.NoError(t, l.Close())
		return true
	}
	if err != nil {
		require.ErrorIs(t, err, ErrFailed, what)
	}
	// It may be the keeper's or the preparer's, behind the ack or beside the call.
	require.Eventually(t, func() bool { return fatals.Load() == 1 }, time.Second, time.Millisecond, what)
	requireFailed(t, l, fsys)
	// What was acked before is there when the process comes back.
	l2, err := Open(testDir, testConfig(t, mem.CrashClone(uint64(n), 0.5)))
	require.NoError(t, err, what)
	if base, _ := l2.Base(); base == 0 {
		requireEntry(t, l2, entry(1, 1, 500))
	}
	require.NoError(t, l2.Close())
	return true
}

// isSpare leaves the background preparation alone: it has its own test. (The
// header is written to the spare under its spare name, and that is not left alone.)
func isSpare(op errfs.Op) bool {
	base := filepath.Base(op.Path)
	return strings.HasPrefix(base, sparePrefix) && (strings.HasSuffix(base, tmpSuffix) || op.Kind == errfs.Rename)
}

func TestFailedFsyncIsNotReadBack(t *testing.T) {
	l, _, fsys, fatals := failing(t)
	fsys.Set(errfs.OnNth(errfs.Sync, "wal-*", 1, syscall.EIO, nil))
	require.ErrorIs(t, l.StoreLogs(entries(1, 3, 1, 500)), syscall.EIO)
	require.Equal(t, int32(1), fatals.Load())
	require.Equal(t, uint64(0), l.Stats().Last)
	requireFailed(t, l, fsys)
}

func TestStalledFsyncIsFatalAndCallersBehindItGetTheirError(t *testing.T) {
	mem := memfs.New()
	fsys := errfs.Wrap(mem, nil)
	cfg := testConfig(t, fsys)
	cfg.StallTimeout = 50 * time.Millisecond
	fatal := make(chan error, 1)
	cfg.Fatal = func(err error) { fatal <- err }
	l, err := Open(testDir, cfg)
	require.NoError(t, err)
	release := make(chan struct{})
	fsys.Set(func(op errfs.Op) error {
		if op.Kind == errfs.Sync {
			<-release
		}
		return nil
	})
	stuck := make(chan error, 1)
	go func() { stuck <- l.StoreLogs(entries(1, 1, 1, 10)) }()
	require.Eventually(t, func() bool { return l.WriteOutstanding() > 0 }, time.Second, time.Millisecond)
	require.ErrorIs(t, l.StoreLogs(entries(1, 1, 1, 10)), ErrStalled) // waits behind it
	require.ErrorIs(t, <-fatal, ErrStalled)
	_, err = l.LastIndex()
	require.ErrorIs(t, err, ErrFailed)
	close(release) // the disk comes back: too late for an ack
	require.ErrorIs(t, <-stuck, ErrStalled)
	require.NoError(t, l.Close())
}

// A process that is stopped while an fsync is outstanding sees it return late:
// that says nothing of the disk.
func TestAPauseOfTheProcessDuringAnFsyncIsNoStall(t *testing.T) {
	watchdogtest.Run(t, func(disk func()) {
		fsys := errfs.Wrap(memfs.New(), nil)
		cfg := testConfig(t, fsys)
		cfg.StallTimeout = watchdogtest.Limit
		l, err := Open(testDir, cfg)
		require.NoError(t, err)
		require.NoError(t, l.StoreLogs(entries(1, 1, 1, 10)))
		fsys.Set(func(op errfs.Op) error {
			if op.Kind == errfs.Sync && strings.HasPrefix(filepath.Base(op.Path), segmentPrefix) {
				disk()
			}
			return nil
		})
		require.NoError(t, l.StoreLogs(entries(2, 2, 1, 10)))
		fsys.Set(nil)
		require.NoError(t, l.Close())
	})
}

// A disk that stays full ends the process like one that hangs, and says so.
func TestADiskThatStaysFullIsNamedAsThat(t *testing.T) {
	var full atomic.Bool
	fsys := errfs.Wrap(memfs.New(), func(op errfs.Op) error {
		if full.Load() && op.Kind == errfs.Write && isSpare(op) {
			return syscall.ENOSPC
		}
		return nil
	})
	cfg := testConfig(t, fsys)
	cfg.StallTimeout = 200 * time.Millisecond
	fatal := make(chan error, 1)
	cfg.Fatal = func(err error) { fatal <- err }
	l, err := Open(testDir, cfg)
	require.NoError(t, err)
	full.Store(true)
	for index := uint64(1); err == nil; index++ {
		err = l.StoreLogs(entries(index, index, 1, 7000))
	}
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorIs(t, <-fatal, syscall.ENOSPC)
	require.NotErrorIs(t, err, ErrStalled)
	require.ErrorContains(t, err, "wait for a prepared segment: no space left in "+testDir)
	require.NoError(t, l.Close())
}

func TestDiskErrorInPreparationIsFatalNoSpaceIsWaitedOut(t *testing.T) {
	for _, cause := range []error{syscall.EIO, syscall.ENOSPC} {
		mem := memfs.New()
		var full atomic.Bool
		fsys := errfs.Wrap(mem, func(op errfs.Op) error {
			if full.Load() && op.Kind == errfs.Write && isSpare(op) {
				return cause
			}
			return nil
		})
		cfg := testConfig(t, fsys)
		fatal := make(chan error, 1)
		cfg.Fatal = func(err error) { fatal <- err }
		l, err := Open(testDir, cfg)
		require.NoError(t, err)
		full.Store(true)
		if errors.Is(cause, syscall.ENOSPC) {
			time.AfterFunc(20*time.Millisecond, func() { full.Store(false) })
		}
		err = l.StoreLogs(entries(1, 2, 1, 14000)) // takes the spare that is ready, or meets the error
		if errors.Is(cause, syscall.EIO) {
			require.ErrorIs(t, <-fatal, syscall.EIO)
			require.NoError(t, l.Close())
			continue
		}
		require.NoError(t, err)
		last, err := l.LastIndex()
		require.NoError(t, err)
		require.NoError(t, l.StoreLogs(entries(last+1, last+4, 1, 14000)))
		require.Empty(t, fatal)
		require.NoError(t, l.Close())
	}
}
