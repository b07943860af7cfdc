package wal

import (
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/hashicorp/raft"
)

// Damage is one place that is damaged, as [Log.Damage] and [Inspect] tell it.
type Damage struct {
	Kind   DamageKind
	File   string
	Offset int64

	// First and Last are the entries that cannot be read, inclusive. First 0:
	// none is lost (a segment's header, say). OpenEnd: it is not known how
	// many there were from First on, and Last is 0; only records that are
	// known to be committed may be put there.
	First, Last uint64
	OpenEnd     bool

	// Known: the record's header is good, so that (First, Term, PayloadCRC) is
	// exactly what must come back; First == Last then. PayloadCRC is that of
	// [PayloadCRC].
	Known      bool
	Term       uint64
	PayloadCRC uint32

	Err error // detail, never nil
}

// PayloadCRC is the checksum by which a record of another node is known to be
// the one that was lost: CRC32C of Data and Extensions, one behind the other.
func PayloadCRC(e *raft.Log) uint32 { return crc32.Update(crcOf(e.Data), castag, e.Extensions) }

// damageError is what a reader of index gets.
func (d *Damage) damageError(index uint64) *DamageError {
	return &DamageError{File: d.File, Offset: d.Offset, Index: index, Kind: d.Kind, Err: d.Err}
}

func (d *Damage) covers(index uint64) bool {
	return d.First > 0 && index >= d.First && (d.OpenEnd || index <= d.Last)
}

// String is one line for logs and tools.
func (d Damage) String() string {
	switch {
	case d.First == 0:
		return fmt.Sprintf("%s in %s at byte %d, no entry lost: %v", d.Kind, d.File, d.Offset, d.Err)
	case d.OpenEnd:
		return fmt.Sprintf("%s in %s at byte %d, entries from %d on: %v", d.Kind, d.File, d.Offset, d.First, d.Err)
	}
	return fmt.Sprintf("%s in %s at byte %d, entries %d to %d: %v", d.Kind, d.File, d.Offset, d.First, d.Last, d.Err)
}

// damageOf turns the error of a strict scan into a Damage without entries.
func damageOf(e *DamageError) Damage {
	d := Damage{Kind: e.Kind, File: e.File, Offset: e.Offset, Err: e.Err}
	if d.Err == nil {
		d.Err = e
	}
	return d
}

// damagedAt is the damage that an entry of the segment lies in, nil when none.
// Log.mu must be held.
func (s *segment) damagedAt(index uint64) *Damage {
	if len(s.damage) == 0 {
		return nil
	}
	i, _ := slices.BinarySearchFunc(s.damage, index, func(d Damage, index uint64) int {
		if d.First == 0 || d.Last < index {
			return -1
		}
		return 1
	})
	if i < len(s.damage) && s.damage[i].covers(index) {
		return &s.damage[i]
	}
	return nil
}

// Damage says what is damaged, in order of the entries it makes unreadable.
// Holes that were left (LeaveHoles) are among it. A log opened without
// Config.AllowDamage has none until a scrub finds some.
func (l *Log) Damage() []Damage {
	l.mu.RLock()
	defer l.mu.RUnlock()
	out := slices.Clone(l.mu.loose)
	for _, seg := range l.mu.segs {
		out = append(out, seg.damage...)
	}
	if l.mu.openEnd != nil {
		out = append(out, *l.mu.openEnd)
	}
	return out
}

// cutDamage leaves of a list what lies below index.
func cutDamage(list []Damage, index uint64) []Damage {
	var out []Damage
	for _, d := range list {
		if d.First >= index {
			continue
		}
		if d.First > 0 {
			d.Last = min(d.Last, index-1)
		}
		out = append(out, d)
	}
	return out
}

// addDamage appends, in one piece with the one before when they are alike.
func addDamage(list []Damage, d Damage) []Damage {
	if n := len(list); n > 0 && !d.Known && !list[n-1].Known && d.Kind == DamageHole &&
		list[n-1].Kind == DamageHole && list[n-1].Last+1 == d.First {
		list[n-1].Last = d.Last
		return list
	}
	return append(list, d)
}
