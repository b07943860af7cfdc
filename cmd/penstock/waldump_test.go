package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"penstock/event"
	"penstock/fsm/command"
	"penstock/internal/vfs"
	"penstock/wal"
)

// dataDir is a node's data directory with a log of n entries of one batch each.
func dataDir(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	l, err := wal.Open(filepath.Join(dir, "wal"), wal.Config{SegmentBytes: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	for i := range n {
		body, err := event.EncodeBatch(nil, event.BatchHeader{ChannelIndex: 2, SpecVersion: 2, Offset: &event.Offset{Source: "s", Partition: "0", SourceOffset: event.SourceOffset{Position: uint64(i), Record: 7}}},
			event.HashKey{1}, []event.Event{{ID: "a", Source: "/s", Type: "t", DataKind: event.DataJSON, Data: []byte(strings.Repeat("1", 100))}}, nil)
		require.NoError(t, err)
		data := command.AppendEntry(nil, 1_700_000_000_000_000_000, [][]byte{command.EncodeBatch(body)})
		require.NoError(t, l.StoreLogs([]*raft.Log{{Index: uint64(i + 1), Term: 3, Type: raft.LogCommand, Data: data}}))
	}
	require.NoError(t, l.Close())
	return dir
}

func TestWALVerbsReadALogOffline(t *testing.T) {
	dir := dataDir(t, 5)
	code, out, errs := cli(t, nil, "", "wal", "verify", dir)
	require.Zero(t, code, errs)
	require.Contains(t, out, "1      5     5")
	code, out, errs = cli(t, nil, "", "wal", "dump", filepath.Join(dir, "wal"))
	require.Zero(t, code, errs)
	require.Equal(t, 5, strings.Count(out, "\n"))
	require.Contains(t, out, `{"index":5,"term":3,"type":"LogCommand"`)
	require.Contains(t, out, `"stamp":"2023-11-14T22:13:20Z"`)
	require.Contains(t, out, `"kind":"batch"`)
	require.Contains(t, out, `"events":1,"offset":"s/0 4:7"`)
}

func TestWALVerifyFindsDamage(t *testing.T) {
	dir := dataDir(t, 200)
	var at int64
	require.NoError(t, wal.Walk(vfs.OS, filepath.Join(dir, "wal"), func(r wal.Record) error {
		if r.Index == 100 {
			at = r.Offset
		}
		return nil
	}))
	segments, err := filepath.Glob(filepath.Join(dir, "wal", "*00001.*"))
	require.NoError(t, err)
	require.Len(t, segments, 1)
	segment := segments[0]
	b, err := os.ReadFile(segment)
	require.NoError(t, err)
	b[at+60] ^= 0x10
	require.NoError(t, os.WriteFile(segment, b, 0o600))
	code, out, errs := cli(t, nil, "", "wal", "verify", dir)
	require.Equal(t, exitDamage, code, "%s %s", out, errs)
	require.Contains(t, errs, filepath.Base(segment))
	require.Contains(t, out, "ENTRIES", "what was read is shown beside the damage")
}
