package fsm

import (
	"fmt"

	"penstock/fsm/internal/wire"
)

// headVersion is the version of the rows and of the head that stands beside them, in a checkpoint and in a snapshot. The
// layouts in tables.go belong to it. A newer one is refused.
const headVersion = 1

// ErrTooNew is a checkpoint or snapshot of a later version of Penstock.
type ErrTooNew struct{ Version uint64 }

func (e *ErrTooNew) Error() string {
	return fmt.Sprintf("state format version %d, this binary knows %d: it is too old for these data", e.Version, headVersion)
}

// head is what a set of rows is labelled with.
//
//	+---------+-------+------+-------+---------------------+
//	| version | index | term | count | { table n, sum 4x8 } |
//	+---------+-------+------+-------+---------------------+
type head struct {
	index, term uint64
	sums        [tableEnd]sum
}

func (s *state) head() head { return head{index: s.index, term: s.term, sums: s.tracker.sums} }

func (h *head) encode() []byte {
	dst := wire.AppendUint(nil, headVersion)
	dst = wire.AppendUint(wire.AppendUint(dst, h.index), h.term)
	tables := listed(&h.sums)
	dst = wire.AppendUint(dst, uint64(len(tables)))
	for _, t := range tables {
		dst = wire.AppendUint(dst, uint64(t))
		for _, lane := range h.sums[t] {
			dst = wire.AppendWord(dst, lane)
		}
	}
	return dst
}

// listed are the tables that stand in heads and hashes: those of the first release always, a later one while it has rows, so
// that states without such rows are the same bytes for every binary.
func listed(sums *[tableEnd]sum) []table {
	var all []table
	for t := tableMeta; t < tableEnd; t++ {
		if t <= tableRetired || sums[t] != (sum{}) {
			all = append(all, t)
		}
	}
	return all
}

func decodeHead(b []byte) (h head, err error) {
	r := wire.NewReader(b)
	if v := r.Uint(); r.Err() == nil && v != headVersion {
		return h, &ErrTooNew{Version: v}
	}
	h.index, h.term = r.Uint(), r.Uint()
	for range r.Count(33) {
		t := r.Uint()
		if t == 0 || t >= uint64(tableEnd) {
			r.Fail("table %d", t)
			break
		}
		for i := range h.sums[t] {
			h.sums[t][i] = r.Word()
		}
	}
	if err := r.Done(); err != nil {
		return h, fmt.Errorf("head of the state: %w", err)
	}
	return h, nil
}

// loader builds a state from rows and proves it by their head.
type loader struct {
	s   *state
	buf []byte
}

func newLoader() *loader {
	s := newState()
	clear(s.tracker.dirty)
	return &loader{s: s}
}

func (l *loader) row(t uint8, key, value []byte) error {
	row := string(append(append(l.buf[:0], t), key...))
	if err := l.s.readRow(row, value); err != nil {
		return err
	}
	var h sum
	h, l.s.tracker.buf = hashRow(l.s.tracker.buf, row, value)
	l.s.tracker.rows[row] = h
	l.s.tracker.sums[t].add(h)
	return nil
}

// finish checks the rows against the head and gives the state.
func (l *loader) finish(h head) (*state, error) {
	l.s.index, l.s.term, l.s.owners = h.index, h.term, h.index
	for t := tableMeta; t < tableEnd; t++ {
		if l.s.tracker.sums[t] != h.sums[t] {
			return nil, fmt.Errorf("the rows of table %s do not give the hash that was stored with them", t)
		}
	}
	return l.s, nil
}
