package fsm

import (
	"encoding/binary"
	"math"

	"penstock/event"
	"penstock/internal/spec"
)

// dedup is what a channel remembers of producer ids.
//
// Keys are appended to chunks of at most chunkKeys, in the order of the log; a chunk that is full or whose generation is
// closed never changes again, so that a checkpoint writes it once. Chunks belong to generations of a sixteenth of the
// window, which are dropped whole. Over the chunks lies an index, an open hash table in shards, rebuilt from them at load:
// a slot holds 32 bits of the key and a reference (chunk number, place). Slots of dropped chunks are not erased, only seen
// to be dead, and go when their shard is rebuilt; so dropping a generation costs nothing at the moment it happens.
//
// A key costs 44 bytes in its chunk and about 13 in the index.
type dedup struct {
	chunks      []*dedupChunk // live ones, numbers without gaps
	firstChunk  uint64        // number of chunks[0], or of the next one when there is none
	generations []generation  // oldest first; the last one is open unless closed
	closed      bool          // the last generation takes no more keys
	keys        uint64        // live keys
	shortened   int64         // stamp up to which keys were dropped before their time, by on_full: shorten; 0 = never
	shards      []dedupShard  // nil until the first key
}

const (
	chunkKeys    = 4096
	chunkNumbers = 1 << 20 // references hold a chunk number modulo this
	dedupShards  = 256
	windowParts  = 16 // generations in a window
)

// generation is the keys of one stretch of stamps.
type generation struct {
	from, to int64 // stamps of its first and its last key
	chunks   uint64
	keys     uint64
}

// dedupChunk keeps fields apart, so that no padding is paid. index and seq are differences to the chunk's base.
type dedupChunk struct {
	number             uint64
	baseIndex, baseSeq uint64
	keys               [][16]byte
	ids, contents      []uint64
	index, ordinal     []uint32
	seq                []uint32
	row                string
}

type dedupShard struct {
	slots []uint64 // 0 = empty; high half: bits of the key, never 0; low half: reference
	used  int      // slots not empty, dead ones included
}

func newDedup() dedup { return dedup{} }

// seen is what is remembered of one key.
type seen struct {
	position event.Position
	content  uint64
	seq      uint64
}

// grow makes room for n keys.
func (c *dedupChunk) grow(n int) {
	c.keys = make([][16]byte, 0, n)
	c.ids, c.contents = make([]uint64, 0, n), make([]uint64, 0, n)
	c.index, c.ordinal, c.seq = make([]uint32, 0, n), make([]uint32, 0, n), make([]uint32, 0, n)
}

func (c *dedupChunk) at(i int) seen {
	return seen{
		position: event.Position{Index: c.baseIndex + uint64(c.index[i]), Ordinal: c.ordinal[i]},
		content:  c.contents[i], seq: c.baseSeq + uint64(c.seq[i]),
	}
}

func tagOf(key *[16]byte) uint64   { return uint64(binary.LittleEndian.Uint32(key[1:])|1) << 32 }
func shardOf(key *[16]byte) int    { return int(key[0]) }
func startOf(key *[16]byte) uint64 { return binary.LittleEndian.Uint64(key[8:]) }

// entry follows a slot to its key; nil when the chunk is gone.
func (d *dedup) entry(slot uint64) (*dedupChunk, int) {
	i := (slot>>12&(chunkNumbers-1) - d.firstChunk) & (chunkNumbers - 1)
	if i >= uint64(len(d.chunks)) {
		return nil, 0
	}
	c, at := d.chunks[i], int(slot&(chunkKeys-1))
	if at >= len(c.keys) {
		return nil, 0 // the slot is from an older chunk of the same number
	}
	return c, at
}

func (d *dedup) find(key *[16]byte) (seen, bool) {
	if d.shards == nil {
		return seen{}, false
	}
	slots := d.shards[shardOf(key)].slots
	if len(slots) == 0 {
		return seen{}, false
	}
	mask, tag := uint64(len(slots)-1), tagOf(key)
	for i := startOf(key) & mask; slots[i] != 0; i = (i + 1) & mask {
		if slots[i]&^uint64(math.MaxUint32) != tag {
			continue
		}
		if c, at := d.entry(slots[i]); c != nil && c.keys[at] == *key {
			return c.at(at), true
		}
	}
	return seen{}, false
}

// insert puts a reference into the index. The key must not be in it.
func (d *dedup) insert(key *[16]byte, number uint64, at int) {
	if d.shards == nil {
		d.shards = make([]dedupShard, dedupShards)
	}
	sh := &d.shards[shardOf(key)]
	if (sh.used+1)*4 > len(sh.slots)*3 {
		d.rebuild(sh)
	}
	sh.put(key, tagOf(key)|(number&(chunkNumbers-1))<<12|uint64(at))
}

func (sh *dedupShard) put(key *[16]byte, slot uint64) {
	mask := uint64(len(sh.slots) - 1)
	i := startOf(key) & mask
	for sh.slots[i] != 0 {
		i = (i + 1) & mask
	}
	sh.slots[i] = slot
	sh.used++
}

// rebuild gives a shard room for as many keys as it has live ones again, and drops its dead slots.
func (d *dedup) rebuild(sh *dedupShard) {
	old, live := sh.slots, 0
	for _, slot := range old {
		if c, _ := d.entry(slot); slot != 0 && c != nil {
			live++
		}
	}
	sh.slots, sh.used = make([]uint64, roomFor(live)), 0
	for _, slot := range old {
		if slot == 0 {
			continue
		}
		if c, at := d.entry(slot); c != nil {
			sh.put(&c.keys[at], slot)
		}
	}
}

// indexPasses: each pass over the keys fills so small a part of the index that it stays in the processor's cache. In one pass nearly
// every key would miss it: 10 million took 5 s, and take 1 s so.
const indexPasses = 16

// index builds the index over the chunks anew, each shard with its final size.
func (d *dedup) index() {
	if d.keys == 0 {
		return
	}
	counts := make([]int, dedupShards)
	for _, c := range d.chunks {
		for at := range c.keys {
			counts[shardOf(&c.keys[at])]++
		}
	}
	d.shards = make([]dedupShard, dedupShards)
	for i, n := range counts {
		if n > 0 {
			size := 8
			for size*3 < (n+1)*4 { // what insert would have come to
				size *= 2
			}
			d.shards[i].slots = make([]uint64, size)
		}
	}
	for pass := range indexPasses {
		lo, hi := pass*dedupShards/indexPasses, (pass+1)*dedupShards/indexPasses
		for _, c := range d.chunks {
			base := (c.number & (chunkNumbers - 1)) << 12
			for at := range c.keys {
				key := &c.keys[at]
				if i := shardOf(key); i >= lo && i < hi {
					d.shards[i].put(key, tagOf(key)|base|uint64(at))
				}
			}
		}
	}
}

// touch reads the slots that the keys of a batch begin at. The reads do not wait for one another, so that the processor fetches
// many at once; find and put, one key after the other, would wait for the memory at each when there are millions of keys.
func (d *dedup) touch(b *event.Batch) (all uint64) {
	if d.shards == nil {
		return 0
	}
	for i := range b.Len() {
		x := b.Envelope(i)
		if slots := d.shards[shardOf(&x.DedupKey)].slots; len(slots) > 0 {
			all ^= slots[startOf(&x.DedupKey)&uint64(len(slots)-1)]
		}
	}
	return all
}

// roomFor is the number of slots for so many live keys, and some more to come.
func roomFor(n int) int {
	size := 8
	for size < (n+1)*2 {
		size *= 2
	}
	return size
}

// remember remembers a key. The caller has opened a generation.
func (s *state) remember(c *channel, x *event.Envelope, p event.Position, seq uint64) {
	d := &c.dedup
	g := &d.generations[len(d.generations)-1]
	chunk := d.openChunk(g, p.Index, seq)
	if chunk == nil {
		number := d.firstChunk + uint64(len(d.chunks))
		chunk = &dedupChunk{number: number, baseIndex: p.Index, baseSeq: seq, row: rowKey(tableDedup, c.index, number)}
		if g.chunks > 0 { // the one before is full, and so will this one be: all of its room at once, and no more than that
			chunk.grow(chunkKeys)
		}
		d.chunks = append(d.chunks, chunk)
		g.chunks++
	}
	d.insert(&x.DedupKey, chunk.number, len(chunk.keys))
	chunk.keys = append(chunk.keys, x.DedupKey)
	chunk.ids = append(chunk.ids, x.IDHash)
	chunk.contents = append(chunk.contents, x.ContentHash)
	chunk.index = append(chunk.index, uint32(p.Index-chunk.baseIndex))
	chunk.ordinal = append(chunk.ordinal, p.Ordinal)
	chunk.seq = append(chunk.seq, uint32(seq-chunk.baseSeq))
	g.to, g.keys, d.keys = s.stamp, g.keys+1, d.keys+1
	if len(chunk.keys) == 1 || s.last != chunk.row {
		s.mark(chunk.row)
		s.last = chunk.row
	}
}

// openChunk is the chunk that takes the next key, or nil when a new one must begin.
func (d *dedup) openChunk(g *generation, index, seq uint64) *dedupChunk {
	if g.chunks == 0 {
		return nil
	}
	c := d.chunks[len(d.chunks)-1]
	if len(c.keys) == chunkKeys || index-c.baseIndex > math.MaxUint32 || seq-c.baseSeq > math.MaxUint32 {
		return nil
	}
	return c
}

// openGeneration makes the last generation one that takes keys at the state's stamp. A generation is closed when it spans
// a sixteenth of the window, or holds a sixteenth of the keys allowed (so that shorten has something small to drop).
func (s *state) openGeneration(c *channel) {
	d, limit := &c.dedup, &c.spec.Dedup
	if n := len(d.generations); n > 0 && !d.closed {
		g := &d.generations[n-1]
		full := limit.MaxKeys > 0 && g.keys >= max(uint64(limit.MaxKeys)/windowParts, 1)
		d.closed = full || s.stamp-g.from >= max(int64(limit.Window)/windowParts, 1)
	}
	if len(d.generations) == 0 || d.closed {
		d.generations = append(d.generations, generation{from: s.stamp, to: s.stamp})
		d.closed = false
	}
	s.mark(c.rowGenerations)
}

// expireDedup drops the generations that are wholly older than the window.
func (s *state) expireDedup(c *channel) {
	d := &c.dedup
	for len(d.generations) > 0 && d.generations[0].to+int64(c.spec.Dedup.Window) < s.stamp {
		s.dropGeneration(c)
	}
}

// dropGeneration drops the oldest one.
func (s *state) dropGeneration(c *channel) {
	d := &c.dedup
	g := d.generations[0]
	for i := range g.chunks {
		s.mark(d.chunks[i].row)
		d.chunks[i] = nil
	}
	d.chunks, d.firstChunk = d.chunks[g.chunks:], d.firstChunk+g.chunks
	d.keys -= g.keys
	if d.generations = d.generations[1:]; len(d.generations) == 0 {
		d.closed = false
	}
	s.mark(c.rowGenerations)
}

// makeRoom sees to it that the keys of a batch may be remembered; false when the batch must be refused.
func (s *state) makeRoom(c *channel, b *event.Batch) bool {
	limit := &c.spec.Dedup
	s.expireDedup(c)
	d := &c.dedup
	most := uint64(limit.MaxKeys)
	if limit.MaxKeys <= 0 || d.keys+uint64(b.Len()) <= most {
		return true
	}
	fresh := uint64(0)
	for i := range b.Len() {
		x := b.Envelope(i)
		if _, ok := d.find(&x.DedupKey); !ok && x.Flags&event.FlagServerID == 0 {
			fresh++
		}
	}
	if fresh == 0 || d.keys+fresh <= most {
		return true
	}
	if limit.OnFull != onFullShorten {
		return false
	}
	for len(d.generations) > 0 && d.keys+fresh > most {
		d.shortened = d.generations[0].to
		s.dropGeneration(c)
	}
	return true
}

const onFullShorten = "shorten"

// dedups tells whether the channel remembers producer ids at all.
func dedups(c *spec.Channel) bool { return c.Dedup.Window > 0 }
