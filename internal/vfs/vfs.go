package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrLocked is returned by [FS.Lock] when another holder has the lock.
var ErrLocked = errors.New("locked by another process")

// File is one open file. ReadAt and WriteAt may be called from several
// goroutines at once; Read, Write and Seek share one position.
type File interface {
	io.Reader
	io.Writer
	io.Seeker
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Sync makes the file's data, and the metadata needed to read it back
	// (its size), durable: fdatasync. It does not make the file's name
	// durable: that is SyncDir of the folder. After an error nothing may be
	// assumed about what is on disk, and a later success proves nothing.
	Sync() error
	// Truncate sets the size; new bytes read as zero. Durable after Sync.
	Truncate(size int64) error
	Stat() (fs.FileInfo, error)
	// Name is the path the file was opened with.
	Name() string
}

// FS is a file system. Its methods may be called from several goroutines.
// Errors satisfy errors.Is with fs.ErrNotExist and fs.ErrExist as those of
// package os do.
type FS interface {
	// Open opens for reading.
	Open(name string) (File, error)
	// Create opens for reading and writing, emptied.
	Create(name string) (File, error)
	// OpenFile takes the flags of package os.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// Rename replaces newname when it exists. Durable after SyncDir.
	Rename(oldname, newname string) error
	// Remove deletes a file or an empty folder. Durable after SyncDir.
	Remove(name string) error
	// ReadDir lists a folder, sorted by name.
	ReadDir(name string) ([]fs.DirEntry, error)
	MkdirAll(name string, perm fs.FileMode) error
	Stat(name string) (fs.FileInfo, error)
	// SyncDir makes the names in a folder durable.
	SyncDir(name string) error
	// Lock takes an exclusive lock on a file that it creates when missing. It
	// does not wait: a lock held elsewhere is ErrLocked. Closing gives it up,
	// and so does the end of the process.
	Lock(name string) (io.Closer, error)
}

// CacheDropper is implemented by files that can be read around the page
// cache: after DropCache (which does not flush: Sync first) reads see what is
// on disk as far as the operating system allows. See the note on unclean stops
// in package wal.
type CacheDropper interface {
	DropCache() error
}

// FreeSpacer is implemented by file systems that know how much room is left.
type FreeSpacer interface {
	// FreeBytes is what this process may still write in a folder's file system.
	FreeBytes(dir string) (int64, error)
}

// FreeBytes asks the file system; an error wrapping errors.ErrUnsupported when
// it does not know.
func FreeBytes(fsys FS, dir string) (int64, error) {
	if f, ok := fsys.(FreeSpacer); ok {
		return f.FreeBytes(dir)
	}
	return 0, fmt.Errorf("free space of %s: %w", dir, errors.ErrUnsupported)
}

// ReadFile reads a whole file.
func ReadFile(fsys FS, name string) (b []byte, err error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(f)
}

// WriteFileAtomic replaces a file whole: a crash at any point leaves the old
// content or the new one, and on return the new one is durable. It writes a
// temporary file beside it (name + ".tmp"), syncs, renames, and syncs the
// folder; one caller per name at a time.
func WriteFileAtomic(fsys FS, name string, data []byte, perm fs.FileMode) error {
	tmp := name + ".tmp"
	f, err := fsys.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	// A close error on a written file counts.
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = fsys.Rename(tmp, name)
	}
	if err == nil {
		err = fsys.SyncDir(filepath.Dir(name))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
