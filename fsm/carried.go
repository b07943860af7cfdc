package fsm

import (
	"cmp"
	"slices"
	"sort"

	"penstock/event"
	"penstock/fsm/command"
	"penstock/fsm/internal/wire"
)

// MaxCarriedSpans bounds what the state machine remembers of carried events, about 24 bytes a span and 300 a run. Beyond it nothing more is
// carried, and the floor waits for deliveries alone.
const MaxCarriedSpans = 1 << 20

// carried are the events of one channel whose bytes were appended to the log again (DESIGN 4.8), as runs without gaps in
// sequence number. A run stays while somebody needs one of its events.
//
// Invariant: runs are ascending and do not overlap; positions rise with sequence numbers, so they ascend in both.
type carried struct {
	runs  []*carriedRun
	bytes uint64 // uncompressed, of all runs
}

// carriedRun is where events first.. were committed, and where their bytes lie now.
type carriedRun struct {
	first    uint64
	count    uint64
	spans    []command.Span
	location uint64 // entry of the carry command
	bytes    uint64 // uncompressed
	row      string
}

func (r *carriedRun) last() uint64 { return r.first + r.count - 1 }

// from gives the place of the first run that ends at or after seq.
func (c *carried) from(seq uint64) int {
	return sort.Search(len(c.runs), func(i int) bool { return c.runs[i].last() >= seq })
}

// covers gives the run that holds seq, or nil.
func (c *carried) covers(seq uint64) *carriedRun {
	if i := c.from(seq); i < len(c.runs) && c.runs[i].first <= seq {
		return c.runs[i]
	}
	return nil
}

// part is the spans of the sequence numbers lo..hi of the run.
func (r *carriedRun) part(lo, hi uint64) (spans []command.Span) {
	at := r.first
	for _, x := range r.spans {
		end := at + uint64(x.Count) - 1
		if from, to := max(at, lo), min(end, hi); from <= to {
			spans = append(spans, command.Span{
				Position: event.Position{Index: x.Index, Ordinal: x.Ordinal + uint32(from-at)}, Count: uint32(to - from + 1), Stamp: x.Stamp,
			})
		}
		at = end + 1
	}
	return spans
}

func lastOf(spans []command.Span) event.Position {
	x := spans[len(spans)-1]
	return event.Position{Index: x.Index, Ordinal: x.Ordinal + x.Count - 1}
}

// locations counts the carried runs by the entry that holds their bytes, so that the lowest such entry, which the floor must not
// pass, costs nothing to know.
type locations struct {
	order  []uint64 // ascending; those without runs go from the front
	counts map[uint64]int
	spans  int // of all runs
}

func (l *locations) add(r *carriedRun) {
	l.spans += len(r.spans)
	if l.counts[r.location]++; l.counts[r.location] > 1 {
		return
	}
	at, found := slices.BinarySearch(l.order, r.location)
	if !found {
		l.order = slices.Insert(l.order, at, r.location)
	}
}

func (l *locations) remove(r *carriedRun) {
	l.spans -= len(r.spans)
	if l.counts[r.location]--; l.counts[r.location] == 0 {
		delete(l.counts, r.location)
	}
	for len(l.order) > 0 && l.counts[l.order[0]] == 0 {
		l.order = l.order[1:]
	}
}

func (l *locations) lowest() uint64 {
	if len(l.order) == 0 {
		return noIndex
	}
	return l.order[0]
}

func (s *state) addCarried(c *channel, r *carriedRun) {
	r.row = rowKey(tableCarried, c.index, r.first)
	c.carried.runs = slices.Insert(c.carried.runs, c.carried.from(r.first), r)
	c.carried.bytes += r.bytes
	s.locations.add(r)
	s.mark(r.row)
}

func (s *state) removeCarried(c *channel, i int) {
	r := c.carried.runs[i]
	c.carried.runs = slices.Delete(c.carried.runs, i, i+1)
	c.carried.bytes -= r.bytes
	s.locations.remove(r)
	s.mark(r.row)
}

// applyCarry moves the bytes of events that are still needed, and lie where the proposer thought, to the entry being applied.
func (s *state) applyCarry(at *entryState, c command.Carry) command.PlainResult {
	ch := s.channels[c.ChannelIndex]
	if ch == nil {
		return command.PlainResult{Status: command.NoSuchChannel}
	}
	b, err := event.DecodeBatch(c.Body)
	n := command.CountSpans(c.Spans)
	last := c.First + n - 1
	if err != nil || n == 0 || uint64(b.Len()) != n || b.Header().ChannelIndex != ch.index || c.First == 0 || last > ch.seq ||
		last < c.First || lastOf(c.Spans).Index >= at.index {
		return command.PlainResult{Status: command.Malformed, Message: "carry"}
	}
	old, ok := ch.lies(&c, last)
	if !ok || !ch.needs(c.First, last) {
		return command.PlainResult{Status: command.NotNeeded}
	}
	if s.locations.spans+len(c.Spans) > MaxCarriedSpans {
		return command.PlainResult{Status: command.TooMany, Message: "carried events"}
	}
	if old != nil {
		s.removeCarried(ch, ch.carried.from(c.First))
		s.keepPart(ch, old, old.first, c.First-1)
		s.keepPart(ch, old, last+1, old.last())
	}
	s.addCarried(ch, &carriedRun{
		first: c.First, count: n, spans: slices.Clone(c.Spans), location: at.index, bytes: uint64(b.PayloadBytes()),
	})
	s.weight += int64(len(c.Spans)) * 32
	for _, e := range ch.emitters {
		s.moveNeed(e)
	}
	return command.PlainResult{Status: command.OK}
}

// lies tells whether the bytes of all events of a carry lie where it says, and gives the run that they are a part of if they
// were carried before.
func (c *channel) lies(x *command.Carry, last uint64) (old *carriedRun, ok bool) {
	i := c.carried.from(x.First)
	if i < len(c.carried.runs) && c.carried.runs[i].first <= last { // some were carried before: all must have been, together
		old = c.carried.runs[i]
		return old, old.first <= x.First && last <= old.last() && old.location == x.Old && slices.Equal(old.part(x.First, last), x.Spans)
	}
	before := i == 0 || lastOf(c.carried.runs[i-1].spans).Compare(x.Spans[0].Position) < 0
	after := i == len(c.carried.runs) || lastOf(x.Spans).Compare(c.carried.runs[i].spans[0].Position) < 0
	return nil, x.Old == 0 && before && after
}

// keepPart keeps lo..hi of a run that was taken apart, if somebody needs it.
func (s *state) keepPart(c *channel, r *carriedRun, lo, hi uint64) {
	if lo > hi || !c.needs(lo, hi) {
		return
	}
	n := hi - lo + 1
	s.addCarried(c, &carriedRun{
		first: lo, count: n, spans: r.part(lo, hi), location: r.location, bytes: r.bytes * n / r.count,
	})
}

// dropCarried forgets the runs among the sequence numbers first..last that nobody needs any more.
func (s *state) dropCarried(c *channel, first, last uint64) {
	for i := c.carried.from(first); i < len(c.carried.runs) && c.carried.runs[i].first <= last; {
		if r := c.carried.runs[i]; c.needs(r.first, r.last()) {
			i++
		} else {
			s.removeCarried(c, i)
		}
	}
}

// needs tells whether an event of first..last may still be asked for.
func (c *channel) needs(first, last uint64) bool {
	return slices.ContainsFunc(c.emitters, func(e *emitter) bool { return e.needs(first, last) })
}

// needs: a compaction is needed whole, for its id and its members, until all of it is resolved; a dead letter until it is closed.
func (e *emitter) needs(first, last uint64) bool {
	first = max(first, e.start+1)
	if first > last {
		return false
	}
	if last > e.cut || e.pendingRun(first, last) {
		return true
	}
	for _, d := range e.letters[max(e.lettersAt(first)-1, 0):] {
		if d.first > last {
			break
		}
		for i := range d.letters {
			if seq := d.first + uint64(i); !d.letters[i].closed && first <= seq && seq <= last {
				return true
			}
		}
	}
	return false
}

// pendingRun tells whether a closed run that has a part in first..last is not wholly resolved.
func (e *emitter) pendingRun(first, last uint64) (yes bool) {
	// What ends at or below low is resolved; the run that holds low may reach beyond it.
	e.runs.each(min(max(first, e.low), last), func(r Run) bool {
		if r.First > last {
			return false
		}
		yes = r.Last > e.low && !e.hasAll(r.First, r.Last)
		return !yes
	})
	return yes
}

// frontier: nothing up to it is needed of the log where it was committed, if all of the channel is.
func (e *emitter) frontier() uint64 { return max(e.low, e.held) }

// base is the last sequence number before the run that holds the lowest unresolved delivery.
func (e *emitter) base() uint64 {
	if r, ok := e.runs.find(e.low + 1); ok && r.First <= e.low {
		return r.First - 1
	}
	return e.low
}

// moveNeed finds the lowest delivery whose bytes are needed where they were committed: what is resolved or carried before it
// does not hold the floor. Called after whatever resolves or carries.
func (s *state) moveNeed(e *emitter) {
	base := e.base()
	at := base
	if len(e.ch.carried.runs) > 0 {
		for at = max(at, e.held); at < e.ch.seq; {
			if r := e.ch.carried.covers(at + 1); r != nil {
				at = r.last()
			} else if r, ok := e.runs.find(at + 1); ok && e.hasAll(r.First, r.Last) {
				at = r.Last
			} else {
				break
			}
		}
	}
	if at == base {
		at = 0
	}
	if at != e.held {
		e.held = at
		s.mark(rowKey(tableHeld, e.ch.index, e.index))
	}
	if p, ok := e.ch.points.find(func(p *point) bool { return p.seq <= max(base, at)+1 }); ok && p.seq > e.need.seq {
		e.need = p
		s.mark(e.rowProgress)
	}
}

func (c *channel) appendCarried(dst []byte, first uint64) ([]byte, bool) {
	i, ok := slices.BinarySearchFunc(c.carried.runs, first, func(r *carriedRun, f uint64) int { return cmp.Compare(r.first, f) })
	if !ok {
		return dst, false
	}
	r := c.carried.runs[i]
	dst = wire.AppendUint(wire.AppendUint(dst, r.location), r.bytes)
	return command.AppendSpans(dst, r.spans), true
}

func (s *state) readCarried(c *channel, row string, first uint64, in *wire.Reader) {
	r := &carriedRun{first: first, row: row, location: in.Uint(), bytes: in.Uint(), spans: command.ReadSpans(in)}
	if r.count = command.CountSpans(r.spans); in.Err() != nil || r.count == 0 {
		in.Fail("no carried events")
		return
	}
	c.carried.runs = append(c.carried.runs, r)
	c.carried.bytes += r.bytes
	s.locations.add(r)
}

// dropCarriedOf forgets the carried runs that outcomes of the emitter ended: those of their whole compactions.
func (s *state) dropCarriedOf(e *emitter, all []command.Outcome) {
	for i := 0; i < len(all) && len(e.ch.carried.runs) > 0; i++ {
		first, last := all[i].First, all[i].Last
		if r, ok := e.runs.find(first); ok {
			first = r.First
		}
		if r, ok := e.runs.find(last); ok {
			last = r.Last
		}
		s.dropCarried(e.ch, first, last)
	}
}
