package fsm

import (
	"reflect"

	"penstock/fsm/command"
	"penstock/internal/spec"
)

// emitter is one destination of a channel and how far it is. Its deliveries are the channel's sequence numbers above
// start; those up to cut belong to closed runs, those above it to the open run; resolvedSet says which are resolved.
//
// Invariants: start <= low <= ... <= cut <= ch.seq, and the open run is cut+1..ch.seq.
type emitter struct {
	ch    *channel
	index uint64 // creation index
	name  string
	spec  spec.Emitter

	owner  string
	epoch  uint64
	paused bool
	start  uint64

	resolvedSet
	cut  uint64
	open openRun
	runs runs

	// need is a point at or below the lowest delivery that the log must still hold where it was committed: of the run of the
	// lowest unresolved one, or of the lowest that is not carried. While there is none it means nothing. It is what the floor
	// waits for, and only moves up.
	need point
	// held: every delivery up to it is resolved or carried; 0 when that says no more than low does.
	held uint64

	delivered, dead, poison, discarded, lost uint64

	retries map[uint64]*retry // by the first sequence number of the run
	letters []*deadRun        // ascending
	claims  map[uint64]*claim // replays under way, by sequence number

	rowEmitter, rowProgress string
}

// openRun is what is gathered since the last cut: how much, and since when by the stamp of its first event.
type openRun struct {
	events, bytes uint64
	since         int64
}

func newEmitter(c *channel, index uint64, name string) *emitter {
	return &emitter{
		ch: c, index: index, name: name,
		resolvedSet: resolvedSet{blocks: map[uint64]*block{}}, retries: map[uint64]*retry{},
		claims:      map[uint64]*claim{},
		rowEmitter:  rowKey(tableEmitter, c.index, index),
		rowProgress: rowKey(tableProgress, c.index, index),
	}
}

func sameEmitter(a, b *spec.Emitter) bool { return reflect.DeepEqual(a, b) }

// pending counts from the set itself, not from the counters, so that the ledger can be checked against it (I5).
func (e *emitter) pending() uint64 { return e.ch.seq - e.low - e.count }

func (e *emitter) ledger() LedgerRow {
	return LedgerRow{
		Emitter: e.name, EmitterIndex: e.index, Accepted: e.ch.seq - e.start, Delivered: e.delivered, Dead: e.dead,
		Poison: e.poison, Discarded: e.discarded, Lost: e.lost, Pending: e.pending(),
	}
}

// markEmitter marks every row of the emitter.
func (s *state) markEmitter(e *emitter) {
	s.mark(e.rowEmitter)
	s.mark(e.rowProgress)
	for _, b := range e.blocks {
		s.mark(b.row)
	}
	for _, c := range e.runs.chunks {
		s.mark(c.row)
	}
	for _, r := range e.retries {
		s.mark(r.row)
	}
	for _, d := range e.letters {
		s.mark(d.row)
	}
	s.mark(rowKey(tableHeld, e.ch.index, e.index))
}

// forget ends what others hold of an emitter that goes: claims, and the ids of its dead letters.
func (s *state) forget(e *emitter) {
	s.endClaims(e, "the emitter was removed")
	for _, d := range e.letters {
		for i := range d.letters {
			delete(s.open, letterID(e.ch.index, e.index, d.letters[i].position))
		}
	}
	s.markEmitter(e)
}

// cutOpen closes the open run.
func (s *state) cutOpen(e *emitter) {
	if e.open.events == 0 {
		return
	}
	s.mark(e.runs.add(e, e.cut+1, e.open.events, 1))
	s.mark(e.rowProgress)
	e.cut += e.open.events
	e.open = openRun{}
}

// due tells whether the open run is past its linger.
func (e *emitter) due(stamp int64) bool {
	return e.open.events > 0 && stamp-e.open.since >= int64(e.spec.Compaction.Linger)
}

// gather adds one accepted event, of so many bytes, to the open run and cuts where the bounds say.
func (s *state) gather(e *emitter, bytes uint64) {
	limit := &e.spec.Compaction
	if limit.Bytes > 0 && e.open.events > 0 && e.open.bytes+bytes > uint64(limit.Bytes) {
		s.cutOpen(e)
	}
	if e.open.events == 0 {
		e.open.since = s.stamp
	}
	e.open.events++
	e.open.bytes += bytes
	if e.open.events >= uint64(max(limit.Events, 1)) || (limit.Bytes > 0 && e.open.bytes >= uint64(limit.Bytes)) {
		s.cutOpen(e)
	}
}

// gatherSingles adds count accepted events to an emitter whose runs are single events.
func (s *state) gatherSingles(e *emitter, count uint64) {
	s.cutOpen(e)
	s.mark(e.runs.add(e, e.cut+1, 1, count))
	e.cut += count
}

// single tells whether every event is a run of its own.
func (e *emitter) single() bool { return e.spec.Compaction.Events <= 1 }

// cutBacklog cuts the events between start and the tip for an emitter that starts in the past. The sizes of single events
// are not known any more, only those between points: a stretch over the bound by bytes is cut evenly.
func (s *state) cutBacklog(e *emitter) {
	c := e.ch
	if e.single() {
		s.mark(e.runs.add(e, e.cut+1, 1, c.seq-e.cut))
		e.cut = c.seq
		return
	}
	from := e.need
	for from.seq <= c.seq {
		to, ok := c.points.after(func(p *point) bool { return p.seq <= from.seq })
		if !ok {
			to = c.tip()
		}
		s.gatherStretch(e, to.seq-from.seq, to.bytes-from.bytes)
		from = to
	}
	s.cutOpen(e)
}

// gatherStretch adds a stretch of events of which only the total size is known.
func (s *state) gatherStretch(e *emitter, events, bytes uint64) {
	limit, most := &e.spec.Compaction, uint64(max(e.spec.Compaction.Events, 1))
	if e.open.events+events > most || (limit.Bytes > 0 && e.open.bytes+bytes > uint64(limit.Bytes)) {
		s.cutOpen(e)
	}
	part := min(events, most)
	if limit.Bytes > 0 && bytes > uint64(limit.Bytes) {
		parts := min((bytes+uint64(limit.Bytes)-1)/uint64(limit.Bytes), events)
		part = min(part, max(events/parts, 1))
	}
	average := bytes / events
	for events > 0 {
		n := min(part, events)
		e.open.events += n
		e.open.bytes += average * n
		e.open.since = s.stamp
		if events -= n; events > 0 {
			s.cutOpen(e)
		}
	}
}

// tick closes the open runs past their linger.
func (s *state) tick() {
	for _, c := range s.order {
		for _, e := range c.emitters {
			if e.due(s.stamp) {
				s.cutOpen(e)
			}
		}
	}
}

// assign gives emitters to nodes. Each item counts alone; the answer is StaleEpoch or NoSuchEmitter if any was refused.
func (s *state) assign(a command.Assign) command.PlainResult {
	res := command.PlainResult{Status: command.OK}
	for _, item := range a.Items {
		e := s.emitter(item.ChannelIndex, item.EmitterIndex)
		switch {
		case e == nil:
			res.Status = command.NoSuchEmitter
		case e.epoch != item.IfEpoch:
			res.Status = command.StaleEpoch
		default:
			s.endClaims(e, "the emitter got another owner")
			e.owner = item.Node
			e.epoch++
			s.moved = true
			s.mark(e.rowEmitter)
		}
	}
	return res
}

func (s *state) pause(p command.EmitterPause) command.PlainResult {
	e := s.emitter(p.ChannelIndex, p.EmitterIndex)
	if e == nil {
		return command.PlainResult{Status: command.NoSuchEmitter}
	}
	if e.paused != p.Paused {
		e.paused = p.Paused
		s.mark(e.rowEmitter)
	}
	return command.PlainResult{Status: command.OK}
}
