package node

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"penstock/internal/vfs"
)

// What lets a node with a full disk go on, and start: the log's reserve (wal.Config.ReserveBytes), which is given back while it
// runs, and this file, which is given up at a start only. What a start must write, the incarnation above all, is a few pages.
const (
	startReserveName  = "reserve"
	startReserveBytes = 1 << 20
	// tightBytes: with less free than this a start gives the reserves up.
	tightBytes = 1 << 20
)

// freeAtStart gives the reserves back when the disk is full.
func freeAtStart(dir string) error {
	free, err := vfs.FreeBytes(vfs.OS, dir)
	if err != nil || free >= tightBytes {
		return nil // not known: then it shows where something is written
	}
	return errors.Join(remove(filepath.Join(dir, startReserveName)), remove(filepath.Join(dir, "wal", "reserve")))
}

func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// keepStartReserve makes the file again once there is room. It is no failure when there is none.
func (n *Node) keepStartReserve() {
	path := filepath.Join(n.cfg.Node.DataDir, startReserveName)
	if _, err := os.Lstat(path); err == nil || n.wal.Stats().LowWater {
		return
	}
	tmp := path + ".tmp"
	err := os.WriteFile(tmp, make([]byte, startReserveBytes), 0o600)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		n.log.Warn("no room for the reserve of a start", "error", err)
	}
}

// postponed tells of a checkpoint that found no space, once until one succeeds.
type postponed struct{ since time.Time }

func (p *postponed) note(n *Node, err error) {
	switch {
	case err != nil && p.since.IsZero():
		p.since = time.Now()
		n.log.Error("no space for a checkpoint; it is made once there is, and a start until then replays more of the log", "error", err)
	case err == nil && !p.since.IsZero():
		n.log.Info("checkpoints are made again", "after", time.Since(p.since).Round(time.Second).String())
		p.since = time.Time{}
	}
}
