package fsm

import (
	"math"
	"sort"
	"strconv"
)

// How dense the points are. More points cost memory (40 bytes each), fewer make a reader scan further from a point.
const (
	pointEvents   = 64          // a new point once so many events came since the last
	pointSpan     = 60 * second // or so much time by stamps, so that keep is not held up by a slow channel
	pointsPerRow  = 128
	noIndex       = math.MaxUint64
	startLatest   = "latest"
	startEarliest = "earliest"
)

// point says where a sequence number lies in the log: seq is the one the first accepted event of the channel in entry
// index got.
type point struct {
	seq, index uint64
	stamp      int64  // of that entry
	prev       int64  // stamp of the channel's last event before it
	bytes      uint64 // uncompressed bytes of all the channel's events before it
}

type pointChunk struct {
	points []point
	row    string
}

// points are a channel's sparse points, ascending in every field, from about the horizon to the tip.
type points struct{ chunks []*pointChunk }

func (p *points) last() (point, bool) {
	if len(p.chunks) == 0 {
		return point{}, false
	}
	c := p.chunks[len(p.chunks)-1].points
	return c[len(c)-1], true
}

// add appends a point and gives the row that changed.
func (p *points) add(channelIndex uint64, pt point) string {
	if n := len(p.chunks); n == 0 || len(p.chunks[n-1].points) == pointsPerRow {
		p.chunks = append(p.chunks, &pointChunk{row: rowKey(tablePoints, channelIndex, pt.seq)})
	}
	c := p.chunks[len(p.chunks)-1]
	c.points = append(c.points, pt)
	return c.row
}

// find gives the last point for which before is true; before must be true for a prefix of the points.
func (p *points) find(before func(*point) bool) (point, bool) {
	i := sort.Search(len(p.chunks), func(i int) bool { return !before(&p.chunks[i].points[0]) })
	if i == 0 {
		return point{}, false
	}
	c := p.chunks[i-1].points
	j := sort.Search(len(c), func(j int) bool { return !before(&c[j]) })
	return c[j-1], true
}

// after gives the first point for which before is false.
func (p *points) after(before func(*point) bool) (point, bool) {
	i := sort.Search(len(p.chunks), func(i int) bool {
		c := p.chunks[i].points
		return !before(&c[len(c)-1])
	})
	if i == len(p.chunks) {
		return point{}, false
	}
	c := p.chunks[i].points
	j := sort.Search(len(c), func(j int) bool { return !before(&c[j]) })
	return c[j], true
}

// prune drops the chunks that lie behind the horizon whole, and gives their rows. The last point at or below the horizon
// stays.
func (p *points) prune(horizon uint64) (rows []string) {
	for len(p.chunks) > 1 && p.chunks[1].points[0].index <= horizon {
		rows = append(rows, p.chunks[0].row)
		p.chunks[0] = nil
		p.chunks = p.chunks[1:]
	}
	return rows
}

// addPoint sets a point for the entry being applied when one is due.
func (s *state) addPoint(c *channel) {
	last, ok := c.points.last()
	switch {
	case ok && last.index == c.entry:
		return
	case ok && c.seq-last.seq < pointEvents && s.stamp-last.stamp < pointSpan:
		return
	}
	s.mark(c.points.add(c.index, c.entryPoint))
}

// pointAt is the greatest known point at or below seq. The emitters' own points count too: they are exact where an
// emitter became busy, and the only ones that are sure to lie at or above the floor.
func (c *channel) pointAt(seq uint64) (point, bool) {
	best, ok := c.points.find(func(p *point) bool { return p.seq <= seq })
	for _, e := range c.emitters {
		if e.frontier() < c.seq && e.need.seq <= seq && (!ok || e.need.seq > best.seq) {
			best, ok = e.need, true
		}
	}
	return best, ok
}

// tip is the point of the next event, whose entry is not known yet.
func (c *channel) tip() point {
	return point{seq: c.seq + 1, index: noIndex, bytes: c.bytes}
}

// startPoint resolves an emitter's start. Earliest is the first point at or above the floor: what lies below may be gone
// on some node. An index starts at the last point at or below it, so that a few events before it may come too, never one
// after it be missed; below the floor it is earliest.
func (s *state) startPoint(c *channel, start string) point {
	if start == startLatest || start == "" {
		return c.tip()
	}
	floor := s.floor()
	first, ok := c.points.after(func(p *point) bool { return p.index < floor })
	for _, e := range c.emitters {
		if e.frontier() < c.seq && e.need.index >= floor && (!ok || e.need.seq < first.seq) {
			first, ok = e.need, true
		}
	}
	if !ok {
		return c.tip()
	}
	index, err := strconv.ParseUint(start, 10, 64)
	if err != nil { // earliest
		return first
	}
	if at, found := c.points.find(func(p *point) bool { return p.index <= index }); found && at.seq > first.seq {
		first = at
	}
	return first
}
