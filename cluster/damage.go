package cluster

import (
	"context"
	"errors"
	"hash/crc32"
	"time"

	"github.com/hashicorp/raft"
)

// LogDamage is one place of the log that cannot be read.
type LogDamage struct {
	// First and Last are the entries lost, inclusive. First 0: none is. OpenEnd: nobody knows how many from First on; Last is 0.
	First, Last uint64
	OpenEnd     bool
	// Known: (First, Term, PayloadCRC) is exactly what must come back; First == Last then.
	Known      bool
	Term       uint64
	PayloadCRC uint32
	// Hole: it was lost before and left so, since a snapshot covers it.
	Hole bool
	Text string
}

// RepairLog is a Log that opens with damage and can be repaired. What each method promises stands at package wal's.
type RepairLog interface {
	Log
	// Damage is in order of the entries, holes among it.
	Damage() []LogDamage
	// Repair takes entries that were lost; nil mends damage that cost none. An entry that is not what was lost is an error, and what
	// came before it in the call is taken.
	Repair(entries []*raft.Log) error
	// LeaveHoles gives up what is lost at or below index.
	LeaveHoles(index uint64) error
	// CutAt removes everything from index on; prevTerm is the term of index-1 when that entry is lost itself, else 0.
	CutAt(index, prevTerm uint64) error
	// Recovered tells how far the log reached as its durable mark says, and whether it is shorter since damage was cut off.
	Recovered() (mark uint64, short bool)
	// Recheck looks at the disk again where an entry could not be read, so that Damage tells it.
	Recheck(ctx context.Context, index uint64) error
	// Scrub reads all but the newest entries from the disk, at a rate that takes about so long, so that Damage tells what has rotted.
	Scrub(ctx context.Context, within time.Duration) error
}

// isDamage tells damage from other errors of a log.
func isDamage(err error) bool {
	var d interface{ Damaged() uint64 }
	return errors.As(err, &d)
}

func payloadCRC(e *raft.Log) uint32 {
	return crc32.Update(crc32.Checksum(e.Data, castagnoli), castagnoli, e.Extensions)
}

// unresolved is the damage with which Raft cannot start: all but holes up to the index that it starts from.
func (c *Cluster) unresolved() []LogDamage {
	if c.repairLog == nil {
		return nil
	}
	start, _ := c.snaps.start()
	var out []LogDamage
	for _, d := range c.repairLog.Damage() {
		if d.First > 0 && !(d.Hole && d.Last <= start) {
			out = append(out, d)
		}
	}
	return out
}

// lostEntries counts the entries that cannot be read, an open end as one.
func (c *Cluster) lostEntries() (n uint64) {
	if c.repairLog == nil {
		return 0
	}
	for _, d := range c.repairLog.Damage() {
		switch {
		case d.OpenEnd:
			n++
		case d.First > 0:
			n += d.Last - d.First + 1
		}
	}
	return n
}

// lastEntry is the end of the log; term 0 when the last entry cannot be read.
func (c *Cluster) lastEntry() (index, term uint64, err error) {
	for range 3 { // it may just have been cut
		if index, err = c.log.LastIndex(); err != nil || index == 0 {
			return 0, 0, err
		}
		if term, err = c.log.rawTermOf(index); err == nil {
			return index, term, nil
		}
		if isDamage(err) {
			if start, startTerm := c.snaps.start(); start == index {
				return index, startTerm, nil
			}
			return index, 0, nil
		}
		if !errors.Is(err, raft.ErrLogNotFound) {
			return 0, 0, err
		}
	}
	return index, 0, nil
}
