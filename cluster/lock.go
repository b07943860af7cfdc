package cluster

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
)

// DirLock is one process's hold on a data directory. The kernel drops it with the process, so a left-over file blocks nobody.
type DirLock struct{ f *flock.Flock }

// LockDir takes the data directory for this process, making it if need be. A directory in use gives ErrInUse (exit 12).
func LockDir(dir string) (*DirLock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	f := flock.New(filepath.Join(dir, "lock"))
	got, err := f.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
	}
	if !got {
		return nil, exitError(ExitInUse, ErrInUse, "%s", dir)
	}
	return &DirLock{f: f}, nil
}

// Unlock gives the directory up. It may be called twice.
func (l *DirLock) Unlock() error { return l.f.Unlock() }
