package fsm

import (
	"cmp"
	"slices"

	"penstock/event"
)

// Bounds that are the same on every node for ever: they decide what is accepted.
const (
	maxChannels   = 10_000
	maxEmitters   = 64
	maxPartitions = 65_536 // source offsets of one channel
	maxRetired    = 64     // removed emitters whose last ledger a channel remembers

	// Window is how many deliveries beyond its low-water mark an emitter may have outcomes for; beyond it that emitter
	// waits. It bounds retry state and the set of resolved deliveries (DESIGN 4.12).
	Window = 65_536

	// FeatureLevel is the highest feature level this binary knows.
	FeatureLevel = 1

	ringEvery  = 4096 // indexes between two hashes of the ring
	ringHashes = 64   // hashes kept
	second     = int64(1e9)
)

// state is everything the log has said so far. Only Apply changes it, and every change marks its row.
type state struct {
	tracker

	index, term uint64 // of the last applied entry
	stamp       int64  // of the last applied entry; never goes back
	horizon     uint64 // lowest readable index; never goes down
	created     uint64 // the last creation index given out

	cluster  cluster
	feature  uint64
	channels map[uint64]*channel // by creation index
	names    map[string]*channel
	order    []*channel // by creation index

	rejects    map[uint64]*EntryRejects
	rejectLine []uint64 // the keys of rejects, ascending

	audit   audit
	settled settled
	open    map[[16]byte]letterRef // open dead letters by id; follows from the rows

	locations locations // of carried events, over all channels; follows from the rows

	terms  termRing
	hashes []RingHash

	gathering []*emitter // scratch of wake
	touched   uint64     // what dedup.touch read; means nothing

	// owners is the index of the last entry that gave an emitter to a node, or where this process began; moved says that the
	// entry being applied did. Neither is part of the state.
	owners uint64
	moved  bool
}

// cluster is what ClusterInit said.
type cluster struct {
	set  bool
	id   [16]byte
	key  event.HashKey
	name string
}

func newState() *state {
	s := &state{
		tracker: newTracker(), channels: map[uint64]*channel{}, names: map[string]*channel{},
		rejects: map[uint64]*EntryRejects{}, audit: newAudit(), settled: newSettled(), open: map[[16]byte]letterRef{},
		locations: locations{counts: map[uint64]int{}},
	}
	for _, row := range metaRows {
		s.mark(row)
	}
	return s
}

// create gives out the next creation index: at least the index of the entry, and never one twice, however many channels
// and emitters one entry creates.
func (s *state) create(index uint64) uint64 {
	s.created = max(index, s.created+1)
	s.mark(rowCreated)
	return s.created
}

func (s *state) insertChannel(c *channel) {
	s.channels[c.index], s.names[c.spec.Name] = c, c
	at, _ := slices.BinarySearchFunc(s.order, c.index, func(c *channel, i uint64) int { return cmp.Compare(c.index, i) })
	s.order = slices.Insert(s.order, at, c)
}

func (s *state) removeChannel(c *channel) {
	delete(s.channels, c.index)
	delete(s.names, c.spec.Name)
	s.order = slices.DeleteFunc(s.order, func(o *channel) bool { return o == c })
}

// emitter finds an emitter by the creation indexes.
func (s *state) emitter(channelIndex, emitterIndex uint64) *emitter {
	c := s.channels[channelIndex]
	if c == nil {
		return nil
	}
	return c.emitter(emitterIndex)
}

// advance moves the state's clock to the stamp of the entry about to be applied, and once in a second of that clock does
// the housekeeping: old dedup generations go, intents without an outcome close, and the horizon moves up with what lies behind it. All of it follows from
// the state and the stamp alone.
func (s *state) advance(stamp int64) {
	before := s.stamp
	s.stamp = max(s.stamp, stamp)
	s.mark(rowClock)
	if before/second == s.stamp/second {
		return
	}
	for _, c := range s.order {
		s.expireDedup(c)
	}
	s.expireIntents()
	s.moveHorizon()
}
