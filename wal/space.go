package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"penstock/internal/vfs"
)

const reserveName = "reserve"

// spaceWatch is what is known of the file system's room.
type spaceWatch struct {
	mu      sync.Mutex   // the ballast file is made or removed
	reserve atomic.Int64 // size of the ballast that is there
	free    atomic.Int64 // -1 when not known
	low     atomic.Bool
	told    atomic.Bool // that the ballast cannot be made
}

// openReserve takes over the ballast of an earlier run, when it has the size.
func (l *Log) openReserve() error {
	path := filepath.Join(l.dir, reserveName)
	st, err := l.fs.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("wal: %w", err)
	}
	if l.cfg.ReserveBytes > 0 && st.Size() == l.cfg.ReserveBytes {
		l.space.reserve.Store(st.Size())
		return nil
	}
	l.removeFile(path)
	return nil
}

// ReleaseReserve gives the ballast back to the file system, and says whether
// there was one. It happens by itself when the room left is a quarter of the
// low-water mark, and when a segment is needed and there is no space for it;
// whoever else finds the disk full (the checkpoint, the dead letters) may
// call it and try once more. It is made again when there is room for it.
func (l *Log) ReleaseReserve() bool {
	l.space.mu.Lock()
	defer l.space.mu.Unlock()
	if l.space.reserve.Load() == 0 {
		return false
	}
	l.space.reserve.Store(0)
	l.removeFile(filepath.Join(l.dir, reserveName))
	l.log.Warn("disk nearly full: reserve given back", "bytes", l.cfg.ReserveBytes)
	return true
}

// watchSpace is the goroutine that looks at the free space, and makes and
// gives back the ballast. Started by Open, stopped by Close.
func (l *Log) watchSpace() {
	defer l.loops.Done()
	for {
		l.lookAtSpace()
		if !l.sleep(l.cfg.SpaceCheck, nil) {
			return
		}
	}
}

func (l *Log) lookAtSpace() {
	free, err := vfs.FreeBytes(l.fs, l.dir)
	if err != nil {
		l.space.free.Store(-1)
		return
	}
	mark, held := l.cfg.LowWaterBytes, l.space.reserve.Load()
	if missing := l.cfg.ReserveBytes - held; missing > 0 && free-missing >= mark {
		l.makeReserve()
	} else if held > 0 && free < mark/4 {
		l.ReleaseReserve()
	}
	if l.space.reserve.Load() != held { // the ballast was made, or given up
		if free, err = vfs.FreeBytes(l.fs, l.dir); err != nil {
			l.space.free.Store(-1)
			return
		}
	}
	l.space.free.Store(free)
	missing := l.cfg.ReserveBytes - l.space.reserve.Load()
	// What the ballast will take again is not free; and a little more must be,
	// before it counts as over, so that it does not flap.
	low := free-missing < mark
	if l.space.low.Load() && !low {
		low = free-missing < mark+mark/8
	}
	if l.space.low.Swap(low) != low {
		l.log.Warn("low-water mark of disk space", "low", low, "free", free, "mark", mark)
	}
}

// makeReserve writes the ballast. No room for it is no failure of the log.
func (l *Log) makeReserve() {
	l.space.mu.Lock()
	defer l.space.mu.Unlock()
	path := filepath.Join(l.dir, reserveName)
	err := l.writeZeros(path+tmpSuffix, l.cfg.ReserveBytes)
	if err == nil {
		err = l.fs.Rename(path+tmpSuffix, path)
	}
	switch {
	case err == nil:
		l.space.reserve.Store(l.cfg.ReserveBytes)
		l.space.told.Store(false)
		return
	case l.usable() != nil:
		return
	case !errors.Is(err, syscall.ENOSPC):
		_ = l.fuse.blow(fmt.Errorf("make reserve: %w", err))
		return
	}
	l.removeFile(path + tmpSuffix)
	if !l.space.told.Swap(true) {
		l.log.Warn("no space for the reserve", "error", err)
	}
}
