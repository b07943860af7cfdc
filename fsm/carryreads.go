package fsm

import (
	"cmp"
	"slices"

	"penstock/event"
	"penstock/fsm/command"
)

// CarriedRun is a run of a channel's events whose bytes lie in a carry command of another entry than they were committed in.
type CarriedRun struct {
	First, Last uint64 // sequence numbers
	Location    uint64 // entry of the carry command
	Spans       []command.Span
}

// Position is that of a sequence number of the run.
func (r *CarriedRun) Position(seq uint64) event.Position {
	at := r.First
	for _, x := range r.Spans {
		if seq < at+uint64(x.Count) {
			return event.Position{Index: x.Index, Ordinal: x.Ordinal + uint32(seq-at)}
		}
		at += uint64(x.Count)
	}
	return event.Position{}
}

// SeqAt gives the lowest sequence number of the run whose position is not below p; false when there is none.
func (r *CarriedRun) SeqAt(p event.Position) (uint64, bool) {
	at := r.First
	for _, x := range r.Spans {
		switch end := (event.Position{Index: x.Index, Ordinal: x.Ordinal + x.Count - 1}); {
		case p.Compare(x.Position) <= 0:
			return at, true
		case p.Compare(end) <= 0:
			return at + uint64(p.Ordinal-x.Ordinal), true
		}
		at += uint64(x.Count)
	}
	return 0, false
}

func (r *carriedRun) info() CarriedRun { // the spans are never written again
	return CarriedRun{First: r.first, Last: r.last(), Location: r.location, Spans: r.spans}
}

// Carried is the first carried run of a channel that ends at or after a sequence number. Its spans must not be written to.
func (m *Machine) Carried(channelIndex, seq uint64) (CarriedRun, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := m.mu.channels[channelIndex]
	if c == nil {
		return CarriedRun{}, false
	}
	i := c.carried.from(seq)
	if i == len(c.carried.runs) {
		return CarriedRun{}, false
	}
	return c.carried.runs[i].info(), true
}

// CarriedAt is the first carried run of a channel that ends at or after a position. Its spans must not be written to.
func (m *Machine) CarriedAt(channelIndex uint64, p event.Position) (CarriedRun, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := m.mu.channels[channelIndex]
	if c == nil {
		return CarriedRun{}, false
	}
	i, _ := slices.BinarySearchFunc(c.carried.runs, p, func(r *carriedRun, p event.Position) int { return lastOf(r.spans).Compare(p) })
	if i == len(c.carried.runs) {
		return CarriedRun{}, false
	}
	return c.carried.runs[i].info(), true
}

// CarriedTotal is how much is carried, over all channels.
type CarriedTotal struct{ Events, Bytes, Spans uint64 }

// CarriedTotal is how much is carried now, over all channels.
func (m *Machine) CarriedTotal() (t CarriedTotal) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	t.Spans = uint64(m.mu.locations.spans)
	for _, c := range m.mu.order {
		t.Bytes += c.carried.bytes
		for _, r := range c.carried.runs {
			t.Events += r.count
		}
	}
	return t
}

// Needed is a run of a channel's events that somebody still needs. Location is the entry of the carry command that holds their
// bytes; 0: they lie where they were committed.
type Needed struct {
	ChannelIndex, First, Last, Location uint64
}

// neededPiece bounds one Needed, in events.
const neededPiece = 4096

// NeededBelow gives at most limit runs of needed events that hold the floor below an index, by channel. The last one of a
// channel may reach beyond the index, up to the next point: as long as one of them lies where it was committed, the floor stays
// at the point before it. Once all of them are carried the floor is at or above the index.
func (m *Machine) NeededBelow(index uint64, limit int) (all []Needed) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, c := range m.mu.order {
		all = c.neededCarried(all, index, limit)
		all = c.neededPlain(all, index, limit)
		if len(all) >= limit {
			return all[:limit]
		}
	}
	return all
}

// neededCarried are the parts of carried runs that are needed and lie below index.
func (c *channel) neededCarried(all []Needed, index uint64, limit int) []Needed {
	for _, r := range c.carried.runs {
		if r.location >= index {
			continue
		}
		for _, x := range c.neededRanges(r.first, r.last(), limit) {
			all = append(all, Needed{ChannelIndex: c.index, First: x.First, Last: x.Last, Location: r.location})
		}
		if len(all) >= limit {
			break
		}
	}
	return all
}

// neededPlain are needed events that were not carried and may lie below index.
func (c *channel) neededPlain(all []Needed, index uint64, limit int) []Needed {
	if len(all) >= limit {
		return all
	}
	for first, end := uint64(1), c.seqBelow(index); first <= end; {
		// Stretches between two carried runs, so that what is carried does not use the limit up.
		last := end
		if i := c.carried.from(first); i < len(c.carried.runs) {
			if r := c.carried.runs[i]; r.first <= first {
				first = r.last() + 1
				continue
			}
			last = min(end, c.carried.runs[i].first-1)
		}
		for _, x := range c.neededRanges(first, last, limit) {
			all = append(all, Needed{ChannelIndex: c.index, First: x.First, Last: x.Last})
		}
		if len(all) >= limit {
			break
		}
		first = last + 1
	}
	return all
}

// seqBelow is at or above the last sequence number that lies below index, as far as the points tell.
func (c *channel) seqBelow(index uint64) uint64 {
	if p, ok := c.points.after(func(p *point) bool { return p.index < index }); ok {
		return p.seq - 1
	}
	return c.seq
}

// neededRanges are the needed ones of first..last as ascending ranges of at most neededPiece, at most limit of them.
func (c *channel) neededRanges(first, last uint64, limit int) []Run {
	var all []Run
	for _, e := range c.emitters {
		all = e.neededRanges(all, first, last, limit)
	}
	slices.SortFunc(all, func(a, b Run) int { return cmp.Compare(a.First, b.First) })
	var out []Run
	for _, r := range all {
		if n := len(out); n > 0 && r.First <= out[n-1].Last {
			r.First = out[n-1].Last + 1
		}
		if r.First <= r.Last {
			out = append(out, r)
		}
	}
	return out[:min(len(out), limit)]
}

func (e *emitter) neededRanges(all []Run, first, last uint64, limit int) []Run {
	g := ranges{all: all, from: len(all), most: len(all) + limit, first: max(first, e.start+1), last: last}
	if begin := max(first, e.low); begin <= last {
		e.runs.each(begin, func(r Run) bool {
			return r.First <= last && (e.hasAll(r.First, r.Last) || g.add(r.First, r.Last))
		})
	}
	if last > e.cut {
		g.add(e.cut+1, last)
	}
	for _, d := range e.letters[max(e.lettersAt(first)-1, 0):] {
		if d.first > last || len(g.all) >= g.most {
			break
		}
		for i := range d.letters {
			if seq := d.first + uint64(i); !d.letters[i].closed && first <= seq && seq <= last {
				g.add(seq, seq)
			}
		}
	}
	return g.all
}

// ranges gathers ranges of sequence numbers within first..last, up to most of them, those from `from` on its own.
type ranges struct {
	all         []Run
	from, most  int
	first, last uint64
}

// add adds lo..hi and tells whether there is room for more.
func (g *ranges) add(lo, hi uint64) bool {
	lo, hi = max(lo, g.first), min(hi, g.last)
	if n := len(g.all); n > g.from && g.all[n-1].Last+1 == lo && hi-g.all[n-1].First < neededPiece {
		g.all[n-1].Last = max(hi, g.all[n-1].Last)
		return true
	}
	for ; lo <= hi && len(g.all) < g.most; lo += neededPiece {
		g.all = append(g.all, Run{lo, min(hi, lo+neededPiece-1)})
	}
	return len(g.all) < g.most
}

// NeededEstimate is about how much of the log below an index somebody needs, and how much was accepted there in all, in
// uncompressed bytes: what tells whether carrying is worth it (DESIGN 4.8).
func (m *Machine) NeededEstimate(index uint64) (needed, total uint64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, c := range m.mu.order {
		for _, r := range c.carried.runs {
			if r.location < index {
				needed, total = needed+r.bytes, total+r.bytes
			}
		}
		end := c.seqBelow(index)
		first, ok := c.points.after(func(*point) bool { return false })
		if !ok || end < first.seq {
			continue
		}
		events, bytes := end-first.seq+1, c.bytesAt(end+1)-first.bytes
		most := uint64(0)
		for _, e := range c.emitters {
			most = max(most, e.pendingBelow(end))
		}
		needed, total = needed+min(most, events)*(bytes/events), total+bytes
	}
	return needed, total
}

// bytesAt is about how many bytes lie before a sequence number.
func (c *channel) bytesAt(seq uint64) uint64 {
	if seq > c.seq {
		return c.bytes
	}
	p, _ := c.points.find(func(p *point) bool { return p.seq <= seq })
	return p.bytes
}

// pendingBelow counts what of the deliveries up to end is pending or a dead letter, and not carried; a little too much.
func (e *emitter) pendingBelow(end uint64) uint64 {
	n := uint64(0)
	if at := e.frontier(); at < end {
		n = end - at
		n -= min(n, e.count)
	}
	for _, d := range e.letters {
		if d.first > end {
			break
		}
		for i := range d.letters {
			if !d.letters[i].closed && e.ch.carried.covers(d.first+uint64(i)) == nil {
				n++
			}
		}
	}
	return n
}
