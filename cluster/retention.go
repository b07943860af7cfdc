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
