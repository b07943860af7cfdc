package fsm

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"penstock/event"
	"penstock/fsm/command"
	"penstock/internal/spec"
)

// channel is one channel, with everything that hangs on it.
type channel struct {
	index     uint64 // creation index
	version   uint64
	canonical []byte // of the spec
	spec      spec.Channel

	seq        uint64 // sequence number of the last accepted event
	duplicates uint64
	poisoned   uint64 // accepted ones that no emitter can deliver
	bytes      uint64 // uncompressed, of all accepted events
	lastStamp  int64  // of the entry of the last accepted event

	emitters []*emitter // in the order of the spec
	points   points
	dedup    dedup
	carried  carried
	offsets  map[offsetID]*offset
	retired  []LedgerRow // of removed emitters, oldest first

	// entry is the entry being applied and entryPoint the point of its first event of this channel. Both mean nothing
	// between two entries and are no part of the state.
	entry      uint64
	entryPoint point

	rowSpec, rowTally, rowGenerations, rowRetired string
}

// offsetID names one source offset of a channel.
type offsetID struct{ source, partition string }

type offset struct {
	value event.SourceOffset
	row   string
}

func newChannel(index uint64) *channel {
	return &channel{
		index: index, offsets: map[offsetID]*offset{}, dedup: newDedup(),
		rowSpec: rowKey(tableChannel, index), rowTally: rowKey(tableTally, index),
		rowGenerations: rowKey(tableGenerations, index), rowRetired: rowKey(tableRetired, index),
	}
}

func (c *channel) emitter(index uint64) *emitter {
	for _, e := range c.emitters {
		if e.index == index {
			return e
		}
	}
	return nil
}

func (c *channel) emitterNamed(name string) *emitter {
	for _, e := range c.emitters {
		if e.name == name {
			return e
		}
	}
	return nil
}

// putChannel creates a channel or changes it to the given spec.
//
// The same canonical spec again changes nothing and keeps the version. Emitters are matched by name: one that stays keeps
// its creation index, owner, epoch and progress, whatever else of it changed, its kind included; a new one starts where its
// start says, resolved now; one that goes must have no pending or dead deliveries unless Discard says so. An emitter that
// changes or goes has its open run cut first (DESIGN 4.11).
func (s *state) putChannel(index uint64, p command.ChannelPut) command.ChannelResult {
	want, err := spec.ParseJSON(p.Spec)
	if err != nil || want.Name == "" {
		return command.ChannelResult{Status: command.Malformed, Message: fmt.Sprintf("spec: %v", err)}
	}
	c := s.names[want.Name]
	if res, refused := s.refusePut(c, &want, p); refused {
		return res
	}
	if c != nil && bytes.Equal(c.canonical, p.Spec) {
		return command.ChannelResult{Status: command.OK, Index: c.index, Version: c.version}
	}
	if c == nil {
		c = newChannel(s.create(index))
		c.spec.Name = want.Name
		s.insertChannel(c)
		s.mark(c.rowGenerations)
	}
	old := c.emitters
	c.spec, c.canonical, c.version = want, bytes.Clone(p.Spec), c.version+1
	// The old list stays in place until the new one is whole: new emitters start at or above the floor that it holds.
	next := make([]*emitter, 0, len(want.Emitters))
	for i := range want.Emitters {
		next = append(next, s.placeEmitter(index, c, &c.spec.Emitters[i]))
	}
	c.emitters = next
	for _, e := range old {
		if !slices.Contains(c.emitters, e) {
			s.retireEmitter(c, e)
		}
	}
	s.dropCarried(c, 1, c.seq)
	if !dedups(&c.spec) {
		// Keys kept from before would answer for events that were since accepted without a look at them.
		for len(c.dedup.generations) > 0 {
			s.dropGeneration(c)
		}
	}
	s.mark(c.rowSpec)
	s.mark(c.rowTally)
	return command.ChannelResult{Status: command.OK, Index: c.index, Version: c.version, Changed: true}
}

func (s *state) refusePut(c *channel, want *spec.Channel, p command.ChannelPut) (command.ChannelResult, bool) {
	var res command.ChannelResult
	var version uint64
	if c != nil {
		res.Index, res.Version, version = c.index, c.version, c.version
	}
	switch {
	case p.IfVersion != 0 && p.IfVersion != version:
		res.Status = command.VersionMismatch
		res.Message = fmt.Sprintf("the channel's version is %d, not %d", version, p.IfVersion)
	case len(want.Emitters) > maxEmitters:
		res.Status, res.Message = command.TooMany, fmt.Sprintf("more than %d emitters", maxEmitters)
	case c == nil && len(s.channels) >= maxChannels:
		res.Status, res.Message = command.TooMany, fmt.Sprintf("more than %d channels", maxChannels)
	case c != nil && !p.Discard:
		res.Message = blockers(c, func(e *emitter) bool {
			return !slices.ContainsFunc(want.Emitters, func(w spec.Emitter) bool { return w.Name == e.name })
		})
		if res.Message != "" {
			res.Status = command.HasDeliveries
		}
	}
	return res, res.Status != 0
}

// blockers names the emitters that would go and still have deliveries to lose; "" when there are none.
func blockers(c *channel, goes func(*emitter) bool) string {
	var all []string
	for _, e := range c.emitters {
		if l := e.ledger(); goes(e) && l.Pending+l.Dead+l.Poison > 0 {
			all = append(all, fmt.Sprintf("emitter %s has %d pending, %d dead and %d poison deliveries",
				e.name, l.Pending, l.Dead, l.Poison))
		}
	}
	return strings.Join(all, "; ")
}

// placeEmitter gives the emitter of that name, changed to the new spec, or a new one.
func (s *state) placeEmitter(index uint64, c *channel, want *spec.Emitter) *emitter {
	if e := c.emitterNamed(want.Name); e != nil {
		if !sameEmitter(&e.spec, want) {
			s.cutOpen(e)
			e.spec = *want
		}
		s.mark(e.rowProgress)
		return e
	}
	e := newEmitter(c, s.create(index), want.Name)
	e.spec = *want
	e.need = s.startPoint(c, want.Start)
	e.start = e.need.seq - 1
	e.low, e.cut = e.start, e.start
	s.mark(e.rowEmitter)
	s.mark(e.rowProgress)
	if c.seq > e.start {
		s.cutBacklog(e)
	}
	return e
}

// retireEmitter removes an emitter: its open run is cut, what is pending, dead or poison becomes discarded, and the ledger
// keeps its last row.
func (s *state) retireEmitter(c *channel, e *emitter) {
	s.cutOpen(e)
	row := e.ledger()
	row.Discarded += row.Pending + row.Dead + row.Poison
	row.Pending, row.Dead, row.Poison, row.Removed = 0, 0, 0, true
	c.retired = append(c.retired, row)
	if extra := len(c.retired) - maxRetired; extra > 0 {
		c.retired = slices.Delete(c.retired, 0, extra)
	}
	s.mark(c.rowRetired)
	s.forget(e)
}

// deleteChannel removes a channel and all that hangs on it.
func (s *state) deleteChannel(d command.ChannelDelete) command.ChannelResult {
	c := s.names[d.Name]
	if c == nil {
		return command.ChannelResult{Status: command.NoSuchChannel, Message: "no channel of that name"}
	}
	res := command.ChannelResult{Status: command.OK, Index: c.index, Version: c.version, Changed: true}
	if !d.Discard {
		if why := blockers(c, func(*emitter) bool { return true }); why != "" {
			res.Status, res.Changed, res.Message = command.HasDeliveries, false, why
			return res
		}
	}
	for _, e := range c.emitters {
		s.forget(e)
	}
	s.markChannel(c)
	s.removeChannel(c)
	return res
}

// markChannel marks every row of the channel but those of its emitters.
func (s *state) markChannel(c *channel) {
	for _, row := range []string{c.rowSpec, c.rowTally, c.rowGenerations, c.rowRetired} {
		s.mark(row)
	}
	for _, chunk := range c.points.chunks {
		s.mark(chunk.row)
	}
	for _, chunk := range c.dedup.chunks {
		s.mark(chunk.row)
	}
	for _, o := range c.offsets {
		s.mark(o.row)
	}
	for len(c.carried.runs) > 0 {
		s.removeCarried(c, len(c.carried.runs)-1)
	}
}

// mergeOffset commits a source offset (I7: it never goes down). The caller has checked the bound on partitions.
func (s *state) mergeOffset(c *channel, o *event.Offset) {
	id := offsetID{o.Source, o.Partition}
	have := c.offsets[id]
	if have == nil {
		have = &offset{value: o.SourceOffset, row: offsetRow(c.index, id)}
		c.offsets[id] = have
	}
	have.value = have.value.Merge(o.SourceOffset)
	s.mark(have.row)
}

func compareOffsets(a, b offsetID) int {
	return cmp.Or(strings.Compare(a.source, b.source), strings.Compare(a.partition, b.partition))
}

// byIndex are the emitters by creation index.
func (c *channel) byIndex() []*emitter {
	all := slices.Clone(c.emitters)
	slices.SortFunc(all, func(a, b *emitter) int { return cmp.Compare(a.index, b.index) })
	return all
}
