package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// cleanStopName is the file that a drained node leaves behind. Its absence at start means that the last stop was unclean.
const cleanStopName = "clean-stop"

// isFresh tells whether a directory holds no state yet: its start follows no stop, neither a clean nor an unclean one.
func isFresh(dir string) bool {
	for _, name := range []string{cleanStopName, "wal", "fsm.db", "identity"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

// takeCleanStop tells whether the last stop was clean and removes the marker durably, so that a crash from here on counts
// as unclean.
func takeCleanStop(dir string) (clean bool, err error) {
	err = os.Remove(filepath.Join(dir, cleanStopName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("clean-stop marker: %w", err)
	}
	return true, syncDir(dir)
}

// leaveCleanStop writes the marker. It is the last thing a drained node does.
func leaveCleanStop(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, cleanStopName), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("clean-stop marker: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("clean-stop marker: %w", err)
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}
