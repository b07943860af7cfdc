package fsm

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"slices"
)

// table is the number of a table. The numbers are part of the checkpoint and snapshot formats and never change.
type table uint8

// A row's key within the machine is the table's number and then the key of the row, as one string. Numbers in keys are
// big-endian, so that keys sort as the numbers do.
func rowKey(t table, parts ...uint64) string {
	b := make([]byte, 1, 1+8*len(parts))
	b[0] = byte(t)
	for _, p := range parts {
		b = binary.BigEndian.AppendUint64(b, p)
	}
	return string(b)
}

// sum is one row's hash, or the sum of the hashes of a table's rows: four lanes, added apart. Adding and subtracting rows
// in any order gives the same sum, so that the hash of the whole state costs only the rows that changed (DESIGN 4.14).
type sum [4]uint64

func (s *sum) add(o sum) {
	for i := range s {
		s[i] += o[i]
	}
}

func (s *sum) sub(o sum) {
	for i := range s {
		s[i] -= o[i]
	}
}

// hashRow is SHA-256 over the key's length, the key and the value.
func hashRow(buf []byte, key string, value []byte) (sum, []byte) {
	buf = binary.LittleEndian.AppendUint32(buf[:0], uint32(len(key)))
	buf = append(append(buf, key...), value...)
	h := sha256.Sum256(buf)
	var s sum
	for i := range s {
		s[i] = binary.LittleEndian.Uint64(h[8*i:])
	}
	return s, buf
}

// tracker follows which rows changed.
type tracker struct {
	sums    [tableEnd]sum
	rows    map[string]sum      // every row of the state as of the last flush, with its hash
	dirty   map[string]struct{} // changed since the last flush
	unsaved map[string]struct{} // changed since the last checkpoint
	weight  int64               // rough bytes of the unsaved rows
	buf     []byte
	last    string // scratch of remember: the row marked last
}

func newTracker() tracker {
	return tracker{rows: map[string]sum{}, dirty: map[string]struct{}{}, unsaved: map[string]struct{}{}}
}

// mark notes that the row may have changed, come or gone.
func (t *tracker) mark(key string) { t.dirty[key] = struct{}{} }

// flush brings sums and rows up to date with the state. The order does not matter: sums add up.
func (s *state) flush() {
	t := &s.tracker
	var value []byte
	for key := range t.dirty {
		if old, ok := t.rows[key]; ok {
			t.sums[key[0]].sub(old)
		}
		var exists bool
		if value, exists = s.appendRow(value[:0], key); exists {
			var h sum
			h, t.buf = hashRow(t.buf, key, value)
			t.rows[key] = h
			t.sums[key[0]].add(h)
		} else {
			delete(t.rows, key)
		}
		t.unsaved[key] = struct{}{}
	}
	clear(t.dirty)
}

// hash is the hash of the whole flushed state, and of each table.
func (s *state) hash() (string, map[string]string) {
	all := sha256.New()
	b := binary.LittleEndian.AppendUint64(nil, s.index)
	all.Write(binary.LittleEndian.AppendUint64(b, s.term))
	tables := make(map[string]string, tableEnd)
	for _, t := range listed(&s.tracker.sums) {
		b = append(b[:0], byte(t))
		for _, lane := range s.tracker.sums[t] {
			b = binary.LittleEndian.AppendUint64(b, lane)
		}
		all.Write(b)
		h := sha256.Sum256(b)
		tables[t.String()] = hex.EncodeToString(h[:8])
	}
	return hex.EncodeToString(all.Sum(nil)[:16]), tables
}

// sortedRows are the keys of every row of the flushed state, in order.
func (s *state) sortedRows() []string { return slices.Sorted(maps.Keys(s.tracker.rows)) }
