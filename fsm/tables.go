package fsm

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"penstock/event"
	"penstock/fsm/internal/wire"
	"penstock/internal/spec"
)

// The tables. A row of an earlier table never needs one of a later table to be read. In keys every number is 8 bytes
// big-endian; in values  n = varint, z = zigzag varint, s = varint length + bytes, b = 0 or 1.
//
//	 #  table        key                          value
//	 1  meta         "clock"                      stamp z, horizon n, number of applied entries n
//	                 "cluster"                    set b, id [16], key [32], name s
//	                 "created"                    last creation index n
//	                 "feature"                    level n
//	 2  channels     channel                      version n, canonical spec s, count n, { emitter n, name s } in spec order
//	 3  tallies      channel                      seq n, duplicates n, poisoned n, bytes n, last stamp z
//	 4  points       channel, first seq           count n, { seq n, index n, stamp z, prev z, bytes n }, each but the first
//	                                              as the difference to the one before
//	 5  emitters     channel, emitter             owner s, epoch n, paused b, start n
//	 6  progress     channel, emitter             low n, cut n, open events n, bytes n, since z, need: seq n, index n, stamp z,
//	                                              prev z, bytes n; delivered n, dead n, poison n, discarded n, lost n
//	 7  resolved     channel, emitter, block      64 words of 8 bytes little-endian: bit i is seq block*4096+i
//	 8  runs         channel, emitter, first seq  count n, { length n, count n }
//	 9  retries      channel, emitter, first seq  attempts n, first failed z, last failed z, class n, status n, reason s,
//	                                              attempted b
//	10  dead         channel, emitter, first seq  poison b, class n, status n, attempts n, reason s, at z, stamp z, node s,
//	                                              epoch n, compaction [16], count n, { index difference n, ordinal n, replays n,
//	                                              closed b }
//	11  offsets      channel, source and partition, each s in the key    24 bytes, event.SourceOffset
//	12  rejects      index                        count n, { batch n }, bitmap s
//	13  dedup        channel, chunk               base index n, base seq n, count n, { key [16], id hash [8], content hash
//	                                              [8], index n, ordinal n, seq n }
//	14  generations  channel                      first chunk n, closed b, shortened z, count n, { from z, to z, chunks n, keys n }
//	15  applied      row of the ring              count n, { index n, term n }
//	16  hashes       k                            index n, hash s
//	17  retired      channel                      count n, { name s, emitter n, accepted, delivered, dead, poison,
//	                                              discarded, lost: n }
//	18  audit        number                       id [16], at z, actor s, action s, reason s, request id s, count n,
//	                                              { target s }, open b, result s, detail s, closed at z
//	19  claims       channel, emitter, seq        id [16], scheduled b, stamp z
//	20  settled      chunk                        count n, { channel n, emitter n, seq n, index n, ordinal n, outcome kind 1,
//	                                              stamp z }
//	21  carried      channel, first seq           location n, bytes n, count n, { index difference n, ordinal n, count n,
//	                                              stamp difference z }
//	22  held         channel, emitter             seq n
const (
	tableMeta        table = 1
	tableChannel     table = 2
	tableTally       table = 3
	tablePoints      table = 4
	tableEmitter     table = 5
	tableProgress    table = 6
	tableResolved    table = 7
	tableRuns        table = 8
	tableRetry       table = 9
	tableDead        table = 10
	tableOffset      table = 11
	tableRejects     table = 12
	tableDedup       table = 13
	tableGenerations table = 14
	tableTerms       table = 15
	tableHashes      table = 16
	tableRetired     table = 17
	tableAudit       table = 18
	tableClaims      table = 19
	tableSettled     table = 20
	tableCarried     table = 21
	tableHeld        table = 22
	tableEnd         table = 23
)

var tableNames = [tableEnd]string{
	tableMeta: "meta", tableChannel: "channels", tableTally: "tallies", tablePoints: "points", tableEmitter: "emitters",
	tableProgress: "progress", tableResolved: "resolved", tableRuns: "runs", tableRetry: "retries", tableDead: "dead",
	tableOffset: "offsets", tableRejects: "rejects", tableDedup: "dedup", tableGenerations: "generations",
	tableTerms: "applied", tableHashes: "hashes", tableRetired: "retired", tableAudit: "audit",
	tableClaims: "claims", tableSettled: "settled", tableCarried: "carried", tableHeld: "held",
}

func (t table) String() string { return tableNames[t] }

const (
	rowClock   = string(rune(tableMeta)) + "clock"
	rowCluster = string(rune(tableMeta)) + "cluster"
	rowCreated = string(rune(tableMeta)) + "created"
	rowFeature = string(rune(tableMeta)) + "feature"
)

var metaRows = []string{rowClock, rowCluster, rowCreated, rowFeature}

// rowID is a row's key taken apart.
type rowID struct {
	table table
	key   string
	nums  [3]uint64
}

func parseRow(row string) (id rowID) {
	id.table, id.key = table(row[0]), row[1:]
	for i := range id.nums {
		if len(id.key) >= 8*(i+1) {
			id.nums[i] = binary.BigEndian.Uint64([]byte(id.key[8*i : 8*i+8]))
		}
	}
	return id
}

// appendRow appends the value of a row; false when the state has no such row.
func (s *state) appendRow(dst []byte, row string) ([]byte, bool) {
	id := parseRow(row)
	switch id.table {
	case tableMeta:
		return s.appendMeta(dst, row), true
	case tableRejects:
		r := s.rejects[id.nums[0]]
		if r == nil {
			return dst, false
		}
		return r.appendRow(dst), true
	case tableTerms:
		return s.appendTerms(dst, id.nums[0])
	case tableHashes:
		return s.appendHash(dst, id.nums[0])
	case tableAudit:
		return s.audit.appendRow(dst, id.nums[0])
	case tableSettled:
		return s.settled.appendRow(dst, id.nums[0])
	}
	c := s.channels[id.nums[0]]
	if c == nil {
		return dst, false
	}
	switch id.table {
	case tableEmitter, tableProgress, tableResolved, tableRuns, tableRetry, tableDead, tableClaims, tableHeld:
		e := c.emitter(id.nums[1])
		if e == nil {
			return dst, false
		}
		return e.appendRow(dst, id)
	}
	return c.appendRow(dst, id)
}

func (s *state) appendMeta(dst []byte, row string) []byte {
	switch row {
	case rowClock:
		return wire.AppendUint(wire.AppendUint(wire.AppendInt(dst, s.stamp), s.horizon), s.terms.next)
	case rowCreated:
		return wire.AppendUint(dst, s.created)
	case rowFeature:
		return wire.AppendUint(dst, s.feature)
	}
	dst = append(wire.AppendBool(dst, s.cluster.set), s.cluster.id[:]...)
	return wire.AppendString(append(dst, s.cluster.key[:]...), s.cluster.name)
}

func (s *state) appendTerms(dst []byte, n uint64) ([]byte, bool) {
	entries := s.terms.row(n)
	if len(entries) == 0 {
		return dst, false
	}
	dst = wire.AppendUint(dst, uint64(len(entries)))
	for _, e := range entries {
		dst = wire.AppendUint(wire.AppendUint(dst, e.index), e.term)
	}
	return dst, true
}

func (s *state) appendHash(dst []byte, k uint64) ([]byte, bool) {
	i, ok := slices.BinarySearchFunc(s.hashes, k, func(h RingHash, k uint64) int { return cmp.Compare(h.K, k) })
	if !ok {
		return dst, false
	}
	return wire.AppendString(wire.AppendUint(dst, s.hashes[i].Index), s.hashes[i].Hash), true
}

func (c *channel) appendRow(dst []byte, id rowID) ([]byte, bool) {
	switch id.table {
	case tableChannel:
		dst = wire.AppendBytes(wire.AppendUint(dst, c.version), c.canonical)
		dst = wire.AppendUint(dst, uint64(len(c.emitters)))
		for _, e := range c.emitters {
			dst = wire.AppendString(wire.AppendUint(dst, e.index), e.name)
		}
		return dst, true
	case tableTally:
		dst = wire.AppendUint(wire.AppendUint(dst, c.seq), c.duplicates)
		dst = wire.AppendUint(wire.AppendUint(dst, c.poisoned), c.bytes)
		return wire.AppendInt(dst, c.lastStamp), true
	case tablePoints:
		return c.points.appendRow(dst, id.nums[1])
	case tableOffset:
		return c.appendOffset(dst, id)
	case tableDedup:
		return c.dedup.appendChunk(dst, id.nums[1])
	case tableGenerations:
		return c.dedup.appendGenerations(dst), true
	case tableCarried:
		return c.appendCarried(dst, id.nums[1])
	case tableRetired:
		return appendRetired(dst, c.retired), len(c.retired) > 0
	}
	return dst, false
}

// readRow puts a row back. Rows come in the order of their keys.
func (s *state) readRow(row string, value []byte) error {
	id := parseRow(row)
	if id.table == 0 || id.table >= tableEnd {
		return fmt.Errorf("row of table %d: no such table in this version", id.table)
	}
	r := wire.NewReader(value)
	err := s.readTable(row, id, &r)
	if err == nil {
		err = r.Done()
	}
	if err != nil {
		return fmt.Errorf("row of table %s, key %x: %w", id.table, id.key, err)
	}
	return nil
}

func (s *state) readTable(row string, id rowID, r *wire.Reader) error {
	switch id.table {
	case tableMeta:
		return s.readMeta(row, r)
	case tableChannel:
		return s.readChannel(id.nums[0], r)
	case tableRejects:
		s.rejects[id.nums[0]] = readRejects(r)
		s.rejectLine = append(s.rejectLine, id.nums[0])
		return nil
	case tableTerms:
		return s.readTerms(id.nums[0], r)
	case tableHashes:
		s.hashes = append(s.hashes, RingHash{K: id.nums[0], Index: r.Uint(), Hash: r.String(64)})
		return nil
	case tableAudit:
		s.audit.readRow(id.nums[0], r)
		return nil
	case tableSettled:
		s.settled.readRow(id.nums[0], r)
		return nil
	}
	c := s.channels[id.nums[0]]
	if c == nil {
		return fmt.Errorf("channel %d is missing", id.nums[0])
	}
	switch id.table {
	case tableCarried:
		s.readCarried(c, row, id.nums[1], r)
		return nil
	case tableEmitter, tableProgress, tableResolved, tableRuns, tableRetry, tableDead, tableClaims, tableHeld:
		e := c.emitter(id.nums[1])
		if e == nil {
			return fmt.Errorf("emitter %d of channel %d is missing", id.nums[1], id.nums[0])
		}
		e.readRow(row, id, r)
		if id.table == tableDead && r.Err() == nil {
			s.indexLetters(e, e.letters[len(e.letters)-1])
		}
		return nil
	}
	return c.readRow(row, id, r)
}

func (s *state) readMeta(row string, r *wire.Reader) error {
	switch row {
	case rowClock:
		s.stamp, s.horizon, s.terms.next = r.Int(), r.Uint(), r.Uint()
	case rowCreated:
		s.created = r.Uint()
	case rowFeature:
		if s.feature = r.Uint(); s.feature > FeatureLevel {
			return fmt.Errorf("feature level %d, this binary knows %d", s.feature, FeatureLevel)
		}
	case rowCluster:
		s.cluster.set = r.Bool()
		copy(s.cluster.id[:], r.Raw(len(s.cluster.id)))
		copy(s.cluster.key[:], r.Raw(len(s.cluster.key)))
		s.cluster.name = r.String(1024)
	default:
		return fmt.Errorf("no such row")
	}
	return nil
}

func (s *state) readTerms(n uint64, r *wire.Reader) error {
	entries := make([]appliedEntry, 0, r.Count(2))
	for range cap(entries) {
		entries = append(entries, appliedEntry{r.Uint(), r.Uint()})
	}
	return s.terms.setRow(n, entries)
}

func (s *state) readChannel(index uint64, r *wire.Reader) error {
	c := newChannel(index)
	c.version, c.canonical = r.Uint(), bytes.Clone(r.Bytes())
	var err error
	if c.spec, err = spec.ParseJSON(c.canonical); err != nil {
		return err
	}
	for range r.Count(2) {
		e := newEmitter(c, r.Uint(), r.String(1024))
		i := slices.IndexFunc(c.spec.Emitters, func(x spec.Emitter) bool { return x.Name == e.name })
		if i < 0 {
			return fmt.Errorf("emitter %q is not in the spec", e.name)
		}
		e.spec = c.spec.Emitters[i]
		c.emitters = append(c.emitters, e)
	}
	s.insertChannel(c)
	return nil
}

func (c *channel) readRow(row string, id rowID, r *wire.Reader) error {
	switch id.table {
	case tableTally:
		c.seq, c.duplicates, c.poisoned, c.bytes, c.lastStamp = r.Uint(), r.Uint(), r.Uint(), r.Uint(), r.Int()
	case tablePoints:
		c.points.readRow(row, r)
	case tableOffset:
		return c.readOffset(row, id, r)
	case tableDedup:
		c.dedup.readChunk(row, id.nums[1], r)
	case tableGenerations:
		return c.dedup.readGenerations(r)
	case tableRetired:
		c.retired = readRetired(r)
	}
	return nil
}

func offsetRow(channelIndex uint64, id offsetID) string {
	b := binary.BigEndian.AppendUint64([]byte{byte(tableOffset)}, channelIndex)
	return string(wire.AppendString(wire.AppendString(b, id.source), id.partition))
}

func parseOffsetID(key string) (offsetID, error) {
	r := wire.NewReader([]byte(key[8:]))
	id := offsetID{r.String(1 << 20), r.String(1 << 20)}
	return id, r.Done()
}

func (c *channel) appendOffset(dst []byte, id rowID) ([]byte, bool) {
	key, err := parseOffsetID(id.key)
	o := c.offsets[key]
	if err != nil || o == nil {
		return dst, false
	}
	return o.value.Append(dst), true
}

func (c *channel) readOffset(row string, id rowID, r *wire.Reader) error {
	key, err := parseOffsetID(id.key)
	if err != nil {
		return err
	}
	value, err := event.DecodeSourceOffset(r.Rest())
	c.offsets[key] = &offset{value: value, row: row}
	return err
}
