package emit

import (
	"container/heap"
	"time"
)

// schedule holds the works that may be started: first attempts and due retries, each first in first out, and the retries that
// wait for their time.
type schedule struct {
	first, again fifo[*work]
	waiting      retryHeap

	slots            int
	inFlight         int
	retriesInFlight  int
	lastPickWasRetry bool
}

// add files w by whether it is due and whether it was attempted before.
func (s *schedule) add(w *work, now time.Time) {
	switch {
	case w.due.After(now):
		heap.Push(&s.waiting, w)
	case w.attempts > 0:
		s.again.push(w)
	default:
		s.first.push(w)
	}
}

// ripen moves the retries whose time has come.
func (s *schedule) ripen(now time.Time) {
	for len(s.waiting) > 0 && !s.waiting[0].due.After(now) {
		s.again.push(heap.Pop(&s.waiting).(*work))
	}
}

// ready tells whether a slot is free and a work waits for it.
func (s *schedule) ready() bool { return s.inFlight < s.slots && s.first.len()+s.again.len() > 0 }

// next tells whether the next work to start is a retry.
//
// While both kinds wait they take turns, and retries hold at most half of the slots: first attempts are never stuck behind
// retries that hang, and retries are never starved.
func (s *schedule) next() (retry bool) {
	retry = s.again.len() > 0
	if retry && s.first.len() > 0 {
		retry = s.retriesInFlight < max(1, s.slots/2) && !s.lastPickWasRetry
	}
	return retry
}

// waits tells whether a work of that kind may be started.
func (s *schedule) waits(retry bool) bool {
	if retry {
		return s.again.len() > 0
	}
	return s.first.len() > 0
}

// pick takes a work of that kind and gives it a slot.
func (s *schedule) pick(retry bool) *work {
	var w *work
	if retry {
		w = s.again.pop()
		s.retriesInFlight++
	} else {
		w = s.first.pop()
	}
	s.inFlight++
	s.lastPickWasRetry = retry
	w.retry = retry
	return w
}

// release gives back the slot of w.
func (s *schedule) release(w *work) {
	s.inFlight--
	if w.retry {
		s.retriesInFlight--
		w.retry = false
	}
}

// retryHeap orders works by when they are due, the older one first on a tie.
type retryHeap []*work

func (h retryHeap) Len() int { return len(h) }
func (h retryHeap) Less(i, j int) bool {
	if !h[i].due.Equal(h[j].due) {
		return h[i].due.Before(h[j].due)
	}
	return h[i].first < h[j].first
}
func (h retryHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *retryHeap) Push(x any)   { *h = append(*h, x.(*work)) }
func (h *retryHeap) Pop() any {
	old := *h
	n := len(old) - 1
	w := old[n]
	old[n] = nil
	*h = old[:n]
	return w
}

// fifo is a queue that gives its memory back as it empties.
type fifo[T any] struct {
	items []T
	head  int
}

func (q *fifo[T]) len() int { return len(q.items) - q.head }
func (q *fifo[T]) push(x T) { q.items = append(q.items, x) }
func (q *fifo[T]) front() T { return q.items[q.head] }
func (q *fifo[T]) pop() T {
	var zero T
	x := q.items[q.head]
	q.items[q.head] = zero
	q.head++
	switch {
	case q.head == len(q.items):
		q.items, q.head = nil, 0
	case q.head >= 1024 && q.head*2 >= len(q.items):
		q.items, q.head = append([]T(nil), q.items[q.head:]...), 0
	}
	return x
}
