package fsm

import (
	"fmt"

	"penstock/event"
	"penstock/fsm/command"
)

// batchFormat is the version of the event batch that this binary reads (docs/format/batch.md).
const batchFormat = 1

// entryState is what applying one entry has to remember between its commands.
type entryState struct {
	index   uint64
	batches int    // batch commands so far
	ordinal uint32 // of the next event
	rejects *EntryRejects
}

// reject notes that an event of the entry does not count.
func (s *state) reject(at *entryState) *EntryRejects {
	if at.rejects == nil {
		at.rejects = &EntryRejects{}
		s.rejects[at.index] = at.rejects
		s.rejectLine = append(s.rejectLine, at.index)
		s.mark(rowKey(tableRejects, at.index))
	}
	return at.rejects
}

// applyBatch takes the events of one request, or refuses them all. A refused batch is certainly not committed; its events
// keep their ordinals, so that positions follow from the log alone, and the reject bitmap tells readers to pass them over.
func (s *state) applyBatch(at *entryState, body []byte) (command.BatchResult, error) {
	if len(body) > 0 && body[0] != batchFormat {
		return command.BatchResult{}, fmt.Errorf("event batch version %d: %w", body[0], command.ErrUnknown)
	}
	number := at.batches
	at.batches++
	res := command.BatchResult{Status: command.OK, Index: at.index, FirstOrdinal: at.ordinal}
	b, err := event.DecodeBatch(body)
	if err != nil {
		s.reject(at).refuse(number, at.ordinal, 0)
		res.Status = command.Malformed
		return res, nil
	}
	res.Count = uint32(b.Len())
	at.ordinal += res.Count
	c := s.channels[b.Header().ChannelIndex]
	if status := s.admit(c, b); status != command.OK {
		s.reject(at).refuse(number, res.FirstOrdinal, res.Count)
		res.Status = status
		return res, nil
	}
	s.takeBatch(c, b, at, &res)
	return res, nil
}

// admit tells whether a batch may be applied at all.
func (s *state) admit(c *channel, b *event.Batch) command.Status {
	h := b.Header()
	switch {
	case c == nil:
		return command.NoSuchChannel
	case c.version != h.SpecVersion:
		return command.StaleSpec
	case h.Offset != nil && len(c.offsets) >= maxPartitions &&
		c.offsets[offsetID{h.Offset.Source, h.Offset.Partition}] == nil:
		return command.TooMany
	case dedups(&c.spec) && !s.makeRoom(c, b):
		return command.DedupFull
	}
	return command.OK
}

// takeBatch decides per event, in order: the first event of a producer id wins, inside the batch too, and a later one is a
// duplicate, in conflict when its content differs.
func (s *state) takeBatch(c *channel, b *event.Batch, at *entryState, res *command.BatchResult) {
	if c.entry != at.index {
		c.entry = at.index
		c.entryPoint = point{seq: c.seq + 1, index: at.index, stamp: s.stamp, prev: c.lastStamp, bytes: c.bytes}
	}
	remember := dedups(&c.spec)
	if remember {
		s.openGeneration(c)
		s.touched ^= c.dedup.touch(b)
	}
	before := c.seq
	gathering := s.wake(c)
	s.last = ""
	for i := range b.Len() {
		x := b.Envelope(i)
		p := event.Position{Index: at.index, Ordinal: res.FirstOrdinal + uint32(i)}
		keyed := remember && x.Flags&event.FlagServerID == 0
		if keyed {
			if first, ok := c.dedup.find(&x.DedupKey); ok {
				res.Dups = append(res.Dups, command.Dup{
					Ordinal: p.Ordinal, Of: first.position, Conflict: first.content != x.ContentHash,
				})
				s.reject(at).set(p.Ordinal)
				continue
			}
		}
		c.seq++
		c.bytes += uint64(x.Length)
		if keyed {
			s.remember(c, &x, p, c.seq)
		}
		if x.Flags&event.FlagPoison != 0 {
			res.Poisoned++
		}
		for _, e := range gathering {
			s.gather(e, uint64(x.Length))
		}
	}
	res.Accepted = uint32(c.seq - before)
	res.Duplicates = uint32(len(res.Dups))
	c.duplicates += uint64(res.Duplicates)
	c.poisoned += uint64(res.Poisoned)
	s.weight += int64(res.Accepted) * dedupWeight
	if c.seq > before {
		c.lastStamp = s.stamp
		s.settle(c, c.seq-before)
		s.addPoint(c)
	}
	if o := b.Header().Offset; o != nil {
		s.mergeOffset(c, o)
	}
	s.mark(c.rowTally)
}

// dedupWeight is about what an accepted event adds to the next checkpoint.
const dedupWeight = 64

// wake readies the emitters of a channel for new events: an open run past its linger is cut, an emitter with nothing left
// to do gets the entry being applied as its point. It gives the emitters whose runs are more than single events.
func (s *state) wake(c *channel) []*emitter {
	s.gathering = s.gathering[:0]
	for _, e := range c.emitters {
		if e.due(s.stamp) {
			s.cutOpen(e)
		}
		if e.frontier() == c.seq {
			e.need = c.entryPoint
			s.mark(e.rowProgress)
		}
		if !e.single() {
			s.gathering = append(s.gathering, e)
		}
	}
	return s.gathering
}

// settle brings the emitters up to date after a batch that accepted so many events.
func (s *state) settle(c *channel, accepted uint64) {
	for _, e := range c.emitters {
		switch {
		case e.single():
			s.gatherSingles(e, accepted)
		case e.spec.Compaction.Linger == 0:
			s.cutOpen(e)
		}
		s.mark(e.rowProgress)
	}
}
