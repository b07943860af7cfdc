package cluster

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/hashicorp/raft"
)

const (
	clockWait    = 300 * time.Millisecond // for a majority of wall clocks when a tenure begins
	clockAlarm   = 5 * time.Second        // a wall clock this far from the median is told
	wallByteSize = 8
)

// Now gives the cluster's time: on the leader the stamp of an entry made now, elsewhere this node's copy of it.
func (c *Cluster) Now() time.Time {
	return time.Unix(0, max(c.clock.read(), c.sm.Stamp()))
}

// startClock sets a new leader's clock: on from the last applied stamp, then forward to the median wall clock if a majority of the
// voters answers at once and agrees.
func (c *Cluster) startClock(t *tenure) {
	c.clock.lead(c.sm.Stamp())
	var others []string
	voters := 0
	for _, s := range t.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage == raft.Voter {
			voters++
			if string(s.ID) != c.cfg.NodeID {
				others = append(others, string(s.ID))
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.ctx, clockWait)
	defer cancel()
	answers := make(chan int64, len(others))
	for _, id := range others {
		c.wg.Go(func() {
			if b, err := c.client.call(ctx, laneControl, id, methodWall, nil); err == nil && len(b) == wallByteSize {
				answers <- int64(binary.LittleEndian.Uint64(b))
			}
		})
	}
	walls := []int64{time.Now().UnixNano()}
	for {
		if c.clock.jump(walls, voters) {
			return
		}
		select {
		case w := <-answers:
			walls = append(walls, w)
		case <-ctx.Done():
			c.logger.Warn("no majority of wall clocks agrees: the cluster's clock runs on from the last entry", "answers", len(walls), "voters", voters)
			return
		}
	}
}

func (c *Cluster) serveWall(context.Context, string, []byte) ([]byte, error) {
	return binary.LittleEndian.AppendUint64(nil, uint64(time.Now().UnixNano())), nil
}

// steerClock bends the leader's clock towards the median wall clock of the voters that reported lately, and tells when this node's own
// is far from it.
func (c *Cluster) steerClock() {
	t := c.tenure()
	if t == nil {
		return
	}
	now := time.Now()
	walls := []int64{now.UnixNano()}
	for _, s := range t.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter || string(s.ID) == c.cfg.NodeID {
			continue
		}
		if r, ok := c.table.get(string(s.ID)); ok && now.Sub(r.heard) < reportFresh {
			walls = append(walls, r.Wall+int64(now.Sub(r.heard)))
		}
	}
	c.clock.steer(walls)
	median, _ := medianOf(walls)
	off := time.Duration(walls[0] - median)
	c.metrics.clockDeviation.Set(off.Seconds())
	if far := off.Abs() > clockAlarm; far != c.clockFar.Swap(far) && far {
		c.logger.Error("this node's wall clock deviates from the others'", "by", off.Round(time.Millisecond).String())
	}
}
