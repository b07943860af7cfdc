package fsm

// EntryRejects says which events and batches of one entry do not count: duplicates, and every event of a refused batch.
// The zero value rejects nothing.
type EntryRejects struct {
	refused []uint32 // refused batch commands of the entry, counted from 0, ascending
	bits    []byte   // by ordinal; ends with its last bit that is set
}

// Batch tells whether the i-th batch command of the entry (counted from 0, batch commands only) was refused as a whole.
func (r *EntryRejects) Batch(i int) bool {
	for _, n := range r.refused {
		if int(n) == i {
			return true
		}
	}
	return false
}

// Event tells whether the event with that ordinal does not count. It is true for each event of a refused batch, too.
func (r *EntryRejects) Event(ordinal uint32) bool {
	i := int(ordinal / 8)
	return i < len(r.bits) && r.bits[i]>>(ordinal%8)&1 == 1
}

func (r *EntryRejects) set(ordinal uint32) {
	for int(ordinal/8) >= len(r.bits) {
		r.bits = append(r.bits, 0)
	}
	r.bits[ordinal/8] |= 1 << (ordinal % 8)
}

func (r *EntryRejects) refuse(batch int, first, count uint32) {
	r.refused = append(r.refused, uint32(batch))
	for i := range count {
		r.set(first + i)
	}
}
