package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/internal/vfs"

	"penstock/internal/chaos"
	"penstock/internal/mutant"
)

// Errors of a volume.
var (
	// ErrFull: the volume is at its bound. Nothing was written; there is room again when records are replayed or discarded, or
	// when an operator takes sealed files away.
	ErrFull = errors.New("dead-letter volume is at its bound")
	// ErrForeign: the directory is the volume of another node.
	ErrForeign = errors.New("dead-letter volume belongs to another node")
	// ErrClosed: the volume was closed.
	ErrClosed = errors.New("dead-letter volume is closed")
)

// Config of a volume. NodeID is required.
type Config struct {
	NodeID string
	FS     vfs.FS // nil: the real one
	// MaxFiles and MaxBytes bound sealed files, and all records together. Defaults 100 and 5 GiB.
	MaxFiles int
	MaxBytes int64
	// SegmentBytes is the size at which the active file is sealed. Default 32 MiB.
	SegmentBytes int64
	// SealAge is the age at which Maintain seals the active file. Default 10 minutes.
	SealAge time.Duration
	// MaxAge bounds the age of records; 0 is no bound. Overflow says what happens at the bounds: Block, the default, or
	// DropOldest, which needs Discard: it is told the records that are about to go, and returns nil when their discard is
	// committed. It is called without a lock held and may be told of the same record again after a crash.
	MaxAge   time.Duration
	Overflow string
	Discard  func(ctx context.Context, drops []Drop) error
	// MaxLineBytes is the longest line taken for a record. Default 64 MiB.
	MaxLineBytes int
	Now          func() time.Time // for ages in metrics; nil: time.Now
	Logger       *slog.Logger
	Registerer   prometheus.Registerer
}

// Volume is the open volume of this node. Its methods may be called by any goroutine.
type Volume struct {
	cfg     Config
	fs      vfs.FS
	dir     string
	log     *slog.Logger
	lock    io.Closer
	metrics *metrics

	// mu is held during I/O: appends are serial, and a slow disk is a slow volume.
	mu          sync.Mutex
	sealed      []segment // in order of number
	next        uint64    // number of the next sealed file, and in the index of the active one; not used again in this process's life
	active      segment   // size is what is durable
	activeSince time.Time // of its first record
	file        vfs.File  // of the active segment; nil while there is none open
	index       index
	broken      bool  // the active file may hold more than its durable size
	unsettled   bool  // a name may not be durable yet
	failing     error // the last append failed, and not at a bound
	closed      bool

	dropMu sync.Mutex // one drop at a time; taken before mu
}

const (
	lockName       = "LOCK"
	identityName   = "VOLUME"
	activeName     = "active.jsonl"
	quarantineName = "quarantine.jsonl"
	tmpSuffix      = ".tmp"
	fileMode       = 0o600 // records hold payloads
	dirMode        = 0o700
)

// Open locks the volume, recovers it and makes it ready for Append.
func Open(dir string, cfg Config) (*Volume, error) {
	v := &Volume{cfg: cfg.withDefaults(), dir: dir, next: 1, index: newIndex()}
	v.fs, v.log = v.cfg.FS, v.cfg.Logger.With("volume", dir)
	v.metrics = newMetrics(v)
	if cfg.NodeID == "" {
		return nil, errors.New("open dead-letter volume: no node id")
	}
	if o := v.cfg.Overflow; o != Block && (o != DropOldest || cfg.Discard == nil) {
		return nil, fmt.Errorf("open dead-letter volume: overflow %q: want %s, or %s with a way to discard", o, Block, DropOldest)
	}
	if err := v.fs.MkdirAll(dir, dirMode); err != nil {
		return nil, fmt.Errorf("open dead-letter volume: %w", err)
	}
	var err error
	if v.lock, err = v.fs.Lock(v.path(lockName)); err != nil {
		return nil, fmt.Errorf("open dead-letter volume: %w", err)
	}
	if err = v.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open dead-letter volume %s: %w", dir, err), v.lock.Close())
	}
	if reg := v.cfg.Registerer; reg != nil {
		if err := reg.Register(v.metrics); err != nil {
			return nil, errors.Join(fmt.Errorf("open dead-letter volume: %w", err), v.lock.Close())
		}
	}
	return v, nil
}

func (v *Volume) open() error {
	if err := v.checkIdentity(); err != nil {
		return err
	}
	return v.recover()
}

func (c Config) withDefaults() Config {
	if c.FS == nil {
		c.FS = vfs.OS
	}
	if c.MaxFiles == 0 {
		c.MaxFiles = 100
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = 5 << 30
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = 32 << 20
	}
	if c.SealAge == 0 {
		c.SealAge = 10 * time.Minute
	}
	if c.Overflow == "" {
		c.Overflow = Block
	}
	if c.MaxLineBytes == 0 {
		c.MaxLineBytes = 64 << 20
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (v *Volume) path(name string) string { return filepath.Join(v.dir, name) }

// identity is the content of the file VOLUME.
type identity struct {
	Format int    `json:"format"`
	Node   string `json:"node"`
}

// checkIdentity refuses the volume of another node: its records would pass for ours.
func (v *Volume) checkIdentity() error {
	b, err := vfs.ReadFile(v.fs, v.path(identityName))
	if errors.Is(err, fs.ErrNotExist) {
		b, err = json.Marshal(identity{Format: Version, Node: v.cfg.NodeID})
		if err != nil {
			return err
		}
		return vfs.WriteFileAtomic(v.fs, v.path(identityName), append(b, '\n'), fileMode)
	}
	if err != nil {
		return err
	}
	var id identity
	if err := json.Unmarshal(b, &id); err != nil {
		return fmt.Errorf("%s is damaged (%w); if the volume is node %s's, remove that file", identityName, err, v.cfg.NodeID)
	}
	if id.Format > Version {
		return fmt.Errorf("%w: format %d", ErrTooNew, id.Format)
	}
	if id.Node != v.cfg.NodeID {
		return fmt.Errorf("%w: it is %q's, this is %q", ErrForeign, id.Node, v.cfg.NodeID)
	}
	return nil
}

// Append writes the records and returns nil when they, and the name of their file, are durable. After an error none, some or
// all of them may be found later; writing them again is right, since records fold by id.
func (v *Volume) Append(ctx context.Context, records []Record) error {
	if len(records) == 0 {
		return nil
	}
	var lines []byte
	var err error
	for i := range records {
		if lines, err = records[i].AppendLine(lines); err != nil {
			return err
		}
	}
	for {
		err := v.appendLines(ctx, lines, records)
		if v.cfg.Overflow != DropOldest || !errors.Is(err, ErrFull) || int64(len(lines)) > v.cfg.MaxBytes {
			return err
		}
		if err := v.makeRoom(ctx); err != nil {
			return fmt.Errorf("append to dead-letter volume: %w", err)
		}
	}
}

func (v *Volume) appendLines(ctx context.Context, lines []byte, records []Record) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if v.closed {
		return ErrClosed
	}
	if err := v.append(lines); err != nil {
		if v.cfg.Overflow != DropOldest || !errors.Is(err, ErrFull) {
			v.metrics.writeFailures.Inc()
		}
		if !errors.Is(err, ErrFull) {
			v.failing = err
		}
		return fmt.Errorf("append to dead-letter volume: %w", err)
	}
	v.failing = nil
	for i := range records {
		v.count(&v.active, v.next, &records[i])
	}
	if v.active.size >= v.cfg.SegmentBytes {
		if err := v.seal(); err != nil {
			// What was appended is durable. The next append mends this first.
			v.broken = true
			v.log.Warn("dead-letter file cannot be sealed", "error", err)
		}
	}
	return nil
}

// count notes a record of the file with that number.
func (v *Volume) count(s *segment, number uint64, r *Record) {
	s.note(r.State, r.At)
	before, repeat := v.index.put(hashID([]byte(r.ID)), newPlace(number, r.State))
	switch {
	case !repeat:
	case before == number:
		s.replaced++
	default:
		for i := range v.sealed {
			if v.sealed[i].number == before {
				v.sealed[i].replaced++
			}
		}
	}
}

// append writes lines behind the durable end of the active file.
func (v *Volume) append(lines []byte) error {
	if v.broken {
		if err := v.mend(); err != nil {
			return err
		}
	}
	if err := v.checkActive(); err != nil {
		return err
	}
	if err := v.room(int64(len(lines))); err != nil {
		return err
	}
	fresh := v.file == nil
	if fresh {
		f, err := v.fs.OpenFile(v.path(activeName), os.O_RDWR|os.O_CREATE|os.O_TRUNC, fileMode)
		if err != nil {
			return err
		}
		v.file, v.active, v.activeSince = f, segment{}, v.cfg.Now()
	}
	_, err := v.file.WriteAt(lines, v.active.size)
	if err == nil && !mutant.On(mutant.OutcomeBeforeDLQSync) {
		err = v.file.Sync()
	}
	if err == nil && fresh {
		err = v.fs.SyncDir(v.dir)
	}
	if err != nil {
		// This file is not trusted beyond its durable size, nor written to through this handle again.
		v.broken = true
		return errors.Join(err, v.closeFile())
	}
	v.active.size += int64(len(lines)) // the point of no return
	chaos.Point("dlq.after_fsync")
	return nil
}

// mend cuts the active file back to what is durable and seals it, so that a failed write or fsync is never built upon.
func (v *Volume) mend() error {
	if err := v.closeFile(); err != nil {
		v.log.Debug("close active dead-letter file", "error", err)
	}
	f, err := v.fs.OpenFile(v.path(activeName), os.O_RDWR, fileMode)
	if errors.Is(err, fs.ErrNotExist) && v.active.size == 0 {
		v.broken = false
		return nil
	}
	if err != nil {
		return err
	}
	err = f.Truncate(v.active.size)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if v.active.size > 0 {
		if err := v.seal(); err != nil {
			return err
		}
	}
	v.broken = false
	return nil
}

// seal gives the active file its number.
func (v *Volume) seal() error {
	if err := v.closeFile(); err != nil {
		return err
	}
	if err := v.fs.Rename(v.path(activeName), v.path(sealedName(v.next))); err != nil {
		return err
	}
	chaos.Point("dlq.in_rotation")
	v.addSealed(v.active, v.next)
	v.active = segment{}
	return v.fs.SyncDir(v.dir)
}

func (v *Volume) addSealed(s segment, number uint64) {
	s.number = number
	v.sealed = append(v.sealed, s)
	v.next = number + 1
}

func (v *Volume) closeFile() error {
	if v.file == nil {
		return nil
	}
	f := v.file
	v.file = nil
	return f.Close()
}

// Close gives the volume up. It does not seal: the next start does.
func (v *Volume) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil
	}
	v.closed = true
	if v.cfg.Registerer != nil {
		v.cfg.Registerer.Unregister(v.metrics)
	}
	return errors.Join(v.closeFile(), v.lock.Close())
}
