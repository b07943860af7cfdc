package wal

import (
	"errors"
	"fmt"
	"hash/crc32"

	"penstock/internal/vfs"

	"penstock/internal/mutant"
)

// scanner reads one segment from its first batch on and says, at each place,
// whether there is a batch, the end, a torn batch, or damage. It only reads.
type scanner struct {
	file vfs.File
	path string
	hdr  segmentHeader

	// sealedAt is the end mark that the next segment's header gives, 0 for
	// the newest segment. Everything below it was synced long ago.
	sealedAt uint32
	// markEnd is the block below which the durable mark vouches for this
	// segment, 0 when the mark names an older one.
	markEnd uint32
	// closed: the mark says that the log was closed with its end at markEnd, so
	// nothing lies behind it.
	closed bool
	// noTear is set when the mark itself is in doubt: then nothing may be
	// called torn.
	noTear error

	win      []byte // raw blocks [winAt, winAt+len/blockSize)
	winAt    uint32
	fileSize int64
}

const scanWindow = 1 << 20

func newScanner(f vfs.File, path string, hdr segmentHeader) (*scanner, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("wal: %w", err)
	}
	return &scanner{file: f, path: path, hdr: hdr, fileSize: st.Size()}, nil
}

// batch is one whole, verified write batch. raw is valid until the next read.
type batch struct {
	start      uint32
	blocks     uint32
	firstIndex uint64
	bytes      int // record bytes
	raw        []byte
}

func (s *scanner) damage(block uint32, index uint64, kind DamageKind, format string, args ...any) error {
	return &DamageError{
		File: s.path, Offset: int64(block) * blockSize, Index: index,
		Kind: kind, Err: fmt.Errorf(format, args...),
	}
}

// limit is the block that no batch of this segment reaches past.
func (s *scanner) limit() uint32 {
	if s.sealedAt > 0 {
		return s.sealedAt
	}
	return s.hdr.blocks
}

// read returns n blocks from block p on; p+n is within limit.
func (s *scanner) read(p, n uint32) ([]byte, error) {
	have := uint32(len(s.win) / blockSize)
	if p < s.winAt || p+n > s.winAt+have {
		want := min(max(n, scanWindow/blockSize), s.limit()-p)
		size := int(want) * blockSize
		if cap(s.win) < size {
			s.win = make([]byte, size)
		}
		s.win, s.winAt = s.win[:size], p
		got, err := s.file.ReadAt(s.win, int64(p)*blockSize)
		if got < size && !isEOF(err) {
			s.win = s.win[:0]
			return nil, fmt.Errorf("wal: read %s: %w", s.path, err)
		}
		clear(s.win[got:]) // a short file is judged apart (checkSize)
	}
	off := int(p-s.winAt) * blockSize
	return s.win[off : off+int(n)*blockSize], nil
}

// checkSize: a segment is made at its full size before it gets its name.
func (s *scanner) checkSize() error {
	if want := int64(s.limit()) * blockSize; s.fileSize < want {
		return s.damage(uint32(s.fileSize/blockSize), s.hdr.start, DamageShort,
			"file has %d bytes, want %d", s.fileSize, want)
	}
	return nil
}

// batchAt returns the batch that starts at block p when every block of it is
// good. ok is false when not, whatever the reason.
func (s *scanner) batchAt(p uint32) (b batch, ok bool, err error) {
	if p >= s.limit() || p > 0xffff {
		return batch{}, false, nil
	}
	raw, err := s.read(p, 1)
	if err != nil {
		return batch{}, false, err
	}
	t := tag{gen: s.hdr.gen, start: uint16(p)}
	first, ok := openBlock(raw, s.hdr.number, t, p)
	if !ok || first.batchBlocks > s.limit()-p || int64(p+first.batchBlocks)*blockSize > s.fileSize {
		return batch{}, false, nil
	}
	n := first.batchBlocks
	if raw, err = s.read(p, n); err != nil {
		return batch{}, false, err
	}
	b = batch{start: p, blocks: n, firstIndex: first.firstIndex, raw: raw}
	for i := range n {
		h, ok := openBlock(raw[int(i)*blockSize:][:blockSize], s.hdr.number, t, p+i)
		if !ok || h.batchBlocks != n || h.firstIndex != first.firstIndex || i < n-1 && h.used != blockData {
			return batch{}, false, nil
		}
		b.bytes += int(h.used)
	}
	return b, true, nil
}

// records walks the records of a batch; pos is relative to the batch.
func (b *batch) records(visit func(h *recordHeader, pos int) error) error {
	index := b.firstIndex
	for pos := 0; pos < b.bytes; index++ {
		if b.bytes-pos < recordHeaderSize {
			return fmt.Errorf("%d bytes left over", b.bytes-pos)
		}
		var hb [recordHeaderSize]byte
		gather(hb[:], b.raw, pos)
		var h recordHeader
		if err := h.decode(&hb); err != nil {
			return err
		}
		if h.index != index || h.size() > b.bytes-pos {
			return fmt.Errorf("record of index %d and %d bytes, want index %d", h.index, h.size(), index)
		}
		if !h.hole() && crcSpan(b.raw, pos+recordHeaderSize, h.payload()) != h.payloadCRC {
			return errPayloadCRC
		}
		if err := visit(&h, pos); err != nil {
			return err
		}
		pos += h.size()
	}
	return nil
}

// crcSpan is the CRC of n record bytes from pos on, without gathering them.
func crcSpan(raw []byte, pos, n int) uint32 {
	var c uint32
	for n > 0 {
		at, room := posRaw(pos)
		k := min(room, n)
		c = crc32.Update(c, castag, raw[at:at+k])
		pos, n = pos+k, n-k
	}
	return c
}

// verdict is what lies at the place where the next batch would start.
type verdict struct {
	torn       bool
	tornBlocks uint32 // how far the torn batch reached
}

// judgeEnd is called where no good batch starts in the newest segment. It
// returns whether a batch was torn there, or damage; DESIGN 4.5 word for word:
//
// torn: every sector from here on is zero, of an older generation, or of the
// one batch that starts here; at least one of the last; and no block of it is
// current in all sectors and yet bad. clean: as torn, without any sector of
// the batch. Both only at or above the mark.
func (s *scanner) judgeEnd(p uint32, index uint64) (verdict, error) {
	if mutant.On(mutant.TruncateAtBadCRC) {
		return verdict{torn: true, tornBlocks: s.hdr.blocks - p}, nil
	}
	if p < s.markEnd {
		return verdict{}, s.badBatch(p, index, s.kindBehind(p))
	}
	var v verdict
	var batchBlocks uint32 // as far as a whole block of the batch says
	want := tag{gen: s.hdr.gen, start: uint16(p)}
	for block := p; block < s.hdr.blocks; block++ {
		raw, err := s.read(block, 1)
		if err != nil {
			return verdict{}, err
		}
		current := 0
		for sec := range uint32(sectorsPerBlock) {
			t, state := readTag(raw[sec*sectorSize:], s.hdr.gen, block*sectorsPerBlock+sec)
			if state == sectorBad {
				return verdict{}, s.damage(block, index, DamageStray, "sector %d carries no tag that a write can have left", sec)
			}
			if state == sectorCurrent && t != want {
				return verdict{}, s.damage(p, index, DamageBlock, "bad, though a later batch starts at block %d", t.start)
			}
			if state == sectorCurrent {
				current++
			}
		}
		if current > 0 {
			v = verdict{torn: true, tornBlocks: block + 1 - p}
		}
		if current < sectorsPerBlock {
			continue
		}
		h, ok := openBlock(raw, s.hdr.number, want, block)
		if !ok || batchBlocks != 0 && h.batchBlocks != batchBlocks {
			return verdict{}, s.damage(block, index, DamageBlock, "all sectors are current, the block is not good")
		}
		batchBlocks = h.batchBlocks
	}
	if batchBlocks != 0 && v.tornBlocks > batchBlocks {
		return verdict{}, s.damage(p+batchBlocks, index, DamageStray, "written past the end of its batch of %d blocks", batchBlocks)
	}
	if v.torn && s.wholeBatch(p, v.tornBlocks, batchBlocks) {
		return verdict{}, s.damage(p, index, DamageBlock, "every block is good, the batch is not")
	}
	if v.torn && s.noTear != nil {
		return verdict{}, s.damage(p, index, DamageMark, "looks torn, but the mark cannot vouch for it: %w", s.noTear)
	}
	return v, nil
}

// kindBehind tells a batch below the mark that is bad from one that is gone.
func (s *scanner) kindBehind(p uint32) DamageKind {
	raw, err := s.read(p, 1)
	if err != nil {
		return DamageBehind
	}
	for sec := range uint32(sectorsPerBlock) {
		if _, state := readTag(raw[sec*sectorSize:], s.hdr.gen, p*sectorsPerBlock+sec); state == sectorCurrent {
			return DamageBlock
		}
	}
	return DamageBehind
}

// wholeBatch: all blocks of the batch are good one by one, so nothing was torn
// off, and what batchAt disliked is a contradiction between them.
func (s *scanner) wholeBatch(p, reached, batchBlocks uint32) bool {
	if batchBlocks == 0 || reached != batchBlocks {
		return false
	}
	t := tag{gen: s.hdr.gen, start: uint16(p)}
	for b := p; b < p+batchBlocks; b++ {
		raw, err := s.read(b, 1)
		if err != nil {
			return false
		}
		if _, ok := openBlock(raw, s.hdr.number, t, b); !ok {
			return false
		}
	}
	return true
}

// badBatch names the first bad block of a batch that must be good.
func (s *scanner) badBatch(p uint32, index uint64, kind DamageKind) error {
	t := tag{gen: s.hdr.gen, start: uint16(p)}
	for b := p; b < s.limit(); b++ {
		raw, err := s.read(b, 1)
		if err != nil {
			return err
		}
		h, ok := openBlock(raw, s.hdr.number, t, b)
		if !ok {
			return s.damage(b, index, kind, "this block of the batch at block %d is not good", p)
		}
		if b+1 >= p+h.batchBlocks {
			break
		}
	}
	return s.damage(p, index, kind, "the batch is not good")
}

// found is what a whole scan of a segment says.
type found struct {
	offsets  []uint32 // as segment.offsets
	n        int
	end      uint32
	lastTerm uint64
	torn     verdict

	// Only after salvage.
	damage  []Damage
	unsound bool   // not all of the file is as it should be: it must be rewritten
	open    bool   // entries may have been there behind the last one found
	closed  uint32 // not 0: they may not, and this is the block where the segment ends
}

// errStop ends a batch's walk at the first dead record.
var errStop = errors.New("stop")

// scan verifies the segment up to its end and collects the entries below
// liveEnd (0: all). visit may be nil.
func (s *scanner) scan(liveEnd uint64, visit func(b *batch, h *recordHeader, pos int) error) (found, error) {
	out := found{lastTerm: s.hdr.prevTerm}
	if err := s.checkSize(); err != nil {
		return out, err
	}
	index, p := s.hdr.start, uint32(1)
	for {
		out.end = p
		if s.sealedAt > 0 && (p >= s.sealedAt || liveEnd > 0 && index >= liveEnd) {
			out.end = s.sealedAt
			return out, s.checkSealed(index, liveEnd)
		}
		if s.closed && p == s.markEnd {
			return out, nil
		}
		b, ok, err := s.batchAt(p)
		if err != nil {
			return out, err
		}
		if !ok && s.sealedAt > 0 {
			return out, s.badBatch(p, index, DamageBlock)
		}
		if !ok {
			out.torn, err = s.judgeEnd(p, index)
			return out, err
		}
		if err := s.collect(&out, &b, index, liveEnd, visit); err != nil {
			return out, err
		}
		index, p = s.hdr.start+uint64(out.n), p+b.blocks
	}
}

// collect takes over the live records of one batch.
func (s *scanner) collect(out *found, b *batch, index, liveEnd uint64, visit func(*batch, *recordHeader, int) error) error {
	if b.firstIndex != index {
		return s.damage(b.start, index, DamageRecord, "batch starts at index %d", b.firstIndex)
	}
	if len(out.offsets) > 0 {
		out.offsets = out.offsets[:len(out.offsets)-1]
	}
	at := int(b.start) * blockData
	end := at + b.bytes
	var visitErr error
	err := b.records(func(h *recordHeader, pos int) error {
		if liveEnd > 0 && h.index >= liveEnd {
			end = at + pos
			return errStop
		}
		if h.hole() {
			return errHole
		}
		out.offsets = append(out.offsets, uint32(at+pos))
		out.n, out.lastTerm = out.n+1, h.term
		if visit != nil {
			visitErr = visit(b, h, pos)
		}
		return visitErr
	})
	out.offsets = append(out.offsets, uint32(end))
	switch {
	case visitErr != nil:
		return visitErr
	case err == nil || errors.Is(err, errStop):
		return nil
	case errors.Is(err, errHole):
		return s.damage(b.start, s.hdr.start+uint64(out.n), DamageHole, "%w", err)
	case errors.Is(err, errPayloadCRC):
		return s.damage(b.start, s.hdr.start+uint64(out.n), DamagePayload, "batch at block %d: %w", b.start, err)
	}
	return s.damage(b.start, s.hdr.start+uint64(out.n), DamageRecord, "batch at block %d: %w", b.start, err)
}

// checkSealed: the next segment may overlap this one, never leave a gap.
func (s *scanner) checkSealed(index, liveEnd uint64) error {
	if index < liveEnd {
		return s.damage(s.sealedAt, index, DamageConflict, "segment ends before index %d, where the next one starts", liveEnd)
	}
	return nil
}
