package fsm

import (
	"penstock/event"
	"penstock/fsm/command"
	"penstock/fsm/internal/wire"
)

// Bounds of the memory of resolved dead letters, the same on every node for ever.
const (
	settledChunk = 256
	maxSettled   = 128 * settledChunk
)

// settled remembers the dead letters that were resolved last, so that an id whose replay had an unknown outcome can be looked
// up: it is a ring of chunks, the oldest of which goes whole.
type settled struct {
	first  uint64 // number of the first chunk
	chunks [][]settledLetter
	byID   map[[16]byte]*settledLetter
}

// settledLetter is one of them. Its chunk's array never moves, so that byID may point into it.
type settledLetter struct {
	channel, emitter, seq uint64
	position              event.Position
	kind                  command.OutcomeKind // Replayed or Discarded
	stamp                 int64
}

func newSettled() settled { return settled{byID: map[[16]byte]*settledLetter{}} }

func (x *settled) size() int {
	if len(x.chunks) == 0 {
		return 0
	}
	return (len(x.chunks)-1)*settledChunk + len(x.chunks[len(x.chunks)-1])
}

func (x *settledLetter) id() [16]byte { return letterID(x.channel, x.emitter, x.position) }

// keepSettled remembers a letter that was resolved.
func (s *state) keepSettled(l settledLetter) {
	x := &s.settled
	n := len(x.chunks)
	if n == 0 || len(x.chunks[n-1]) == settledChunk {
		x.chunks = append(x.chunks, make([]settledLetter, 0, settledChunk))
		n++
	}
	x.add(n-1, l)
	s.mark(rowKey(tableSettled, x.first+uint64(n-1)))
	if x.size() <= maxSettled {
		return
	}
	for i := range x.chunks[0] {
		if l := &x.chunks[0][i]; x.byID[l.id()] == l {
			delete(x.byID, l.id())
		}
	}
	s.mark(rowKey(tableSettled, x.first))
	x.chunks[0] = nil
	x.chunks = x.chunks[1:]
	x.first++
}

func (x *settled) add(chunk int, l settledLetter) {
	x.chunks[chunk] = append(x.chunks[chunk], l)
	x.byID[l.id()] = &x.chunks[chunk][len(x.chunks[chunk])-1]
}

func (x *settled) appendRow(dst []byte, number uint64) ([]byte, bool) {
	if number < x.first || number-x.first >= uint64(len(x.chunks)) {
		return dst, false
	}
	chunk := x.chunks[number-x.first]
	dst = wire.AppendUint(dst, uint64(len(chunk)))
	for i := range chunk {
		l := &chunk[i]
		dst = wire.AppendUint(wire.AppendUint(wire.AppendUint(dst, l.channel), l.emitter), l.seq)
		dst = wire.AppendUint(wire.AppendUint(dst, l.position.Index), uint64(l.position.Ordinal))
		dst = wire.AppendInt(append(dst, byte(l.kind)), l.stamp)
	}
	return dst, true
}

func (x *settled) readRow(number uint64, r *wire.Reader) {
	if len(x.chunks) == 0 {
		x.first = number
	}
	n := r.Count(7)
	if number != x.first+uint64(len(x.chunks)) || n > settledChunk || n == 0 {
		r.Fail("chunk %d of %d letters", number, n)
		return
	}
	x.chunks = append(x.chunks, make([]settledLetter, 0, settledChunk))
	for range n {
		l := settledLetter{
			channel: r.Uint(), emitter: r.Uint(), seq: r.Uint(), position: event.Position{Index: r.Uint(), Ordinal: r.Uint32()},
			kind: command.OutcomeKind(r.Byte()), stamp: r.Int(),
		}
		x.add(len(x.chunks)-1, l)
	}
}
