package emit

import "penstock/internal/spec"

// lanes says what may be in flight together.
//
//   - order none: everything.
//   - order key: a compaction stands in the lane of each key that its events have, and may go only when it is the first in all
//     of them. Whole compactions are attempted, so one with the keys A and B makes later ones with A or B wait, and waits for
//     earlier ones with A or B. Events without a key bind nothing. Works enter in log order, so this cannot deadlock.
//   - order total: there is one lane, and everything stands in it.
//
// A work leaves its lanes when it was delivered, or, if it ends otherwise, when its end is committed: had a later event of the
// lane been sent before that, a crash could make the earlier one arrive for the first time after it.
type lanes struct {
	order spec.Order
	byKey map[uint64][]*work
}

func newLanes(order spec.Order) *lanes { return &lanes{order: order, byKey: map[uint64][]*work{}} }

// enter puts w at the end of its lanes and tells whether it may go at once.
func (l *lanes) enter(w *work) bool {
	w.keys = l.keysOf(w.deliveries)
	for _, k := range w.keys {
		if len(l.byKey[k]) > 0 {
			w.blocked++
		}
		l.byKey[k] = append(l.byKey[k], w)
	}
	return w.blocked == 0
}

// leave takes w, which stands first in all its lanes, out of them, and returns those that may go now.
func (l *lanes) leave(w *work) (free []*work) {
	for _, k := range w.keys {
		rest := l.byKey[k][1:]
		if len(rest) == 0 {
			delete(l.byKey, k)
			continue
		}
		l.byKey[k] = rest
		if rest[0].blocked--; rest[0].blocked == 0 {
			free = append(free, rest[0])
		}
	}
	w.keys = nil
	return free
}

// binds tells whether the deliveries stand in any lane.
func (l *lanes) binds(deliveries []Delivery) bool { return len(l.keysOf(deliveries)) > 0 }

func (l *lanes) keysOf(deliveries []Delivery) []uint64 {
	switch l.order {
	case spec.OrderTotal:
		return []uint64{0}
	case spec.OrderKey:
	default:
		return nil
	}
	if len(deliveries) == 1 {
		if k := deliveries[0].OrderKey; k != 0 {
			return []uint64{k}
		}
		return nil
	}
	var keys []uint64
	seen := map[uint64]bool{0: true}
	for i := range deliveries {
		if k := deliveries[i].OrderKey; !seen[k] {
			seen[k] = true
			keys = append(keys, k)
		}
	}
	return keys
}
