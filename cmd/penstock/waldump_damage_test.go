package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"penstock/internal/vfs"
	"penstock/wal"
)

// TestWALVerifyNamesDamageAndTakesAFolderAfterARepair: the error says kind,
// file, offset and index; spares and quarantined files are no part of the log,
// and nothing in the folder is written to.
func TestWALVerifyNamesDamageAndTakesAFolderAfterARepair(t *testing.T) {
	dir := dataDir(t, 50)
	logDir := filepath.Join(dir, "wal")
	var records []wal.Record
	require.NoError(t, wal.Walk(vfs.OS, logDir, func(r wal.Record) error {
		records = append(records, r)
		return nil
	}))
	at := records[19]
	segment := filepath.Join(logDir, fmt.Sprintf("wal-%020d.seg", at.Segment))
	b, err := os.ReadFile(segment)
	require.NoError(t, err)
	b[at.Offset+70] ^= 1
	require.NoError(t, os.WriteFile(segment, b, 0o600))

	before := snapshotOf(t, logDir)
	code, _, errs := cli(t, nil, "", "wal", "verify", dir)
	require.Equal(t, exitDamage, code, errs)
	require.Contains(t, errs, fmt.Sprintf("block in %s at byte %d (index 20)", segment, at.Offset/4096*4096))
	require.Equal(t, before, snapshotOf(t, logDir), "verify writes nothing")

	l, err := wal.Open(logDir, wal.Config{SegmentBytes: 1 << 20, AllowDamage: true, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.Len(t, l.Damage(), 1)
	require.Equal(t, uint64(20), l.Damage()[0].First)
	require.NoError(t, l.Repair([]*raft.Log{{Index: 20, Term: at.Term, Type: at.Type, Data: at.Data}}))
	require.NoError(t, l.Close())
	for _, kind := range []string{"spare-*", "quarantine-*"} {
		files, err := filepath.Glob(filepath.Join(logDir, kind))
		require.NoError(t, err)
		require.NotEmpty(t, files, kind)
	}
	code, out, errs := cli(t, nil, "", "wal", "verify", dir)
	require.Zero(t, code, errs)
	require.Contains(t, out, "1      50    50")
}

func snapshotOf(t *testing.T, dir string) map[string]int {
	t.Helper()
	out := map[string]int{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		out[e.Name()] = len(b) + bytes.Count(b, []byte{0})
	}
	return out
}
