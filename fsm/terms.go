package fsm

import (
	"fmt"
	"slices"
)

// The ring of applied entries: a node that was given a snapshot is then sent older entries again (DESIGN 4.4) and must
// skip them, but only if they are the very entries that it applied.
const (
	termSlots   = 8192
	termsPerRow = 256
)

type appliedEntry struct{ index, term uint64 }

// termRing holds the last termSlots applied entries. Entry number n since the beginning lies in slot n % termSlots.
type termRing struct {
	slots []appliedEntry // grows to termSlots, then is a ring
	next  uint64         // number of the next entry
}

// push adds an entry and gives the number of the row that changed.
func (r *termRing) push(e appliedEntry) (row uint64) {
	slot := r.next % termSlots
	if slot == uint64(len(r.slots)) {
		r.slots = append(r.slots, e)
	} else {
		r.slots[slot] = e
	}
	r.next++
	return slot / termsPerRow
}

// at gives the i-th oldest entry of the ring.
func (r *termRing) at(i int) appliedEntry {
	if len(r.slots) < termSlots {
		return r.slots[i]
	}
	return r.slots[(r.next+uint64(i))%termSlots]
}

// check tells whether an entry at or below the applied index is the one that was applied. Entries older than the ring
// cannot be told and pass.
func (r *termRing) check(index, term uint64) error {
	n := len(r.slots)
	if n == 0 || index < r.at(0).index {
		return nil
	}
	lo, hi := 0, n
	for lo < hi {
		mid := (lo + hi) / 2
		if r.at(mid).index < index {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == n || r.at(lo).index != index {
		return fmt.Errorf("entry %d term %d comes again, but no command was applied at that index", index, term)
	}
	if got := r.at(lo).term; got != term {
		return fmt.Errorf("entry %d comes again with term %d, but it was applied with term %d", index, term, got)
	}
	return nil
}

func (r *termRing) row(n uint64) []appliedEntry {
	lo := int(n) * termsPerRow
	if lo >= len(r.slots) {
		return nil
	}
	return r.slots[lo:min(lo+termsPerRow, len(r.slots))]
}

// setRow puts back what row gave; rows come in ascending order.
func (r *termRing) setRow(n uint64, entries []appliedEntry) error {
	if uint64(len(r.slots)) != n*termsPerRow || len(r.slots)+len(entries) > termSlots {
		return fmt.Errorf("row %d of the applied ring is out of place", n)
	}
	r.slots = append(slices.Grow(r.slots, len(entries)), entries...)
	return nil
}
