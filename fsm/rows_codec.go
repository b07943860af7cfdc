package fsm

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"penstock/event"
	"penstock/fsm/command"
	"penstock/fsm/internal/wire"
)

// The codecs of the rows below a channel; their layouts stand in tables.go.

func appendPoint(dst []byte, p, base point) []byte {
	dst = wire.AppendUint(wire.AppendUint(dst, p.seq-base.seq), p.index-base.index)
	dst = wire.AppendInt(wire.AppendInt(dst, p.stamp-base.stamp), p.prev-base.prev)
	return wire.AppendUint(dst, p.bytes-base.bytes)
}

func readPoint(r *wire.Reader, base point) point {
	return point{
		seq: base.seq + r.Uint(), index: base.index + r.Uint(), stamp: base.stamp + r.Int(), prev: base.prev + r.Int(),
		bytes: base.bytes + r.Uint(),
	}
}

func (p *points) appendRow(dst []byte, first uint64) ([]byte, bool) {
	i, ok := slices.BinarySearchFunc(p.chunks, first, func(c *pointChunk, f uint64) int { return cmp.Compare(c.points[0].seq, f) })
	if !ok {
		return dst, false
	}
	var base point
	dst = wire.AppendUint(dst, uint64(len(p.chunks[i].points)))
	for _, pt := range p.chunks[i].points {
		dst = appendPoint(dst, pt, base)
		base = pt
	}
	return dst, true
}

func (p *points) readRow(row string, r *wire.Reader) {
	c := &pointChunk{row: row}
	var base point
	for range r.Count(5) {
		base = readPoint(r, base)
		c.points = append(c.points, base)
	}
	if len(c.points) == 0 {
		r.Fail("no points")
		return
	}
	p.chunks = append(p.chunks, c)
}

func (e *emitter) appendRow(dst []byte, id rowID) ([]byte, bool) {
	switch id.table {
	case tableEmitter:
		dst = wire.AppendUint(wire.AppendString(dst, e.owner), e.epoch)
		return wire.AppendUint(wire.AppendBool(dst, e.paused), e.start), true
	case tableProgress:
		return e.appendProgress(dst), true
	case tableResolved:
		b := e.blocks[id.nums[2]]
		if b == nil {
			return dst, false
		}
		for _, w := range b.words {
			dst = wire.AppendWord(dst, w)
		}
		return dst, true
	case tableRuns:
		return e.runs.appendRow(dst, id.nums[2])
	case tableRetry:
		return e.appendRetry(dst, id.nums[2])
	case tableClaims:
		return e.appendClaim(dst, id.nums[2])
	case tableHeld:
		return wire.AppendUint(dst, e.held), e.held > 0
	}
	return e.appendLetters(dst, id.nums[2])
}

func (e *emitter) readRow(row string, id rowID, r *wire.Reader) {
	switch id.table {
	case tableEmitter:
		e.owner, e.epoch, e.paused, e.start = r.String(1024), r.Uint(), r.Bool(), r.Uint()
	case tableProgress:
		e.readProgress(r)
	case tableResolved:
		b := &block{row: row}
		for i := range b.words {
			b.words[i] = r.Word()
		}
		e.blocks[id.nums[2]] = b
		e.count += b.ones()
	case tableRuns:
		e.runs.readRow(row, id.nums[2], r)
	case tableRetry:
		e.retries[id.nums[2]] = &retry{row: row, RetryInfo: RetryInfo{
			Attempts: r.Uint32(), FirstFailed: r.Int(), LastFailed: r.Int(), Class: command.Class(r.Byte()),
			Status: uint16(r.Uint32()), Reason: r.String(command.MaxReason), Attempted: r.Bool(),
		}}
	case tableDead:
		e.letters = append(e.letters, readLetters(row, id.nums[2], r))
	case tableClaims:
		e.claims[id.nums[2]] = readClaim(row, r)
	case tableHeld:
		e.held = r.Uint()
	}
}

func (e *emitter) appendProgress(dst []byte) []byte {
	dst = wire.AppendUint(wire.AppendUint(dst, e.low), e.cut)
	dst = wire.AppendInt(wire.AppendUint(wire.AppendUint(dst, e.open.events), e.open.bytes), e.open.since)
	dst = appendPoint(dst, e.need, point{})
	for _, n := range [...]uint64{e.delivered, e.dead, e.poison, e.discarded, e.lost} {
		dst = wire.AppendUint(dst, n)
	}
	return dst
}

func (e *emitter) readProgress(r *wire.Reader) {
	e.low, e.cut = r.Uint(), r.Uint()
	e.open = openRun{events: r.Uint(), bytes: r.Uint(), since: r.Int()}
	e.need = readPoint(r, point{})
	e.delivered, e.dead, e.poison, e.discarded, e.lost = r.Uint(), r.Uint(), r.Uint(), r.Uint(), r.Uint()
}

func (rs *runs) appendRow(dst []byte, first uint64) ([]byte, bool) {
	i, ok := slices.BinarySearchFunc(rs.chunks, first, func(c *runChunk, f uint64) int { return cmp.Compare(c.first, f) })
	if !ok {
		return dst, false
	}
	dst = wire.AppendUint(dst, uint64(len(rs.chunks[i].pairs)))
	for _, p := range rs.chunks[i].pairs {
		dst = wire.AppendUint(wire.AppendUint(dst, p.length), p.count)
	}
	return dst, true
}

func (rs *runs) readRow(row string, first uint64, r *wire.Reader) {
	c := &runChunk{first: first, last: first - 1, row: row}
	for range r.Count(2) {
		p := runPair{r.Uint(), r.Uint()}
		if p.length == 0 {
			r.Fail("run of length 0")
			return
		}
		c.pairs = append(c.pairs, p)
		c.last += p.length * p.count
	}
	if len(c.pairs) == 0 {
		r.Fail("no runs")
		return
	}
	rs.chunks = append(rs.chunks, c)
}

func (e *emitter) appendRetry(dst []byte, first uint64) ([]byte, bool) {
	t := e.retries[first]
	if t == nil {
		return dst, false
	}
	dst = wire.AppendInt(wire.AppendInt(wire.AppendUint(dst, uint64(t.Attempts)), t.FirstFailed), t.LastFailed)
	dst = wire.AppendUint(append(dst, byte(t.Class)), uint64(t.Status))
	return wire.AppendBool(wire.AppendString(dst, t.Reason), t.Attempted), true
}

func (e *emitter) appendLetters(dst []byte, first uint64) ([]byte, bool) {
	i := e.lettersAt(first) - 1
	if i < 0 || e.letters[i].first != first {
		return dst, false
	}
	d := e.letters[i]
	dst = append(wire.AppendBool(dst, d.poison), byte(d.class))
	dst = wire.AppendUint(wire.AppendUint(dst, uint64(d.status)), uint64(d.attempts))
	dst = wire.AppendInt(wire.AppendInt(wire.AppendString(dst, d.reason), d.at), d.stamp)
	dst = wire.AppendUint(wire.AppendString(dst, d.node), d.epoch)
	dst = append(dst, d.compaction[:]...)
	dst = wire.AppendUint(dst, uint64(len(d.letters)))
	last := uint64(0)
	for _, l := range d.letters {
		dst = wire.AppendUint(wire.AppendUint(dst, l.position.Index-last), uint64(l.position.Ordinal))
		dst = wire.AppendBool(wire.AppendUint(dst, uint64(l.replays)), l.closed)
		last = l.position.Index
	}
	return dst, true
}

func readLetters(row string, first uint64, r *wire.Reader) *deadRun {
	d := &deadRun{
		first: first, row: row, poison: r.Bool(), class: command.Class(r.Byte()), status: uint16(r.Uint32()),
		attempts: r.Uint32(), reason: r.String(command.MaxReason), at: r.Int(), stamp: r.Int(), node: r.String(1024),
		epoch: r.Uint(),
	}
	copy(d.compaction[:], r.Raw(len(d.compaction)))
	last := uint64(0)
	for range r.Count(4) {
		last += r.Uint()
		d.letters = append(d.letters, letter{
			position: event.Position{Index: last, Ordinal: r.Uint32()}, replays: r.Uint32(), closed: r.Bool(),
		})
	}
	return d
}

func (er *EntryRejects) appendRow(dst []byte) []byte {
	dst = wire.AppendUint(dst, uint64(len(er.refused)))
	for _, n := range er.refused {
		dst = wire.AppendUint(dst, uint64(n))
	}
	return wire.AppendBytes(dst, er.bits)
}

func readRejects(r *wire.Reader) *EntryRejects {
	er := &EntryRejects{}
	for range r.Count(1) {
		er.refused = append(er.refused, r.Uint32())
	}
	er.bits = bytes.Clone(r.Bytes())
	return er
}

func (d *dedup) appendChunk(dst []byte, number uint64) ([]byte, bool) {
	if number < d.firstChunk || number-d.firstChunk >= uint64(len(d.chunks)) {
		return dst, false
	}
	c := d.chunks[number-d.firstChunk]
	dst = wire.AppendUint(wire.AppendUint(wire.AppendUint(dst, c.baseIndex), c.baseSeq), uint64(len(c.keys)))
	for i := range c.keys {
		dst = append(dst, c.keys[i][:]...)
		dst = wire.AppendWord(wire.AppendWord(dst, c.ids[i]), c.contents[i])
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, uint64(c.index[i])), uint64(c.ordinal[i]))
		dst = binary.AppendUvarint(dst, uint64(c.seq[i]))
	}
	return dst, true
}

// readChunk reads the keys of a chunk; the index over them is built with the generations, when the first number is known.
func (d *dedup) readChunk(row string, number uint64, r *wire.Reader) {
	c := &dedupChunk{number: number, row: row, baseIndex: r.Uint(), baseSeq: r.Uint()}
	n := r.Count(35)
	if n > chunkKeys {
		r.Fail("%d keys", n)
		return
	}
	c.grow(n)
	for range n {
		var key [16]byte
		copy(key[:], r.Raw(len(key)))
		c.keys = append(c.keys, key)
		c.ids, c.contents = append(c.ids, r.Word()), append(c.contents, r.Word())
		c.index, c.ordinal = append(c.index, r.Uint32()), append(c.ordinal, r.Uint32())
		c.seq = append(c.seq, r.Uint32())
	}
	d.chunks = append(d.chunks, c)
}

func (d *dedup) appendGenerations(dst []byte) []byte {
	dst = wire.AppendBool(wire.AppendUint(dst, d.firstChunk), d.closed)
	dst = wire.AppendInt(dst, d.shortened)
	dst = wire.AppendUint(dst, uint64(len(d.generations)))
	for _, g := range d.generations {
		dst = wire.AppendInt(wire.AppendInt(dst, g.from), g.to)
		dst = wire.AppendUint(wire.AppendUint(dst, g.chunks), g.keys)
	}
	return dst
}

func (d *dedup) readGenerations(r *wire.Reader) error {
	d.firstChunk, d.closed, d.shortened = r.Uint(), r.Bool(), r.Int()
	chunks := uint64(0)
	for range r.Count(4) {
		g := generation{from: r.Int(), to: r.Int(), chunks: r.Uint(), keys: r.Uint()}
		d.generations = append(d.generations, g)
		chunks += g.chunks
	}
	if chunks != uint64(len(d.chunks)) {
		return fmt.Errorf("the generations have %d chunks, the table %d", chunks, len(d.chunks))
	}
	for i, c := range d.chunks {
		if c.number != d.firstChunk+uint64(i) {
			return fmt.Errorf("chunk %d is missing", d.firstChunk+uint64(i))
		}
		d.keys += uint64(len(c.keys))
	}
	d.index()
	return nil
}

func appendRetired(dst []byte, rows []LedgerRow) []byte {
	dst = wire.AppendUint(dst, uint64(len(rows)))
	for _, l := range rows {
		dst = wire.AppendUint(wire.AppendString(dst, l.Emitter), l.EmitterIndex)
		for _, n := range [...]uint64{l.Accepted, l.Delivered, l.Dead, l.Poison, l.Discarded, l.Lost} {
			dst = wire.AppendUint(dst, n)
		}
	}
	return dst
}

func readRetired(r *wire.Reader) (rows []LedgerRow) {
	for range r.Count(8) {
		rows = append(rows, LedgerRow{
			Emitter: r.String(1024), EmitterIndex: r.Uint(), Accepted: r.Uint(), Delivered: r.Uint(), Dead: r.Uint(),
			Poison: r.Uint(), Discarded: r.Uint(), Lost: r.Uint(), Removed: true,
		})
	}
	return rows
}
