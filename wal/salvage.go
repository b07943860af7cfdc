package wal

import (
	"errors"
	"fmt"
	"math"
)

// maxLost bounds how many entries a hole may count, against a header that
// contradicts itself.
const maxLost = 1 << 28

// salvager reads a damaged segment over its damage: each record that is whole
// and was written in this use of the file is found, each other entry is in a
// Damage. It never takes a record for good that the strict scan would not: its
// header and payload pass their CRCs, and every sector it touches carries the
// segment's generation, so that nothing of an older use comes back.
type salvager struct {
	*scanner
	out     *found
	liveEnd uint64
	next    uint64 // the entry that comes next
	prevEnd uint32 // position behind the last record found
}

// salvage is scan for a segment that scan refused with cause.
func (s *scanner) salvage(liveEnd uint64, cause *DamageError) (found, error) {
	out := found{lastTerm: s.hdr.prevTerm}
	sv := salvager{scanner: s, out: &out, liveEnd: liveEnd, next: s.hdr.start, prevEnd: blockData}
	end, err := sv.run(cause)
	out.end = end
	out.offsets = append(out.offsets, sv.prevEnd)
	return out, err
}

func (sv *salvager) run(cause *DamageError) (end uint32, err error) {
	short := sv.checkSize() != nil
	p := uint32(1)
	for p < sv.limit() && (sv.liveEnd == 0 || sv.next < sv.liveEnd) {
		b, ok, err := sv.batchAt(p)
		if err != nil {
			return p, err
		}
		if ok && sv.takeBatch(&b) {
			p += b.blocks
			continue
		}
		if sv.sealedAt == 0 && !short {
			var damage *DamageError
			v, err := sv.judgeEnd(p, sv.next)
			if err == nil {
				sv.out.torn = v
				return p, nil
			} else if !errors.As(err, &damage) {
				return p, err
			}
			cause = damage
		}
		sv.out.unsound = true
		q, bound, err := sv.nextGood(p + 1)
		if err != nil {
			return p, err
		}
		if p, err = sv.region(p, q, bound, cause); err != nil {
			return p, err
		}
	}
	if short {
		sv.out.unsound = true
	}
	if sv.liveEnd > 0 {
		return sv.limit(), sv.lose(sv.liveEnd, cause)
	}
	if short {
		sv.out.open, sv.out.closed = true, 0
	}
	if sv.out.closed > 0 {
		p = sv.out.closed
	}
	return p, nil
}

// takeBatch takes over a whole batch, holes in it included.
func (sv *salvager) takeBatch(b *batch) bool {
	if b.firstIndex != sv.next || b.records(func(*recordHeader, int) error { return nil }) != nil {
		return false
	}
	at := int(b.start) * blockData
	_ = b.records(func(h *recordHeader, pos int) error { // just seen to pass
		if sv.liveEnd > 0 && h.index >= sv.liveEnd {
			return errStop
		}
		sv.take(h, at+pos, !h.hole())
		return nil
	})
	return true
}

// take counts a record: a good one, or one of which only the header is good.
func (sv *salvager) take(h *recordHeader, pos int, good bool) {
	if good {
		sv.out.offsets = append(sv.out.offsets, uint32(pos))
	} else {
		at, _ := posRaw(pos)
		d := Damage{
			Kind: DamagePayload, File: sv.path, Offset: int64(at), First: h.index, Last: h.index,
			Known: true, Term: h.term, PayloadCRC: h.payloadCRC, Err: errPayloadCRC,
		}
		if h.hole() {
			d.Kind, d.Known, d.Err = DamageHole, h.flags&recordHoleKnown != 0, errHole
		}
		sv.out.damage = addDamage(sv.out.damage, d)
		sv.out.offsets = append(sv.out.offsets, sv.prevEnd)
	}
	sv.prevEnd = uint32(pos + h.size())
	sv.out.n++
	sv.out.lastTerm = h.term
	sv.next = h.index + 1
}

// lose counts the entries before to as lost.
func (sv *salvager) lose(to uint64, cause *DamageError) error {
	if to <= sv.next {
		return nil
	}
	if to-sv.next > maxLost {
		return fmt.Errorf("wal: %s: %d entries missing before %d: %w", sv.path, to-sv.next, to, cause)
	}
	d := damageOf(cause)
	d.First, d.Last = sv.next, to-1
	sv.out.damage = append(sv.out.damage, d)
	for ; sv.next < to; sv.next++ {
		sv.out.offsets = append(sv.out.offsets, sv.prevEnd)
		sv.out.n++
	}
	sv.out.lastTerm = 0 // not known
	return nil
}

// nextGood finds the next whole batch at or behind block p whose entries go on
// behind those found; bound is its first entry. None: the limit, and where the
// live entries end (0 when nobody knows).
func (sv *salvager) nextGood(p uint32) (q uint32, bound uint64, err error) {
	for ; p < sv.limit(); p++ {
		b, ok, err := sv.batchAt(p)
		if err != nil {
			return p, 0, err
		}
		if ok && b.firstIndex > sv.next && b.firstIndex-sv.next <= maxLost {
			bound = b.firstIndex
			if sv.liveEnd > 0 {
				bound = min(bound, sv.liveEnd)
			}
			return p, bound, nil
		}
	}
	return sv.limit(), sv.liveEnd, nil
}

// region is a run of blocks [p, q) with damage in it.
type region struct {
	sv     *salvager
	raw    []byte
	p, n   uint32
	starts map[uint32]bool // blocks where a batch is known to start, counted from p
	end    uint32          // block behind the last batch that a good block tells of
	last   uint64          // its last entry, 0 when not known
}

// region takes what is whole in [p, q), and loses the rest up to bound. It
// returns the block to go on at.
func (sv *salvager) region(p, q uint32, bound uint64, cause *DamageError) (uint32, error) {
	raw := make([]byte, int(q-p)*blockSize)
	if n, err := sv.file.ReadAt(raw, int64(p)*blockSize); n < len(raw) && !isEOF(err) {
		return p, fmt.Errorf("wal: read %s: %w", sv.path, err)
	}
	r := region{sv: sv, raw: raw, p: p, n: q - p, starts: map[uint32]bool{0: true}}
	r.survey()
	base, size := int(p)*blockData, int(r.n)*blockData
	padded := false // the last record found is followed by nothing but padding
	for pos := 0; pos < size; {
		h, good, ok := r.recordAt(pos)
		if !ok || h.index < sv.next || bound > 0 && h.index >= bound || h.index-sv.next > maxLost {
			pos = r.resume(pos)
			continue
		}
		if err := sv.lose(h.index, cause); err != nil {
			return p, err
		}
		sv.take(h, base+pos, good)
		pos += h.size()
		if padded = r.padding(pos); padded {
			r.starts[uint32(pos/blockData)+1] = true // a batch ended here
		}
	}
	if bound > 0 {
		return q, sv.lose(bound, cause)
	}
	return r.finish(padded, cause)
}

// finish is for a region behind which nothing good follows, in the newest
// segment: are the entries that were here known to the last one?
func (r *region) finish(padded bool, cause *DamageError) (uint32, error) {
	sv := r.sv
	end, last, known := r.end, r.last, r.last > 0
	if found := (sv.prevEnd + blockData - 1) / blockData; padded && found >= end {
		end, last, known = found, 0, true
	}
	if known && end >= sv.markEnd && sv.noTear == nil && r.written(end) {
		clean, err := sv.cleanFrom(end)
		if err != nil {
			return end, err
		}
		if clean {
			return sv.limit(), sv.closeAt(end, last, cause)
		}
	}
	sv.out.open = true
	return sv.limit(), nil
}

// written: every sector up to a block was written, whatever is in it now, and
// the last one still shows it. Where some look as if they never had been, what
// came behind them may look so too.
func (r *region) written(end uint32) bool {
	state := sectorZero
	for s := uint32(0); s < (end-r.p)*sectorsPerBlock; s++ {
		_, state = readTag(r.raw[int(s)*sectorSize:][:sectorSize], r.sv.hdr.gen, r.p*sectorsPerBlock+s)
		if state == sectorZero || state == sectorOld {
			return false
		}
	}
	return state == sectorCurrent
}

func (sv *salvager) closeAt(end uint32, last uint64, cause *DamageError) error {
	sv.out.closed = end
	if last >= sv.next && last-sv.next <= maxLost {
		return sv.lose(last+1, cause)
	}
	return nil
}

// survey looks at the region's good blocks for what they tell of their batches.
func (r *region) survey() {
	for b := range r.n {
		h, t, ok := r.block(b)
		if !ok {
			continue
		}
		next := uint32(t.start) + h.batchBlocks
		r.starts[next-r.p] = true
		if next > r.end {
			r.end, r.last = next, 0
			if h.records > 0 {
				r.last = h.firstIndex + uint64(h.records) - 1
			}
		}
	}
}

// block returns the header of a good block.
func (r *region) block(b uint32) (blockHeader, tag, bool) {
	raw := r.raw[int(b)*blockSize:][:blockSize]
	t, state := readTag(raw, r.sv.hdr.gen, (r.p+b)*sectorsPerBlock)
	if state != sectorCurrent {
		return blockHeader{}, t, false
	}
	h, ok := openBlock(raw, r.sv.hdr.number, t, r.p+b)
	return h, t, ok
}

// current: every sector of n record bytes from pos on is of this generation,
// and in a block that the file has whole (readRecord wants it so).
func (r *region) current(pos, n int) bool {
	for n > 0 {
		at, room := posRaw(pos)
		sector := at / sectorSize
		if int64(r.p)*blockSize+int64(at/blockSize+1)*blockSize > r.sv.fileSize {
			return false
		}
		if _, state := readTag(r.raw[sector*sectorSize:][:sectorSize], r.sv.hdr.gen, r.p*sectorsPerBlock+uint32(sector)); state != sectorCurrent {
			return false
		}
		pos, n = pos+room, n-room
	}
	return true
}

// recordAt reads a record header at pos; good says that its payload is whole too.
func (r *region) recordAt(pos int) (h *recordHeader, good, ok bool) {
	size := int(r.n) * blockData
	if pos+recordHeaderSize > size || !r.current(pos, recordHeaderSize) {
		return nil, false, false
	}
	var hb [recordHeaderSize]byte
	gather(hb[:], r.raw, pos)
	h = new(recordHeader)
	if h.decode(&hb) != nil || h.index == math.MaxUint64 || h.size() > size-pos {
		return nil, false, false
	}
	good = !h.hole() && r.current(pos, h.size()) && crcSpan(r.raw, pos+recordHeaderSize, h.payload()) == h.payloadCRC
	return h, good, true
}

// resume is the next place behind pos where a record is known to start.
func (r *region) resume(pos int) int {
	for b := uint32(pos/blockData) + 1; b < r.n; b++ {
		h, _, ok := r.block(b)
		if ok && h.firstRecord < blockData {
			return int(b)*blockData + int(h.firstRecord)
		}
		if !ok && r.starts[b] {
			return int(b) * blockData
		}
	}
	return int(r.n) * blockData
}

// padding: from pos to the end of its block there is room, all of it written
// in this generation, and zero. A record would not be.
func (r *region) padding(pos int) bool {
	room := (blockData - pos%blockData) % blockData
	if room == 0 || !r.current(pos, room) {
		return false
	}
	rest := make([]byte, room)
	gather(rest, r.raw, pos)
	return isZero(rest)
}

// cleanFrom: no sector from a block on was written in this generation.
func (s *scanner) cleanFrom(block uint32) (bool, error) {
	for ; block < s.hdr.blocks; block++ {
		raw, err := s.read(block, 1)
		if err != nil {
			return false, err
		}
		for sec := range uint32(sectorsPerBlock) {
			if _, state := readTag(raw[sec*sectorSize:], s.hdr.gen, block*sectorsPerBlock+sec); state != sectorZero && state != sectorOld {
				return false, nil
			}
		}
	}
	return true, nil
}
