package fsm

import "math/bits"

const blockBits = 4096

// block is the resolved ones among blockBits deliveries; bit i is sequence number i of the block.
type block struct {
	words [blockBits / 64]uint64
	row   string
}

// resolvedSet is the set of resolved deliveries of one emitter: all up to low, and those above it whose bit is set.
// Deliveries resolved in order never get a bit, so that an emitter without retries holds no blocks.
//
// Invariants: low+1 is not resolved; no bit at or below low is set; count is the number of bits set.
type resolvedSet struct {
	low    uint64
	count  uint64
	blocks map[uint64]*block // by seq / blockBits
}

func (r *resolvedSet) has(seq uint64) bool {
	if seq <= r.low {
		return true
	}
	b := r.blocks[seq/blockBits]
	return b != nil && b.words[seq%blockBits/64]>>(seq%64)&1 == 1
}

// hasAll tells whether all of first..last are resolved.
func (r *resolvedSet) hasAll(first, last uint64) bool {
	if last <= r.low {
		return true
	}
	if len(r.blocks) == 0 {
		return false
	}
	for seq := max(first, r.low+1); seq <= last; seq++ {
		if !r.has(seq) {
			return false
		}
	}
	return true
}

// resolve adds seq, which must not be resolved. Blocks that changed go through s.mark.
func (s *state) resolve(e *emitter, seq uint64) {
	r := &e.resolvedSet
	if seq != r.low+1 {
		n := seq / blockBits
		b := r.blocks[n]
		if b == nil {
			b = &block{row: rowKey(tableResolved, e.ch.index, e.index, n)}
			r.blocks[n] = b
		}
		b.words[seq%blockBits/64] |= 1 << (seq % 64)
		r.count++
		s.mark(b.row)
		return
	}
	r.low = seq
	if r.count > 0 {
		s.absorb(e)
	}
}

// absorb moves low over the bits that follow it, and drops the blocks that are used up.
func (s *state) absorb(e *emitter) {
	r := &e.resolvedSet
	for r.count > 0 {
		seq := r.low + 1
		b := r.blocks[seq/blockBits]
		if b == nil || b.words[seq%blockBits/64]>>(seq%64)&1 == 0 {
			return
		}
		b.words[seq%blockBits/64] &^= 1 << (seq % 64)
		r.count--
		r.low = seq
		s.mark(b.row)
		if b.empty() {
			delete(r.blocks, seq/blockBits)
		}
	}
}

func (b *block) empty() bool {
	var all uint64
	for _, w := range b.words {
		all |= w
	}
	return all == 0
}

func (b *block) ones() (n uint64) {
	for _, w := range b.words {
		n += uint64(bits.OnesCount64(w))
	}
	return n
}
