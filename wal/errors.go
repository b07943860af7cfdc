package wal

import (
	"errors"
	"fmt"
)

var (
	// ErrClosed is returned by every call after Close.
	ErrClosed = errors.New("wal: closed")
	// ErrFailed wraps the first write, fsync or stall error; every call after
	// it returns it (I11).
	ErrFailed = errors.New("wal: failed")
	// ErrStalled is the cause when a write or fsync took too long, in time
	// during which this process was running.
	ErrStalled = errors.New("wal: disk stalled")
	// ErrTooNew says that the folder was written by a newer version. That is
	// not damage: nothing is wrong with the files.
	ErrTooNew = errors.New("wal: format is newer than this program")
	// ErrInUse says that another process has the folder open.
	ErrInUse = errors.New("wal: folder is in use")
	// ErrNotContiguous refuses entries that would leave a gap, or overlap.
	ErrNotContiguous = errors.New("wal: entries are not contiguous with the log")
	// ErrBelowFloor refuses to delete entries that are still needed (I3).
	ErrBelowFloor = errors.New("wal: range reaches below the floor")
	// ErrMismatch refuses a repair that is not what was lost.
	ErrMismatch = errors.New("wal: not the entry that was lost")
	// ErrTooLarge refuses an entry above MaxEntryBytes.
	ErrTooLarge = errors.New("wal: entry too large")
)

// DamageKind says what is wrong, for operators, metrics and repair.
type DamageKind string

// The kinds of damage.
const (
	DamageHeader   DamageKind = "segment-header"  // block 0 of a segment is bad
	DamageBlock    DamageKind = "block"           // a block is missing, mixed, or fails its CRC
	DamageRecord   DamageKind = "record"          // blocks are good, a record in them is not
	DamagePayload  DamageKind = "payload"         // record header good, payload CRC is not
	DamageStray    DamageKind = "stray"           // a sector past the end that no write can have left
	DamageShort    DamageKind = "short-file"      // a file is shorter than it was made
	DamageMissing  DamageKind = "missing-segment" // a segment the log refers to is not there
	DamageBehind   DamageKind = "behind-mark"     // the log ends before what was known durable
	DamageMark     DamageKind = "mark"            // the mark file is missing or bad
	DamageConflict DamageKind = "conflict"        // two segments contradict each other
	DamageHole     DamageKind = "hole"            // an entry was lost before and is not repaired yet
)

// DamageError says that bytes which must be there are not, or are wrong.
// Damage is never shortened away and never answered as "not found".
type DamageError struct {
	File   string     // path of the file
	Offset int64      // byte offset in it, 0 when the whole file is meant
	Index  uint64     // first log index that is in doubt, 0 when none can be named
	Kind   DamageKind //
	Err    error      // detail or cause, may be nil
}

func (e *DamageError) Error() string {
	s := fmt.Sprintf("wal: damaged: %s in %s at byte %d (index %d)", e.Kind, e.File, e.Offset, e.Index)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *DamageError) Unwrap() error { return e.Err }

// Damaged is the index in doubt. By this method packages that do not know this
// one tell damage from other errors.
func (e *DamageError) Damaged() uint64 { return e.Index }
