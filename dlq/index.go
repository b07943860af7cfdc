package dlq

import (
	"bytes"

	"github.com/cespare/xxhash/v2"
)

// index says for each id where its latest record stands, and so folds repeats. It costs about 24 bytes an id, whatever the
// record weighs: five gigabytes of records of a kilobyte are about 120 MB. Two ids with one 64-bit hash count as one, which
// shows in the counts and nowhere else: whoever looks an id up compares it whole.
type index struct {
	at           map[uint64]place
	dead, poison int
}

// place is the number of the file that holds the latest record of an id, and whether it is poison.
type place uint64

func newPlace(number uint64, s State) place {
	p := place(number << 1)
	if s == Poison {
		p |= 1
	}
	return p
}

func (p place) number() uint64 { return uint64(p >> 1) }
func (p place) poison() bool   { return p&1 == 1 }

func newIndex() index { return index{at: map[uint64]place{}} }

func hashID(id []byte) uint64 { return xxhash.Sum64(id) }

// put notes the record as the latest of its id, and gives the number of the file that held the one before.
func (x *index) put(h uint64, p place) (before uint64, repeat bool) {
	old, repeat := x.at[h]
	if repeat {
		x.sub(old)
	}
	x.at[h] = p
	if p.poison() {
		x.poison++
	} else {
		x.dead++
	}
	return old.number(), repeat
}

func (x *index) sub(p place) {
	if p.poison() {
		x.poison--
	} else {
		x.dead--
	}
}

// drop forgets an id.
func (x *index) drop(h uint64) {
	if p, ok := x.at[h]; ok {
		x.sub(p)
		delete(x.at, h)
	}
}

// dropFile forgets every id whose latest record stood in the file.
func (x *index) dropFile(number uint64) {
	for h, p := range x.at {
		if p.number() == number {
			x.drop(h)
		}
	}
}

// headOf reads id and state from the beginning of a line that AppendLine wrote, without parsing it.
func headOf(line []byte) (id []byte, state State, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(`{"v":1,"id":"`))
	if !ok {
		return nil, "", false
	}
	id, rest, ok = bytes.Cut(rest, []byte(`","state":"`))
	if !ok || bytes.IndexByte(id, '\\') >= 0 {
		return nil, "", false
	}
	word, _, ok := bytes.Cut(rest, []byte(`"`))
	switch {
	case ok && string(word) == string(Dead):
		return id, Dead, true
	case ok && string(word) == string(Poison):
		return id, Poison, true
	}
	return nil, "", false
}
