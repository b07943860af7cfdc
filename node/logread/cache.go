package logread

import (
	"container/list"
	"sync"
)

// cache keeps decoded entries, least recently used out first, within a bound in bytes. An entry is immutable once the
// state machine has applied it, so nothing here is ever invalidated; positions below the horizon are the reader's to refuse.
type cache struct {
	limit int64
	mu    struct {
		sync.Mutex
		size  int64
		order *list.List // front: most recently used; of *Entry
		byIdx map[uint64]*list.Element
	}
}

func newCache(limit int64) *cache {
	c := &cache{limit: limit}
	c.mu.order = list.New()
	c.mu.byIdx = make(map[uint64]*list.Element)
	return c
}

func (c *cache) get(index uint64) (*Entry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el, ok := c.mu.byIdx[index]
	if !ok {
		return nil, false
	}
	c.mu.order.MoveToFront(el)
	return el.Value.(*Entry), true
}

func (c *cache) put(e *Entry) {
	if e.size > c.limit {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.mu.byIdx[e.Index]; ok {
		return
	}
	c.mu.byIdx[e.Index] = c.mu.order.PushFront(e)
	c.mu.size += e.size
	for c.mu.size > c.limit {
		oldest := c.mu.order.Back()
		gone := c.mu.order.Remove(oldest).(*Entry)
		delete(c.mu.byIdx, gone.Index)
		c.mu.size -= gone.size
	}
}
