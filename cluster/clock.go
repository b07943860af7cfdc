package cluster

import (
	"slices"
	"sync"
	"time"
)

const (
	maxSlew     = 0.10             // how much faster or slower than monotonic time the clock may run
	slewHorizon = 10 * time.Second // a deviation of this much is made up at full slew
	jumpAgree   = 5 * time.Second  // how close a majority of wall clocks must be for a new leader to jump
)

// stampClock is the cluster's time (DESIGN 4.15). On a leader it runs on from the last applied stamp with monotonic time, bent by at
// most a tenth towards the median wall clock of the voters that answer; only a new leader may jump, forward. On the others it follows
// the leader's. It never goes backwards, and no node's own wall clock decides anything.
type stampClock struct {
	now func() time.Time // monotonic

	mu   sync.Mutex
	at   int64     // the time at ref
	ref  time.Time // monotonic
	rate float64
	last int64 // highest time given out
}

func newStampClock(now func() time.Time) *stampClock {
	return &stampClock{now: now, ref: now(), rate: 1}
}

func (c *stampClock) readLocked() int64 {
	elapsed := float64(c.now().Sub(c.ref)) * c.rate
	return c.at + int64(elapsed)
}

func (c *stampClock) setLocked(at int64) {
	c.at, c.ref = at, c.now()
}

// read gives the time; it is the same or later at each call.
func (c *stampClock) read() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last, c.readLocked())
	return c.last
}

// lead starts a leader's clock at the last applied stamp, or where this node's copy of the last leader's clock is, if that is later.
func (c *stampClock) lead(applied int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setLocked(max(applied, c.readLocked()))
	c.rate = 1
}

// jump moves a new leader's clock forward to the median of walls, when a majority of the voters is within jumpAgree of it. It reports
// whether there was such a majority.
func (c *stampClock) jump(walls []int64, voters int) bool {
	median, near := medianOf(walls)
	if near < voters/2+1 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if median > c.readLocked() {
		c.setLocked(median)
	}
	return true
}

// steer bends a leader's clock towards the median of walls.
func (c *stampClock) steer(walls []int64) {
	if len(walls) == 0 {
		return
	}
	median, _ := medianOf(walls)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bendLocked(median)
}

func (c *stampClock) bendLocked(target int64) {
	now := c.readLocked()
	c.setLocked(now)
	off := float64(target-now) / float64(slewHorizon)
	c.rate = 1 + max(-maxSlew, min(maxSlew, off*maxSlew))
}

// follow takes over the leader's clock, seen a moment ago: at once when it is far ahead, by slewing otherwise.
func (c *stampClock) follow(leader int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if leader-c.readLocked() > int64(time.Second) {
		c.setLocked(leader)
	}
	c.bendLocked(leader)
}

// medianOf gives the lower median, and how many values are within jumpAgree of it.
func medianOf(walls []int64) (median int64, near int) {
	if len(walls) == 0 {
		return 0, 0
	}
	sorted := slices.Clone(walls)
	slices.Sort(sorted)
	median = sorted[(len(sorted)-1)/2]
	for _, w := range sorted {
		if d := w - median; d <= int64(jumpAgree) && d >= -int64(jumpAgree) {
			near++
		}
	}
	return median, near
}
