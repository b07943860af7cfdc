package wal

import "path/filepath"

// retire lets go of a segment that left the chain, behind a mark that does not
// ask for it: its file is kept as a spare while there is room for one, so that
// the next segment overwrites blocks which the disk and the page cache have
// already (half the latency of new ones), else it is removed. A file that a
// reader still holds must not be written again: it is removed.
func (l *Log) retire(seg *segment) {
	held := seg.file.held() // once false it stays so: the segment is in no chain
	_ = seg.file.release()  // every write to it was synced, or is dead
	if seg.quarantine {
		l.putApart(seg.number, seg.path)
		return
	}
	if !held && seg.blocks == l.cfg.blocks() && l.recycle(seg.path) {
		return
	}
	l.removeFile(seg.path)
}

// recycle makes a dead segment file a spare. Its name must be durable before
// it is written to: the header of its next use in a file that comes back under
// its old name would be a generation that nobody counts.
func (l *Log) recycle(path string) bool {
	if l.cfg.Spares < 0 || len(l.prep.ready) >= l.cfg.Spares || l.usable() != nil {
		return false
	}
	to := filepath.Join(l.dir, spareName(l.prep.seq.Add(1)))
	if err := l.fs.Rename(path, to); err != nil {
		l.log.Warn("dropped log file is not used again", "file", path, "error", err)
		return false
	}
	if l.guard("recycle segment", func() error { return l.fs.SyncDir(l.dir) }) != nil {
		return true // the fuse blew and has told
	}
	select {
	case l.prep.ready <- spare{path: to, blocks: l.cfg.blocks()}:
		l.metrics.recycled.Inc()
	default: // one was made meanwhile
		l.removeFile(to)
	}
	return true
}
