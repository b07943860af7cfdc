package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"

	"penstock/internal/mutant"
)

// OS is the operating system's file system.
var OS FS = osFS{}

type osFS struct{}

func (osFS) Open(name string) (File, error) { return wrapFile(os.Open(name)) }

func (osFS) Create(name string) (File, error) { return wrapFile(os.Create(name)) }

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	return wrapFile(os.OpenFile(name, flag, perm))
}

func (osFS) Rename(oldname, newname string) error { return os.Rename(oldname, newname) }

func (osFS) Remove(name string) error { return os.Remove(name) }

func (osFS) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }

// MkdirAll also makes the new folder's own name durable, and those of the
// parents it created, so that what is synced inside cannot vanish with them.
func (osFS) MkdirAll(name string, perm fs.FileMode) error {
	if _, err := os.Stat(name); err == nil {
		return os.MkdirAll(name, perm) // reports a file in the way
	}
	var made []string
	for p := filepath.Clean(name); ; p = filepath.Dir(p) {
		if _, err := os.Stat(p); err == nil || p == filepath.Dir(p) {
			break
		}
		made = append(made, p)
	}
	if err := os.MkdirAll(name, perm); err != nil {
		return err
	}
	for _, p := range made {
		if err := (osFS{}).SyncDir(filepath.Dir(p)); err != nil {
			return err
		}
	}
	return nil
}

func (osFS) Stat(name string) (fs.FileInfo, error) { return os.Stat(name) }

// FreeBytes implements FreeSpacer.
func (osFS) FreeBytes(dir string) (int64, error) { return freeBytes(dir) }

func (osFS) SyncDir(name string) (err error) {
	if mutant.On(mutant.SkipDirFsync) {
		return nil
	}
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Sync()
}

func (osFS) Lock(name string) (io.Closer, error) {
	l := flock.New(name)
	ok, err := l.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	if !ok {
		return nil, fmt.Errorf("lock %s: %w", name, ErrLocked)
	}
	return l, nil
}

// osFile replaces Sync by fdatasync; the rest is os.File's.
type osFile struct{ *os.File }

func wrapFile(f *os.File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (f osFile) Sync() error {
	if err := datasync(f.File); err != nil {
		return &fs.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
	}
	return nil
}

func (f osFile) DropCache() error {
	if err := dropCache(f.File); err != nil {
		return &fs.PathError{Op: "fadvise", Path: f.Name(), Err: err}
	}
	return nil
}
