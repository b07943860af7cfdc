package cluster

import "time"

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

// quietLog finds out that a burst is over: then a snapshot is taken early, so that the log of the burst goes and a restart does not
// replay it.
type quietLog struct {
	since time.Time
	grown int64 // then
}

const (
	quietFor   = 10 * time.Second
	quietShare = 1024 // quiet: in that time the log grew by less than this part of a snapshot's interval
	quietWorth = 8    // worth a snapshot: a part of the interval has come since the last
)

// due is asked with every look; grown is what has come since the last snapshot.
func (q *quietLog) due(grown, interval int64) bool {
	if q.since.IsZero() || grown < q.grown || grown-q.grown > interval/quietShare {
		q.since, q.grown = time.Now(), grown
		return false
	}
	return grown >= interval/quietWorth && time.Since(q.since) >= quietFor
}
