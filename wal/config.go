package wal

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/internal/vfs"
)

// Defaults and limits of Config.
const (
	DefaultSegmentBytes = 64 << 20
	MinSegmentBytes     = 4 * blockSize
	MaxSegmentBytes     = 0xffff * blockSize // a tag names a block in 16 bits
	DefaultCacheBytes   = 64 << 20
	DefaultStallTimeout = 10 * time.Second
	DefaultMarkInterval = time.Second
	DefaultSpares       = 2
	DefaultSpaceCheck   = time.Second
)

// Config says how a log is kept. The zero value is usable.
type Config struct {
	// FS is the file system, default vfs.OS.
	FS vfs.FS
	// SegmentBytes is the size of a segment file, default 64 MiB; a multiple
	// of 4 KiB from 16 KiB to 256 MiB less one block. It may change between
	// starts. An entry that does not fit gets a larger segment of its own.
	SegmentBytes int64
	// CacheBytes bounds the payload bytes of the newest entries that are kept
	// in memory, default 64 MiB; negative means no cache.
	CacheBytes int64
	// StallTimeout is how long one write or fsync may take before it counts
	// as failed (I11), default 10 s.
	StallTimeout time.Duration
	// MarkInterval is the least time between two durable marks that only
	// follow appends, default 1 s. It is how much of the tail a lost sector
	// may pass for torn.
	MarkInterval time.Duration
	// Spares bounds how many dropped segment files are kept to be used again,
	// default 2 (what one snapshot lets go at a time, so that a busy log
	// hardly ever makes a new file); negative means none. One is prepared ahead
	// in any case.
	Spares int
	// ReserveBytes is the size of a ballast file that is given back to the file
	// system when it is nearly full, so that what must still be written can be
	// (the last segments, the checkpoint beside the log); default 0, none.
	ReserveBytes int64
	// LowWaterBytes is the free space below which Stats says LowWater, and the
	// node should take no new events; default twice SegmentBytes.
	LowWaterBytes int64
	// MaxBytes bounds what the folder may take; the log keeps no such bound
	// itself (it deletes only what is allowed to go), it tells in Stats.
	MaxBytes int64
	// SpaceCheck is how often free space is looked at, default 1 s.
	SpaceCheck time.Duration
	// AllowDamage lets Open succeed on a log with damage that can be repaired:
	// Log.Damage tells it, the entries in it answer with a *DamageError, and
	// while the newest segment is damaged nothing can be appended. See Repair.
	AllowDamage bool
	// MarkLost is asked when the mark is missing or bad beside segments, and
	// AllowDamage is set: nobody knows then how far the log reached. When it
	// returns nil the log is opened with what its files show, and the mark made
	// anew; the caller must have noted durably by then that the node is in
	// doubt. nil, or an error: Open fails.
	MarkLost func(error) error
	// Logger, default slog.Default().
	Logger *slog.Logger
	// Registerer takes the metrics penstock_wal_*, nil for none.
	Registerer prometheus.Registerer
	// Fatal is called once, with the first write, fsync or stall error, from
	// the goroutine that met it (I11). It should end the process with the
	// exit code of a disk fault; when it returns, every later call of the log
	// fails. It must not wait for calls of the log. Default: panic.
	Fatal func(error)
}

func (c Config) withDefaults() Config {
	if c.FS == nil {
		c.FS = vfs.OS
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = DefaultSegmentBytes
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = DefaultCacheBytes
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = DefaultStallTimeout
	}
	if c.MarkInterval == 0 {
		c.MarkInterval = DefaultMarkInterval
	}
	if c.Spares == 0 {
		c.Spares = DefaultSpares
	}
	if c.LowWaterBytes == 0 {
		c.LowWaterBytes = 2 * c.SegmentBytes
	}
	if c.SpaceCheck == 0 {
		c.SpaceCheck = DefaultSpaceCheck
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Fatal == nil {
		c.Fatal = func(err error) { panic(err) }
	}
	return c
}

func (c Config) validate() error {
	if c.SegmentBytes < MinSegmentBytes || c.SegmentBytes > MaxSegmentBytes || c.SegmentBytes%blockSize != 0 {
		return fmt.Errorf("wal: segment size %d is not a multiple of %d from %d to %d",
			c.SegmentBytes, blockSize, MinSegmentBytes, MaxSegmentBytes)
	}
	return nil
}

// spares is the bound on files kept ready.
func (c Config) spares() int { return max(c.Spares, 1) }

func (c Config) blocks() uint32 { return uint32(c.SegmentBytes / blockSize) }
