package cluster

import (
	"context"
	"time"
)

// scrubShare of an interval is what one scrub may take.
const scrubShare = 10

// scrubs reads sealed segments and snapshots from the disk once in each interval, the first time one interval after the start (which
// has read them all), at a rate that takes about a tenth of it, and has repaired what it finds.
func (c *Cluster) scrubs(ctx context.Context) {
	for {
		select {
		case <-time.After(c.cfg.ScrubEvery):
		case <-ctx.Done():
			return
		}
		if err := c.repairLog.Scrub(ctx, c.cfg.ScrubEvery/scrubShare); err != nil && ctx.Err() == nil {
			c.logger.Error("scrub of the log", "error", err)
		}
		if len(c.repairLog.Damage()) > 0 {
			c.Mend(0)
		}
		c.snaps.scrub()
	}
}
