package wal

import "github.com/hashicorp/raft"

// entryOverhead is what a cached entry costs beside its payload.
const entryOverhead = 128

// tailCache keeps the newest entries, bounded in bytes, as they were stored:
// Data and Extensions are the caller's slices, shared and read-only from
// StoreLogs on. (Raft and its transport never write to them again, and hand
// each entry its own.) Entries enter only after their fsync succeeded.
//
// Guarded by Log.mu: get under the read lock, the rest under the write lock.
type tailCache struct {
	limit int64
	bytes int64
	// ring holds count entries from index first on, at ring[index % len].
	ring  []raft.Log
	first uint64
	count int
}

func cost(l *raft.Log) int64 {
	return entryOverhead + int64(cap(l.Data)) + int64(cap(l.Extensions))
}

func (c *tailCache) at(index uint64) *raft.Log { return &c.ring[index%uint64(len(c.ring))] }

func (c *tailCache) get(index uint64, out *raft.Log) bool {
	if c.count == 0 || index < c.first || index >= c.first+uint64(c.count) {
		return false
	}
	*out = *c.at(index)
	return true
}

// add appends the entry behind the newest; entries come without gaps.
func (c *tailCache) add(l *raft.Log) {
	size := cost(l)
	if size > c.limit {
		c.clear() // it would leave a gap
		return
	}
	for c.count > 0 && c.bytes+size > c.limit {
		c.evict()
	}
	if c.count == len(c.ring) {
		c.grow()
	}
	if c.count == 0 {
		c.first = l.Index
	}
	*c.at(l.Index) = *l
	c.count++
	c.bytes += size
}

func (c *tailCache) evict() {
	e := c.at(c.first)
	c.bytes -= cost(e)
	*e = raft.Log{}
	c.first++
	c.count--
}

func (c *tailCache) grow() {
	old := *c
	c.ring = make([]raft.Log, max(64, 2*len(old.ring)))
	for i := range uint64(old.count) {
		*c.at(c.first + i) = *old.at(c.first + i)
	}
}

// truncate drops entries at and above index.
func (c *tailCache) truncate(index uint64) {
	for c.count > 0 && c.first+uint64(c.count) > index {
		e := c.at(c.first + uint64(c.count) - 1)
		c.bytes -= cost(e)
		*e = raft.Log{}
		c.count--
	}
}

func (c *tailCache) clear() {
	clear(c.ring)
	c.count, c.bytes = 0, 0
}
