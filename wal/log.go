package wal

import (
	"io"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"penstock/internal/vfs"

	"penstock/internal/mutant"
)

var (
	_ raft.LogStore          = (*Log)(nil)
	_ raft.MonotonicLogStore = (*Log)(nil)
)

// Log is an open log. All methods may be called from any goroutine: Raft
// stores from its main goroutine, compacts from its snapshot goroutine, reads
// from one goroutine per follower, and the node moves the floor meanwhile.
//
// Three locks, taken in this order and never the other way:
//
//	turn    one writer at a time; held across I/O (guard.go)
//	markMu  one mark at a time; held across I/O
//	mu      memory only; never held across I/O, so reads never wait for a disk write
type Log struct {
	dir         string
	cfg         Config
	fs          vfs.FS
	log         *slog.Logger
	metrics     *metrics
	lock        io.Closer
	recovery    Recovery
	fuse        *fuse
	closed      chan struct{} // closed by Close, with the turn held
	turn        chan struct{} // capacity 1: who sent holds the turn
	loops       sync.WaitGroup
	prep        preparer
	space       spaceWatch
	quarantined int           // files kept apart when the log was opened
	wake        chan struct{} // keeper: something to do; capacity 1
	dirty       atomic.Bool   // an append since the last mark; the first one wakes the keeper
	urgent      atomic.Bool   // the keeper need not wait for the interval
	scrubbing   atomic.Bool   // one scrub at a time
	since       atomic.Int64  // unix ns at which the turn was taken, 0 when it is free

	// Only touched with the turn held.
	writer struct {
		enc    encoder
		gen    uint32 // highest generation ever used
		number uint64 // highest segment number ever used
		rolled bool   // the mark does not name the tail yet
		// pending are entries given to Repair whose segment lacks others still.
		pending map[uint64]*raft.Log
	}

	markMu  sync.Mutex
	marker  *marker // guarded by markMu
	closing bool    // guarded by markMu: the next mark is the last

	mu struct {
		sync.RWMutex
		// segs is the chain, oldest first, never empty; the last one is
		// written to. Invariant: live entries run without gap from base+1 to
		// last, and each segment's live entries start at its start.
		segs     []*segment
		base     uint64 // segs[0].start - 1
		baseTerm uint64
		last     uint64 // == base when empty
		lastTerm uint64 // term of last
		floor    uint64 // 0: never set, nothing may go
		allowed  uint64 // highest index that Raft let go
		cache    tailCache
		doomed   []*segment // out of the chain; their files go behind the next mark
		// owed is how far the log once reached, when damage was cut off below
		// it: the mark goes on saying so until the log is as long again.
		owed, owedTerm uint64
		// stuck is why nothing can be appended: the newest segment is damaged.
		stuck *DamageError
		// openEnd: entries may be lost from last+1 on, nobody knows how many.
		openEnd *Damage
		// loose is damage of files that are in no chain.
		loose []Damage
	}
}

// Recovery is what Open found.
type Recovery struct {
	Fresh       bool          // there was no log: it was created
	First, Last uint64        // as FirstIndex and LastIndex
	LastTerm    uint64        //
	BaseIndex   uint64        //
	BaseTerm    uint64        //
	Segments    int           //
	Entries     uint64        // entries verified
	TornBytes   int64         // size of the torn batch that was cut off, 0 if none
	TornFile    string        // where
	TornOffset  int64         //
	DeadFiles   int           // superseded or dropped segment files that were removed
	MarkIndex   uint64        // last index of the durable mark found
	MarkTerm    uint64        //
	MarkDoubt   error         // one of the mark's two slots was bad
	MarkLost    error         // both were, or there was no mark: MarkIndex is 0 and nobody knows how far the log reached
	Damaged     []Damage      // as Damage when the log was opened; only with AllowDamage
	Short       bool          // damage was cut off (now or before) and the log is not as long again as MarkIndex: the node is in doubt
	Duration    time.Duration //
}

// Stats is a snapshot of the log's extent.
type Stats struct {
	First, Last         uint64 // as FirstIndex and LastIndex
	LastTerm            uint64
	BaseIndex, BaseTerm uint64
	Floor               uint64
	Allowed             uint64 // highest index that Raft let go
	Segments            int
	RetainedBytes       int64 // size of the segment files kept
	Spares              int   // segments ready to be used next
	ReserveBytes        int64 // of the ballast that is there now
	DiskBytes           int64 // retained, spares and ballast together
	MaxBytes            int64 // Config.MaxBytes
	FreeBytes           int64 // of the file system at the last look, -1 when not known
	LowWater            bool  // too little is free: take no new events
	Quarantined         int   // damaged files kept apart when the log was opened
	CacheBytes          int64
}

// IsMonotonic implements raft.MonotonicLogStore: entries never have gaps, and
// after an install Raft removes the whole log.
func (l *Log) IsMonotonic() bool { return true }

// FirstIndex is base + 1, also when the log is empty, with one exception: a
// log that never held anything (base 0, empty) answers 0, as Raft expects of
// a new store. Raft reads it only to compact (where base+1 > last makes the
// range empty), in RecoverCluster, and for a metric.
func (l *Log) FirstIndex() (uint64, error) {
	if err := l.usable(); err != nil {
		return 0, err
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.firstLocked(), nil
}

func (l *Log) firstLocked() uint64 {
	if l.mu.base == 0 && l.mu.last == 0 {
		return 0
	}
	return l.mu.base + 1
}

// LastIndex is the last entry's index, or base on an empty log: NewRaft then
// reads GetLog(base), gets the no-op, and has the right (index, term) for the
// consistency check; 0 on a log that never held anything.
func (l *Log) LastIndex() (uint64, error) {
	if err := l.usable(); err != nil {
		return 0, err
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.last, nil
}

// Base is (index, term) just below the first entry; index is 0 or at least 2.
func (l *Log) Base() (index, term uint64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.base, l.mu.baseTerm
}

// GetLog reads one entry. Outside [base, last] (and at base 0) it returns
// exactly raft.ErrLogNotFound, which Raft compares with ==; at base it answers
// an empty no-op of the base's term. Data and Extensions are shared: read
// only. Damage is a *DamageError.
func (l *Log) GetLog(index uint64, out *raft.Log) error {
	if err := l.usable(); err != nil {
		return err
	}
	l.mu.RLock()
	switch {
	case index == l.mu.base && index != 0 && !mutant.On(mutant.NoBaseRecord):
		*out = raft.Log{Index: index, Term: l.mu.baseTerm, Type: raft.LogNoop}
		l.mu.RUnlock()
		return nil
	case index <= l.mu.base || index > l.mu.last:
		l.mu.RUnlock()
		return raft.ErrLogNotFound
	case l.mu.cache.get(index, out):
		l.mu.RUnlock()
		return nil
	}
	seg := l.findLocked(index)
	if d := seg.damagedAt(index); d != nil {
		l.mu.RUnlock()
		return d.damageError(index)
	}
	pos, end := seg.span(index)
	seg.file.acquire()
	l.mu.RUnlock()
	h, payload, err := readRecord(seg.file, seg.path, index, pos, end)
	_ = seg.file.release() // see release: a read handle's close tells nothing
	if err != nil {
		return err
	}
	h.fill(out, payload)
	return nil
}

// findLocked returns the segment that holds a live index.
func (l *Log) findLocked(index uint64) *segment {
	lo, hi := 0, len(l.mu.segs)
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; l.mu.segs[mid].start <= index {
			lo = mid
		} else {
			hi = mid
		}
	}
	return l.mu.segs[lo]
}

// Recovery says what Open found.
func (l *Log) Recovery() Recovery { return l.recovery }

// Stats works also after a failure or Close.
func (l *Log) Stats() Stats {
	l.mu.RLock()
	defer l.mu.RUnlock()
	s := Stats{
		First: l.firstLocked(), Last: l.mu.last, LastTerm: l.mu.lastTerm,
		BaseIndex: l.mu.base, BaseTerm: l.mu.baseTerm,
		Floor: l.mu.floor, Allowed: l.mu.allowed,
		Segments: len(l.mu.segs), CacheBytes: l.mu.cache.bytes,
	}
	for _, seg := range l.mu.segs {
		s.RetainedBytes += seg.bytes()
	}
	for _, seg := range l.mu.doomed {
		s.RetainedBytes += seg.bytes()
	}
	s.Spares = len(l.prep.ready)
	s.ReserveBytes = l.space.reserve.Load()
	s.DiskBytes = s.RetainedBytes + int64(s.Spares)*l.cfg.SegmentBytes + s.ReserveBytes
	s.MaxBytes = l.cfg.MaxBytes
	s.FreeBytes, s.LowWater = l.space.free.Load(), l.space.low.Load()
	s.Quarantined = l.quarantined
	return s
}

// WriteOutstanding is how long the append, truncation or reset that is now in
// progress has been so, waiting for a prepared segment included; 0 when there
// is none. A leader that has one for long falls silent (cluster).
func (l *Log) WriteOutstanding() time.Duration {
	since := l.since.Load()
	if since == 0 {
		return 0
	}
	return max(1, time.Duration(time.Now().UnixNano()-since))
}

func clampCache(bytes int64) int64 { return min(max(bytes, 0), math.MaxInt64/2) }
