package cluster

// LogMayGo is the index below which the log may go as far as snapshots and Raft are concerned: only what is needed or kept still
// holds it. 0 while there are fewer than two snapshots.
func (c *Cluster) LogMayGo() uint64 {
	behind, ok := c.snaps.behind()
	if !ok {
		return 0
	}
	return behind + 1
}

// snapshotDue is how much log must have come since the last snapshot for another: as much as the state itself is large, so that a
// node with a large state does not write it over and over.
func (c *Cluster) snapshotDue() int64 {
	due := c.cfg.SnapshotBytes
	if m := c.snaps.newest(); m != nil {
		due = max(due, m.size)
	}
	return due
}
