package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	"github.com/spf13/cobra"

	"penstock/event"
	"penstock/fsm/command"
	"penstock/internal/vfs"
	"penstock/wal"
)

func (a *app) walCommand() *cobra.Command {
	c := group(&cobra.Command{Use: "wal", Short: "Read a node's log offline"})
	verify := &cobra.Command{
		Use: "verify DIR", Short: "Check every record of a log; exit code 3 when there is damage", Args: args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, list []string) error { return a.walVerify(walDir(list[0])) },
	}
	dump := &cobra.Command{
		Use: "dump DIR", Short: "Print every entry of a log as one line of JSON", Args: args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, list []string) error { return a.walDump(walDir(list[0])) },
	}
	c.AddCommand(verify, dump)
	return c
}

// walDir takes a node's data directory, or the log's own.
func walDir(dir string) string {
	inside := filepath.Join(dir, "wal")
	if info, err := os.Stat(inside); err == nil && info.IsDir() {
		return inside
	}
	return dir
}

type walSummary struct {
	First   uint64 `json:"first_index"`
	Last    uint64 `json:"last_index"`
	Entries uint64 `json:"entries"`
	Bytes   uint64 `json:"bytes"`
}

func (a *app) walVerify(dir string) error {
	var s walSummary
	err := wal.Walk(vfs.OS, dir, func(r wal.Record) error {
		if s.Entries == 0 {
			s.First = r.Index
		}
		s.Last = r.Index
		s.Entries++
		s.Bytes += uint64(len(r.Data))
		if r.Type != raft.LogCommand {
			return nil
		}
		if _, err := command.DecodeEntry(r.Data); err != nil {
			return fmt.Errorf("entry %d: %w", r.Index, err)
		}
		return nil
	})
	return errors.Join(a.print(s, func(w io.Writer) {
		row(w, "FIRST", "LAST", "ENTRIES", "BYTES")
		row(w, s.First, s.Last, s.Entries, s.Bytes)
	}), err)
}

type dumpedEntry struct {
	Index    uint64          `json:"index"`
	Term     uint64          `json:"term"`
	Type     string          `json:"type"`
	Bytes    int             `json:"bytes"`
	Stamp    string          `json:"stamp,omitempty"`
	Commands []dumpedCommand `json:"commands,omitempty"`
	Error    string          `json:"error,omitempty"`
}

type dumpedCommand struct {
	Kind   string `json:"kind"`
	Bytes  int    `json:"bytes"`
	Events int    `json:"events,omitempty"`
	Offset string `json:"offset,omitempty"`
}

func (a *app) walDump(dir string) error {
	e := json.NewEncoder(a.stdout)
	return wal.Walk(vfs.OS, dir, func(r wal.Record) error {
		d := dumpedEntry{Index: r.Index, Term: r.Term, Type: r.Type.String(), Bytes: len(r.Data)}
		if r.Type == raft.LogCommand {
			d.decode(r.Data)
		}
		return e.Encode(d)
	})
}

func (d *dumpedEntry) decode(data []byte) {
	entry, err := command.DecodeEntry(data)
	if err != nil {
		d.Error = err.Error()
		return
	}
	d.Stamp = time.Unix(0, entry.Stamp).UTC().Format(time.RFC3339Nano)
	for _, c := range entry.Commands {
		kind, body, err := command.Split(c)
		if err != nil {
			d.Error = err.Error()
			return
		}
		dc := dumpedCommand{Kind: kind.String(), Bytes: len(body)}
		if kind == command.KindBatch {
			if b, err := event.DecodeBatch(body); err != nil {
				d.Error = err.Error()
			} else {
				dc.Events = b.Len()
				if o := b.Header().Offset; o != nil {
					dc.Offset = o.Source + "/" + o.Partition + " " + o.SourceOffset.String()
				}
			}
		}
		d.Commands = append(d.Commands, dc)
	}
}
