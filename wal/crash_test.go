package wal

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"penstock/internal/vfs/errfs"
	"penstock/internal/vfs/memfs"
)

// script is a workload that goes through every step of the crash argument
// (docs/format/wal.md): append, roll, prefix, suffix, whole truncation, reset,
// and restarts. Each step says what it does to the log and to the model.
type script struct {
	name string
	do   func(l *Log) error
	want func(m *model)
}

func storeStep(from, to, term uint64, size int) script {
	return script{
		name: fmt.Sprintf("store [%d,%d] of %d", from, to, size),
		do:   func(l *Log) error { return l.StoreLogs(entries(from, to, term, size)) },
		want: func(m *model) { m.store(entries(from, to, term, size)) },
	}
}

func cutStep(from, to uint64) script {
	return script{
		name: fmt.Sprintf("delete [%d,%d]", from, to),
		do:   func(l *Log) error { return l.DeleteRange(from, to) },
		want: func(m *model) { m.cut(from) },
	}
}

func crashScript() []script {
	return []script{
		storeStep(1, 3, 1, 1000),
		storeStep(4, 6, 1, 5000), // spans blocks
		storeStep(7, 8, 1, 9000), // rolls
		cutStep(6, 8),            // over a segment's edge
		storeStep(6, 9, 2, 2000),
		storeStep(10, 11, 2, 12000), // rolls
		{
			name: "prefix",
			do: func(l *Log) error {
				l.SetFloor(9)
				return l.DeleteRange(1, 8)
			},
			want: func(m *model) { m.floor, m.allowed = 9, 8 },
		},
		storeStep(12, 12, 2, 60000), // a segment of its own
		cutStep(12, 12),
		storeStep(12, 14, 3, 10),
		{
			name: "reset",
			do:   func(l *Log) error { return l.Reset(1000, 4) },
			want: func(m *model) { m.reset(1000, 4) },
		},
		storeStep(1001, 1003, 4, 3000),
		{
			name: "whole",
			do:   func(l *Log) error { return l.DeleteRange(1001, 1003) },
			want: func(m *model) { m.cut(1001) },
		},
		storeStep(1001, 1002, 5, 100),
	}
}

// crashPoint is the disk at one moment and the two states it may come back in.
type crashPoint struct {
	what          string
	disk          *memfs.FS
	before, after *model
	limit         uint64
}

// recordCrashes runs the script on a file system that is cloned before each
// operation that changes something, as power cuts of several kinds leave it.
func recordCrashes(t *testing.T, seeds int) []crashPoint {
	t.Helper()
	mem := memfs.New()
	var mu sync.Mutex
	var points []crashPoint
	state := crashPoint{what: "create", before: newModel(), after: newModel()}
	ops := uint64(0)
	fsys := errfs.Wrap(mem, func(op errfs.Op) error {
		if !op.Kind.Mutates() {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		ops++
		for s := range seeds {
			p := state
			keep := []float64{0, 1, 0.5, 0.9, 0.1}[s%5]
			p.what = fmt.Sprintf("%s: before %s %s, keep %v, seed %d", state.what, op.Kind, op.Path, keep, s)
			p.disk = mem.CrashClone(ops*1000+uint64(s), keep)
			points = append(points, p)
		}
		return nil
	})
	cfg := testConfig(t, fsys)
	cfg.MarkInterval = time.Microsecond
	l, err := Open(testDir, cfg)
	require.NoError(t, err)
	for _, step := range crashScript() {
		mu.Lock()
		state.what, state.before = step.name, state.after.clone()
		step.want(state.after)
		state.limit = max(state.limit, state.after.limit())
		state.after = state.after.clone()
		mu.Unlock()
		require.NoError(t, step.do(l), step.name)
		mu.Lock()
		state.before = state.after
		state.after = state.after.clone()
		mu.Unlock()
	}
	require.NoError(t, l.Close())
	require.Greater(t, testutil.ToFloat64(l.metrics.recycled), 3.0, "dropped segments are used again")
	return points
}

// TestCrashAtEveryOperationKeepsWhatWasAcked: the disk at each step of the
// crash argument comes back as it was before the call in progress or as it is
// after it, and the log then goes on.
func TestCrashAtEveryOperationKeepsWhatWasAcked(t *testing.T) {
	points := recordCrashes(t, 5)
	require.Greater(t, len(points), 200)
	for _, p := range points {
		l, err := Open(testDir, testConfig(t, p.disk))
		require.NoError(t, err, p.what)
		m := p.before
		if errBefore := p.before.check(l, p.limit); errBefore != nil {
			m = p.after
			require.NoError(t, errors.Join(p.after.check(l, p.limit)), "%s; and not as before: %v", p.what, errBefore)
		}
		m = m.clone()
		m.restart()
		logs := entries(m.last+1, m.last+2, 99, 6000)
		require.NoError(t, l.StoreLogs(logs), p.what)
		m.store(logs)
		again := p.disk.CrashClone(0, 0) // what was acked now survives at once
		require.NoError(t, l.Close())
		l, err = Open(testDir, testConfig(t, again))
		require.NoError(t, err, p.what)
		require.NoError(t, m.check(l, p.limit), p.what)
		require.NoError(t, m.checkWalk(again, l), p.what)
		require.NoError(t, l.Close())
	}
	t.Logf("%d crash points", len(points))
}

// TestCrashDuringRecoveryIsRecoveredFrom cuts the power again at each
// operation of an Open that cuts off a torn tail.
func TestCrashDuringRecoveryIsRecoveredFrom(t *testing.T) {
	before, after, m, _ := threeSegments(t)
	name, from, _ := lastBatch(before, after)
	mem := after.with(name, func(b []byte) []byte {
		copy(b[from+3*sectorSize:], before[name][from+3*sectorSize:])
		return b
	}).put(t)
	var mu sync.Mutex
	var disks []*memfs.FS
	fsys := errfs.Wrap(mem, func(op errfs.Op) error {
		if op.Kind.Mutates() {
			mu.Lock()
			defer mu.Unlock()
			for s, keep := range []float64{0, 1, 0.5, 0.5, 0.5} {
				disks = append(disks, mem.CrashClone(uint64(s), keep))
			}
		}
		return nil
	})
	l, err := Open(testDir, testConfig(t, fsys))
	require.NoError(t, err)
	require.NotZero(t, l.Recovery().TornBytes)
	require.NoError(t, l.Close())
	require.Greater(t, len(disks), 20)
	for i, disk := range disks {
		l, err := Open(testDir, testConfig(t, disk))
		require.NoError(t, err, "disk %d", i)
		require.NoError(t, m.check(l, ^uint64(0)), "disk %d", i)
		require.NoError(t, l.StoreLogs(entries(m.last+1, m.last+1, 9, 10)))
		require.NoError(t, l.Close())
	}
}
