package fsm

import "sort"

// Run is a closed compaction: the deliveries First..Last of one emitter, by channel sequence number.
type Run struct{ First, Last uint64 }

// runs are the closed runs of one emitter, without gaps from one to the next. Equal lengths in a row are one pair, so that
// a backlog of runs cut by count, single events above all, costs a few bytes however long it is.
type runs struct{ chunks []*runChunk }

type runPair struct{ length, count uint64 }

const pairsPerRow = 256

// runChunk holds the runs first..last. Once another chunk follows, it never changes.
type runChunk struct {
	first, last uint64
	pairs       []runPair
	row         string
}

// add appends count runs of the given length, the first of which begins at first, and gives the row that changed.
func (r *runs) add(e *emitter, first, length, count uint64) string {
	n := len(r.chunks)
	if n > 0 {
		c := r.chunks[n-1]
		if p := &c.pairs[len(c.pairs)-1]; p.length == length {
			p.count += count
			c.last += length * count
			return c.row
		}
	}
	if n == 0 || len(r.chunks[n-1].pairs) == pairsPerRow {
		r.chunks = append(r.chunks, &runChunk{
			first: first, last: first - 1, row: rowKey(tableRuns, e.ch.index, e.index, first),
		})
	}
	c := r.chunks[len(r.chunks)-1]
	c.pairs = append(c.pairs, runPair{length, count})
	c.last += length * count
	return c.row
}

// each calls f with the closed runs in order, from the one that holds seq (or the first one known), until f is false.
func (r *runs) each(seq uint64, f func(Run) bool) {
	i := sort.Search(len(r.chunks), func(i int) bool { return r.chunks[i].last >= seq })
	for ; i < len(r.chunks); i++ {
		if !r.chunks[i].each(seq, f) {
			return
		}
	}
}

func (c *runChunk) each(seq uint64, f func(Run) bool) bool {
	first := c.first
	for _, p := range c.pairs {
		end := first + p.length*p.count
		if seq >= end {
			first = end
			continue
		}
		if seq > first {
			first += (seq - first) / p.length * p.length
		}
		for ; first < end; first += p.length {
			if !f(Run{first, first + p.length - 1}) {
				return false
			}
		}
	}
	return true
}

// find gives the closed run that holds seq.
func (r *runs) find(seq uint64) (run Run, ok bool) {
	r.each(seq, func(at Run) bool {
		run, ok = at, at.First <= seq && seq <= at.Last
		return false
	})
	return run, ok
}

// prune drops closed chunks wholly at or below low, and gives their rows.
func (r *runs) prune(low uint64) (rows []string) {
	for len(r.chunks) > 1 && r.chunks[0].last <= low {
		rows = append(rows, r.chunks[0].row)
		r.chunks[0] = nil
		r.chunks = r.chunks[1:]
	}
	return rows
}
