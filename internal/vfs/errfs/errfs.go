// Package errfs wraps a file system so that chosen operations fail, fall short
// or hang, and so that a test can look at the moment before each of them.
//
// It owns nothing but the interception: an [Injector] is asked before each
// operation and answers nil (let it through), an error (the operation fails
// without having been done), or *[Short] (a write that stops half-way). An
// injector may also block (a stall) or take a crash clone of the file system
// below. It makes no choice by itself and has no random numbers.
package errfs

import (
	"io"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"

	"penstock/internal/vfs"
)

// Kind says what an operation is.
type Kind string

// The operations an injector sees.
const (
	Open    Kind = "open" // Open, Create, OpenFile
	Read    Kind = "read" // Read, ReadAt
	Write   Kind = "write"
	Sync    Kind = "sync"
	SyncDir Kind = "syncdir"
	Rename  Kind = "rename" // Path is the new name
	Remove  Kind = "remove"
	Trunc   Kind = "truncate"
	Close   Kind = "close"
	Other   Kind = "other" // ReadDir, MkdirAll, Stat, Lock
)

// Mutates reports whether the operation changes what is, or will be, on disk.
func (k Kind) Mutates() bool {
	switch k {
	case Write, Sync, SyncDir, Rename, Remove, Trunc:
		return true
	}
	return false
}

// Op is one operation about to be done.
type Op struct {
	Kind   Kind
	Path   string
	Offset int64 // of WriteAt and ReadAt
	Size   int
}

// Injector is asked before each operation. Calls come from any goroutine.
type Injector func(Op) error

// Short makes a write store only its first Bytes bytes and then fail with Err.
type Short struct {
	Bytes int
	Err   error
}

func (s *Short) Error() string { return "short write: " + s.Err.Error() }

func (s *Short) Unwrap() error { return s.Err }

// OnNth fails the n-th operation (from 1) of a kind whose base name matches
// the glob pattern, once; fired, if not nil, is set when it happened.
func OnNth(kind Kind, pattern string, n int, err error, fired *atomic.Bool) Injector {
	var mu sync.Mutex
	seen := 0
	return func(op Op) error {
		if op.Kind != kind {
			return nil
		}
		if ok, _ := filepath.Match(pattern, filepath.Base(op.Path)); !ok {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if seen++; seen != n {
			return nil
		}
		if fired != nil {
			fired.Store(true)
		}
		return err
	}
}

// FS is the wrapping file system.
type FS struct {
	vfs.FS
	inject atomic.Pointer[Injector]
}

// Wrap returns fsys with inject before each operation; nil lets all through.
func Wrap(fsys vfs.FS, inject Injector) *FS {
	f := &FS{FS: fsys}
	f.Set(inject)
	return f
}

// Set replaces the injector.
func (f *FS) Set(inject Injector) {
	if inject == nil {
		inject = func(Op) error { return nil }
	}
	f.inject.Store(&inject)
}

func (f *FS) ask(op Op) error { return (*f.inject.Load())(op) }

func (f *FS) open(name string, do func() (vfs.File, error)) (vfs.File, error) {
	if err := f.ask(Op{Kind: Open, Path: name}); err != nil {
		return nil, pathErr("open", name, err)
	}
	inner, err := do()
	if err != nil {
		return nil, err
	}
	return &file{File: inner, fs: f}, nil
}

// Open implements vfs.FS.
func (f *FS) Open(name string) (vfs.File, error) {
	return f.open(name, func() (vfs.File, error) { return f.FS.Open(name) })
}

// Create implements vfs.FS.
func (f *FS) Create(name string) (vfs.File, error) {
	return f.open(name, func() (vfs.File, error) { return f.FS.Create(name) })
}

// OpenFile implements vfs.FS.
func (f *FS) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	return f.open(name, func() (vfs.File, error) { return f.FS.OpenFile(name, flag, perm) })
}

// Rename implements vfs.FS.
func (f *FS) Rename(oldname, newname string) error {
	if err := f.ask(Op{Kind: Rename, Path: newname}); err != nil {
		return pathErr("rename", newname, err)
	}
	return f.FS.Rename(oldname, newname)
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	if err := f.ask(Op{Kind: Remove, Path: name}); err != nil {
		return pathErr("remove", name, err)
	}
	return f.FS.Remove(name)
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(name string) error {
	if err := f.ask(Op{Kind: SyncDir, Path: name}); err != nil {
		return pathErr("fsync", name, err)
	}
	return f.FS.SyncDir(name)
}

// ReadDir implements vfs.FS.
func (f *FS) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := f.ask(Op{Kind: Other, Path: name}); err != nil {
		return nil, pathErr("readdir", name, err)
	}
	return f.FS.ReadDir(name)
}

// MkdirAll implements vfs.FS.
func (f *FS) MkdirAll(name string, perm fs.FileMode) error {
	if err := f.ask(Op{Kind: Other, Path: name}); err != nil {
		return pathErr("mkdir", name, err)
	}
	return f.FS.MkdirAll(name, perm)
}

// Stat implements vfs.FS.
func (f *FS) Stat(name string) (fs.FileInfo, error) {
	if err := f.ask(Op{Kind: Other, Path: name}); err != nil {
		return nil, pathErr("stat", name, err)
	}
	return f.FS.Stat(name)
}

// Lock implements vfs.FS.
func (f *FS) Lock(name string) (io.Closer, error) {
	if err := f.ask(Op{Kind: Other, Path: name}); err != nil {
		return nil, pathErr("lock", name, err)
	}
	return f.FS.Lock(name)
}

// FreeBytes implements vfs.FreeSpacer.
func (f *FS) FreeBytes(dir string) (int64, error) {
	if err := f.ask(Op{Kind: Other, Path: dir}); err != nil {
		return 0, pathErr("statfs", dir, err)
	}
	return vfs.FreeBytes(f.FS, dir)
}

func pathErr(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}
