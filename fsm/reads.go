package fsm

import (
	"slices"

	"penstock/event"
	"penstock/internal/spec"
)

// The reads. Each sees one applied index as a whole; two reads may see two. The specs they give share memory with the
// state and must not be written to; everything else is a copy.

// ChannelInfo is what is known of a channel.
type ChannelInfo struct {
	Name       string
	Index      uint64 // creation index
	Version    uint64 // of the spec
	Spec       spec.Channel
	Accepted   uint64
	Duplicates uint64
	Poisoned   uint64 // of the accepted ones
	Bytes      uint64 // uncompressed, of all accepted events
	Seq        uint64 // sequence number of the last accepted event

	DedupKeys   uint64
	DedupWindow int64 // effective: nanoseconds back to the oldest key remembered, at most the declared window
}

// EmitterInfo is what is known of an emitter.
type EmitterInfo struct {
	Channel                    string
	ChannelIndex, EmitterIndex uint64 // creation indexes
	ChannelVersion             uint64
	Emitter                    string
	Spec                       spec.Emitter
	Semantics                  spec.Semantics
	Order                      spec.Order
	OnKeyFailure               string
	Owner                      string
	Epoch                      uint64
	Paused                     bool
	StartSeq                   uint64 // its deliveries are the sequence numbers above it
	LowWater                   uint64 // every delivery up to it is resolved
	CutSeq                     uint64 // every delivery up to it is in a closed run
	NextSeq                    uint64 // the next event's
	Pending, Dead, Poison      uint64
	UnresolvedBytes            uint64 // uncompressed, from about the lowest pending delivery to the tip; a little too much
}

// LedgerRow is the balance of one emitter (P3): Accepted = the sum of all the others.
type LedgerRow struct {
	Emitter                                                     string
	EmitterIndex                                                uint64
	Accepted, Delivered, Dead, Poison, Discarded, Lost, Pending uint64
	Removed                                                     bool // no longer in the spec; its last balance
}

// Balanced tells whether the row balances.
func (l LedgerRow) Balanced() bool {
	return l.Accepted == l.Delivered+l.Dead+l.Poison+l.Discarded+l.Lost+l.Pending
}

// Point says where a sequence number lies in the log: Seq is the one that the first accepted event of the channel in entry
// Index got.
type Point struct{ Seq, Index uint64 }

// RingHash is the hash of the state before the first command at or past K*4096; Index is the entry applied last before it.
type RingHash struct {
	K, Index uint64
	Hash     string
}

// Found is an event in the dedup window.
type Found struct {
	ChannelIndex uint64
	Position     event.Position
	Seq          uint64
}

// SourceOffset is one source offset of a channel.
type SourceOffset struct {
	Source, Partition string
	Offset            event.SourceOffset
}

// Applied is the index and term of the last applied entry.
func (m *Machine) Applied() (index, term uint64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.index, m.mu.term
}

// OwnersIndex is an index such that a node that has applied it knows every move of an emitter applied here: that of the last
// one, or where this process began.
func (m *Machine) OwnersIndex() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.owners
}

// Stamp is the stamp of the last applied entry; it never goes back.
func (m *Machine) Stamp() int64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.stamp
}

// Err is the failure that ended the machine, if any.
func (m *Machine) Err() error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.err
}

// Changed gives a channel that is closed when the next entry has been applied. Ask again after, and read the state after
// asking, not before.
func (m *Machine) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.changed == nil {
		m.mu.changed = make(chan struct{})
	}
	return m.mu.changed
}

// ClusterID is the id of the cluster; false before ClusterInit was applied.
func (m *Machine) ClusterID() ([16]byte, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.cluster.id, m.mu.cluster.set
}

// ClusterName is the name given by ClusterInit.
func (m *Machine) ClusterName() string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.cluster.name
}

// HashKey is the cluster's key of dedup hashes; false before ClusterInit was applied.
func (m *Machine) HashKey() (event.HashKey, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.cluster.key, m.mu.cluster.set
}

// Feature is the feature level of the cluster.
func (m *Machine) Feature() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.feature
}

// Floor is the lowest index that is still needed; the applied index + 1 when none is. It never goes down.
func (m *Machine) Floor() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.floor()
}

// Horizon is the lowest index that may be read, at or below Floor. It never goes down and is the same on every node.
func (m *Machine) Horizon() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.horizon
}

// Hashes are the ring of state hashes, ascending.
func (m *Machine) Hashes() []RingHash {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Clone(m.mu.hashes)
}

// Channel finds a channel by name.
func (m *Machine) Channel(name string) (ChannelInfo, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := m.mu.names[name]
	if c == nil {
		return ChannelInfo{}, false
	}
	return c.info(m.mu.stamp), true
}

// ChannelByIndex finds a channel by creation index.
func (m *Machine) ChannelByIndex(index uint64) (ChannelInfo, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := m.mu.channels[index]
	if c == nil {
		return ChannelInfo{}, false
	}
	return c.info(m.mu.stamp), true
}

// Channels are all channels, sorted by name.
func (m *Machine) Channels() []ChannelInfo {
	m.mu.RLock()
	defer m.mu.RUnlock()
	all := make([]ChannelInfo, 0, len(m.mu.order))
	for _, c := range m.mu.byName() {
		all = append(all, c.info(m.mu.stamp))
	}
	return all
}

func (c *channel) info(stamp int64) ChannelInfo {
	info := ChannelInfo{
		Name: c.spec.Name, Index: c.index, Version: c.version, Spec: c.spec, Accepted: c.seq, Duplicates: c.duplicates,
		Poisoned: c.poisoned, Bytes: c.bytes, Seq: c.seq, DedupKeys: c.dedup.keys, DedupWindow: int64(c.spec.Dedup.Window),
	}
	// Only shorten makes the window smaller than declared, and then keys older than the oldest generation are gone.
	if c.spec.Dedup.OnFull == onFullShorten && c.dedup.shortened > 0 {
		info.DedupWindow = min(info.DedupWindow, stamp-c.dedup.shortened)
	}
	return info
}

// Emitters are all emitters, sorted by channel name and then as the spec has them.
func (m *Machine) Emitters() []EmitterInfo {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var all []EmitterInfo
	for _, c := range m.mu.byName() {
		for _, e := range c.emitters {
			all = append(all, e.info())
		}
	}
	return all
}

// Emitter finds an emitter by the creation indexes.
func (m *Machine) Emitter(channelIndex, emitterIndex uint64) (EmitterInfo, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e := m.mu.emitter(channelIndex, emitterIndex)
	if e == nil {
		return EmitterInfo{}, false
	}
	return e.info(), true
}

func (e *emitter) info() EmitterInfo {
	c, unresolved := e.ch, uint64(0)
	if e.frontier() < c.seq {
		unresolved = c.bytes - e.need.bytes
	}
	if e.held > 0 {
		unresolved += c.carried.bytes
	}
	return EmitterInfo{
		Channel: c.spec.Name, ChannelIndex: c.index, EmitterIndex: e.index, ChannelVersion: c.version, Emitter: e.name,
		Spec: e.spec, Semantics: c.spec.Semantics, Order: c.spec.Order, OnKeyFailure: c.spec.OnKeyFailure, Owner: e.owner,
		Epoch: e.epoch, Paused: e.paused, StartSeq: e.start, LowWater: e.low, CutSeq: e.cut, NextSeq: c.seq + 1,
		Pending: e.pending(), Dead: e.dead, Poison: e.poison, UnresolvedBytes: unresolved,
	}
}

// Ledger is the balance of a channel's emitters as the spec has them, and then of those removed, oldest first.
func (m *Machine) Ledger(name string) ([]LedgerRow, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := m.mu.names[name]
	if c == nil {
		return nil, false
	}
	rows := make([]LedgerRow, 0, len(c.emitters)+len(c.retired))
	for _, e := range c.emitters {
		rows = append(rows, e.ledger())
	}
	return append(rows, c.retired...), true
}

// Runs are at most limit closed compactions that end at or after fromSeq and still hold an unresolved delivery, in order.
func (m *Machine) Runs(channelIndex, emitterIndex, fromSeq uint64, limit int) []Run {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e := m.mu.emitter(channelIndex, emitterIndex)
	if e == nil || limit <= 0 || e.low >= e.cut {
		return nil
	}
	var all []Run
	e.runs.each(max(fromSeq, e.low+1), func(r Run) bool {
		if r.Last >= fromSeq && !e.hasAll(r.First, r.Last) {
			all = append(all, r)
		}
		return len(all) < limit
	})
	return all
}

// RunOf is the closed compaction that holds seq, as long as it is remembered: while it or one near it is unresolved.
func (m *Machine) RunOf(channelIndex, emitterIndex, seq uint64) (Run, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e := m.mu.emitter(channelIndex, emitterIndex)
	if e == nil {
		return Run{}, false
	}
	return e.runs.find(seq)
}

// Point is the greatest known point at or below seq. For a pending delivery it lies at or above the floor.
func (m *Machine) Point(channelIndex, seq uint64) (Point, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := m.mu.channels[channelIndex]
	if c == nil {
		return Point{}, false
	}
	p, ok := c.pointAt(seq)
	return Point{Seq: p.seq, Index: p.index}, ok
}

// PointAtIndex is the greatest known point of the channel at or below a log index: what lies at or after it can be
// numbered by reading on from it.
func (m *Machine) PointAtIndex(channelIndex, index uint64) (Point, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := m.mu.channels[channelIndex]
	if c == nil {
		return Point{}, false
	}
	p, ok := c.points.find(func(p *point) bool { return p.index <= index })
	return Point{Seq: p.seq, Index: p.index}, ok
}

// Resolved tells whether a delivery is resolved: delivered, dead, poison, lost or discarded. Sequence numbers that are no
// deliveries of the emitter count as resolved below its start.
func (m *Machine) Resolved(channelIndex, emitterIndex, seq uint64) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e := m.mu.emitter(channelIndex, emitterIndex)
	return e == nil || e.has(seq)
}

// Retry is what is known of the attempts at the run that begins with, or holds, first.
func (m *Machine) Retry(channelIndex, emitterIndex, first uint64) (RetryInfo, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e := m.mu.emitter(channelIndex, emitterIndex)
	if e == nil || len(e.retries) == 0 {
		return RetryInfo{}, false
	}
	run, ok := e.runs.find(first)
	if !ok {
		return RetryInfo{}, false
	}
	t := e.retries[run.First]
	if t == nil {
		return RetryInfo{}, false
	}
	return t.RetryInfo, true
}

// TickDue tells whether an open run is past its linger at that stamp. The leader then proposes a Tick.
func (m *Machine) TickDue(stamp int64) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, c := range m.mu.order {
		for _, e := range c.emitters {
			if e.due(stamp) {
				return true
			}
		}
	}
	return false
}

// Rejects says what does not count of entry index; false when all of it does. Below the horizon nothing is known.
func (m *Machine) Rejects(index uint64) (EntryRejects, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	r := m.mu.rejects[index]
	if r == nil {
		return EntryRejects{}, false
	}
	return EntryRejects{refused: slices.Clone(r.refused), bits: slices.Clone(r.bits)}, true
}

// Offset is a source offset; absent is absent, never zero.
func (m *Machine) Offset(channel, source, partition string) (event.SourceOffset, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := m.mu.names[channel]
	if c == nil {
		return event.SourceOffset{}, false
	}
	o := c.offsets[offsetID{source, partition}]
	if o == nil {
		return event.SourceOffset{}, false
	}
	return o.value, true
}

// Offsets are the source offsets of a channel, sorted by source and partition.
func (m *Machine) Offsets(channel string) []SourceOffset {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := m.mu.names[channel]
	if c == nil {
		return nil
	}
	all := make([]SourceOffset, 0, len(c.offsets))
	for id, o := range c.offsets {
		all = append(all, SourceOffset{Source: id.source, Partition: id.partition, Offset: o.value})
	}
	slices.SortFunc(all, func(a, b SourceOffset) int {
		return compareOffsets(offsetID{a.Source, a.Partition}, offsetID{b.Source, b.Partition})
	})
	return all
}

// Lookup finds events by the hash of their id (event.IDHashOf), in the dedup window only: newest last. Another id may have
// the same hash, so the caller compares the event.
func (m *Machine) Lookup(idHash uint64) []Found {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var all []Found
	for _, c := range m.mu.order {
		for _, chunk := range c.dedup.chunks {
			for i, id := range chunk.ids {
				if id == idHash {
					at := chunk.at(i)
					all = append(all, Found{ChannelIndex: c.index, Position: at.position, Seq: at.seq})
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Found) int { return a.Position.Compare(b.Position) })
	return all
}

// byName are the channels sorted by name.
func (s *state) byName() []*channel {
	all := slices.Clone(s.order)
	slices.SortFunc(all, func(a, b *channel) int {
		return compareOffsets(offsetID{source: a.spec.Name}, offsetID{source: b.spec.Name})
	})
	return all
}

// EmitterNamed finds an emitter of a channel by its name.
func (m *Machine) EmitterNamed(channelIndex uint64, name string) (EmitterInfo, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := m.mu.channels[channelIndex]
	if c == nil {
		return EmitterInfo{}, false
	}
	e := c.emitterNamed(name)
	if e == nil {
		return EmitterInfo{}, false
	}
	return e.info(), true
}
