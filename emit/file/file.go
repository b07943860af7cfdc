// Package file delivers each compaction as one file of NDJSON: a structured CloudEvent per line, in log order.
//
//		DIRECTORY/COMPACTION_ID.ndjson                the delivery
//	DIRECTORY/.COMPACTION_ID~NODE~RUN.ndjson.tmp   one being written
//
// It promises: a file that has its name is whole and durable (temporary file, fsync, rename, fsync of the directory), and its
// content never changes, because the name is the compaction's id, whose members never change (I6), and the bytes depend on
// them alone: a retry, on this node or another, overwrites the file with itself. So consumers may take the union of the files
// by name over all nodes.
//
// Temporary files that an earlier process of this node left behind are removed when the sink is opened; those of other nodes
// on shared storage, and whatever else lies there, are left alone. A file that was delivered is never removed.
package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"penstock/emit/sink"
	"penstock/internal/vfs"
)

// Sink writes under one directory.
type Sink struct {
	fs   vfs.FS
	dir  string
	node string
}

// run tells the temporary files of this process from those of earlier ones.
var run = strings.ReplaceAll(uuid.NewString(), "-", "")[:12]

const (
	suffix    = ".ndjson"
	tmpSuffix = ".ndjson.tmp"
)

// Open makes the directory and removes leftovers. dir is absolute; node is this node's id.
func Open(fsys vfs.FS, dir, node string) (*Sink, error) {
	s := &Sink{fs: fsys, dir: dir, node: node}
	if err := s.makeDir(dir); err != nil {
		return nil, fmt.Errorf("open file emitter: %w", err)
	}
	if err := s.removeLeftovers(); err != nil {
		return nil, fmt.Errorf("open file emitter: remove leftovers: %w", err)
	}
	return s, nil
}

// makeDir creates missing folders and makes each durable in its parent.
func (s *Sink) makeDir(dir string) error {
	if _, err := s.fs.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if parent := filepath.Dir(dir); parent != dir {
		if err := s.makeDir(parent); err != nil {
			return err
		}
	}
	if err := s.fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return s.fs.SyncDir(filepath.Dir(dir))
}

func (s *Sink) removeLeftovers() error {
	entries, err := s.fs.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		ours := strings.HasPrefix(name, ".") && strings.HasSuffix(name, tmpSuffix) && strings.Contains(name, "~"+s.node+"~")
		if !ours || strings.HasSuffix(name, "~"+run+tmpSuffix) {
			continue
		}
		if err := s.fs.Remove(filepath.Join(s.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Deliver writes the compaction's file. Any failure is transient: a full disk or a missing right is mended by people, and
// nothing is lost while the budget lasts.
func (s *Sink) Deliver(ctx context.Context, c *sink.Compaction) sink.Result {
	if c.ID == "" || strings.ContainsAny(c.ID, "/\\\x00") {
		return sink.Result{Class: sink.Poison, Reason: "the compaction id is no file name"}
	}
	var lines []byte
	for i := range c.Deliveries {
		lines = append(c.Deliveries[i].Event.AppendStructured(lines), '\n')
	}
	if ctx.Err() != nil {
		return sink.Result{Class: sink.Transient, Reason: "cut off"}
	}
	if err := s.write(c.ID, lines); err != nil {
		return sink.Result{Class: sink.Transient, Reason: err.Error()}
	}
	return sink.Result{OK: true}
}

func (s *Sink) write(id string, lines []byte) (err error) {
	tmp := filepath.Join(s.dir, "."+id+"~"+s.node+"~"+run+tmpSuffix)
	f, err := s.fs.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("create: %w", bare(err))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreMissing(s.fs.Remove(tmp)))
		}
	}()
	_, err = f.Write(lines)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write: %w", bare(err))
	}
	if err = s.fs.Rename(tmp, filepath.Join(s.dir, id+suffix)); err != nil {
		return fmt.Errorf("rename: %w", bare(err))
	}
	// The point of no return: from here on the delivery is durable.
	if err = s.fs.SyncDir(s.dir); err != nil {
		return fmt.Errorf("sync directory: %w", bare(err))
	}
	return nil
}

// Close has nothing to close.
func (s *Sink) Close() error { return nil }

// bare takes the paths out of a file error, so that reasons are the same on all nodes.
func bare(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	var le *os.LinkError
	if errors.As(err, &le) {
		return le.Err
	}
	return err
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return bare(err)
}
