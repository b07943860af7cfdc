// Package checkpoint keeps the rows of the state machine on disk, in one bbolt file. It implements fsm.Store.
//
// It owns one file and, while the file is replaced, the same name with .new behind it. It promises that a Write is whole or
// not there at all after a crash, that it is fsynced when it returns, and that open views go on showing what they showed.
// Files of a later format are refused, never misread, and a file that bbolt cannot read is ErrDamaged, never a panic. It
// knows nothing of what the rows mean; fsm verifies them by the hash in the head.
//
// Layout: bucket "penstock" holds "format" (u32le) and "head"; one bucket per table, named by the table's number as one
// byte, holds the rows.
//
// bbolt's own consistency comes from its two meta pages and copy on write; the freelist is not written (NoFreelistSync) but
// found again at open, which a commit is the cheaper for.
package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"penstock/fsm"
	"penstock/internal/chaos"
	"penstock/internal/watchdog"
)

// Config of a Store. The zero value is good.
type Config struct {
	// Stall is how long one write or fsync may take before Fatal is called (I11), in time during which this process was
	// running. Default 10 s.
	Stall time.Duration
	// Fatal is called when a write stalls; it must end the process. Default: panic.
	Fatal func(error)
	// NoSpace is called when a write finds no space; it frees some if it can, and says whether it did: then the write is tried
	// once more. May be nil.
	NoSpace func() bool
}

const (
	format       = 1
	defaultStall = 10 * time.Second
	lockWait     = time.Second
	replaceBytes = 8 << 20 // of rows in one transaction of Replace
)

var (
	bucketMeta = []byte("penstock")
	keyFormat  = []byte("format")
	keyHead    = []byte("head")
)

// ErrInUse is a file that another process has open.
var ErrInUse = errors.New("checkpoint is in use by another process")

// ErrTooNew is a file of a later version of Penstock.
var ErrTooNew = errors.New("checkpoint is of a later version of Penstock")

// Store is one bbolt file.
type Store struct {
	path string
	cfg  Config

	mu struct {
		sync.Mutex
		file *file // nil once closed
	}
}

var _ fsm.Store = (*Store)(nil)

// Open opens or creates the file.
func Open(path string, cfg Config) (*Store, error) {
	if cfg.Stall <= 0 {
		cfg.Stall = defaultStall
	}
	if cfg.Fatal == nil {
		cfg.Fatal = func(err error) { panic(err) }
	}
	// A leftover of a Replace that did not reach its rename was never true.
	if err := os.Remove(path + ".new"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("open checkpoint: %w", err)
	}
	f, err := openFile(path)
	if err != nil {
		return nil, fmt.Errorf("open checkpoint: %w", err)
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return nil, errors.Join(fmt.Errorf("open checkpoint: %w", err), f.release())
	}
	s := &Store{path: path, cfg: cfg}
	s.mu.file = f
	return s, nil
}

// slowest is the pace, in bytes a second, below which a disk counts as stalled.
const slowest = 4 << 20

// watch calls Fatal if done is not called in time for so many bytes: a checkpoint that had to wait for space may be large.
func (s *Store) watch(what string, bytes int) (done func()) {
	limit := s.cfg.Stall + time.Duration(bytes)*time.Second/slowest
	return watchdog.Start(limit, func() {
		s.cfg.Fatal(fmt.Errorf("checkpoint: %s has taken over %s", what, limit))
	}).Stop
}

// Write implements fsm.Store. A transaction that finds no space has touched no page that anything refers to: it is not a fault of
// the disk, and may be made again.
func (s *Store) Write(head []byte, rows []fsm.Row) error {
	err := s.write(head, rows)
	if errors.Is(err, syscall.ENOSPC) && s.cfg.NoSpace != nil && s.cfg.NoSpace() {
		err = s.write(head, rows)
	}
	if errors.Is(err, syscall.ENOSPC) {
		err = fmt.Errorf("%w: %w", fsm.ErrNoSpace, err)
	}
	return err
}

func (s *Store) write(head []byte, rows []fsm.Row) error {
	size := 0
	for i := range rows {
		size += len(rows[i].Key) + len(rows[i].Value)
	}
	defer s.watch("a write", size)()
	f, err := s.acquire()
	if err != nil {
		return err
	}
	defer func() { _ = f.release() }()
	err = f.db.Update(func(tx *bolt.Tx) error {
		for _, r := range rows {
			if err := putRow(tx, r); err != nil {
				return err
			}
		}
		chaos.Point("fsm.before_checkpoint")
		return tx.Bucket(bucketMeta).Put(keyHead, head)
	})
	if err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	return nil
}

func putRow(tx *bolt.Tx, r fsm.Row) error {
	b, err := tx.CreateBucketIfNotExists([]byte{r.Table})
	if err != nil {
		return err
	}
	if r.Value == nil {
		return b.Delete(r.Key)
	}
	return b.Put(r.Key, r.Value)
}

// Replace implements fsm.Store: the rows go to a new file, which takes the place of the old one by its name once it is
// whole and fsynced.
func (s *Store) Replace(head []byte, rows func(yield func(fsm.Row) bool)) error {
	next := s.path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("replace checkpoint: %w", err)
	}
	f, err := openFile(next)
	if err != nil {
		return fmt.Errorf("replace checkpoint: %w", err)
	}
	if err := s.fill(f, head, rows); err != nil {
		return errors.Join(fmt.Errorf("replace checkpoint: %w", err), f.release())
	}
	s.mu.Lock()
	old := s.mu.file
	if old == nil {
		s.mu.Unlock()
		return errors.Join(errors.New("replace checkpoint: closed"), f.release())
	}
	err = errors.Join(os.Rename(next, s.path), syncDir(filepath.Dir(s.path)))
	if err == nil {
		s.mu.file = f
	}
	s.mu.Unlock()
	if err != nil {
		return errors.Join(fmt.Errorf("replace checkpoint: %w", err), f.release())
	}
	return old.release()
}

// fill writes the rows in transactions of a bounded size, each watched, and the head with the last one.
func (s *Store) fill(f *file, head []byte, rows func(yield func(fsm.Row) bool)) error {
	tx, err := f.db.Begin(true)
	if err != nil {
		return err
	}
	size := 0
	rows(func(r fsm.Row) bool {
		// bbolt keeps the value until the commit, and rows reuses it.
		r.Value = append(make([]byte, 0, len(r.Value)), r.Value...)
		if err = putRow(tx, r); err != nil {
			return false
		}
		if size += len(r.Key) + len(r.Value); size < replaceBytes {
			return true
		}
		size = 0
		if err = s.commit(tx); err != nil {
			return false
		}
		tx, err = f.db.Begin(true)
		return err == nil
	})
	if err != nil {
		if tx != nil {
			_ = tx.Rollback() // the first error says it all
		}
		return err
	}
	if err := tx.Bucket(bucketMeta).Put(keyHead, head); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return s.commit(tx)
}

func (s *Store) commit(tx *bolt.Tx) error {
	defer s.watch("a commit", replaceBytes)()
	return tx.Commit()
}

// Close closes the file. Views that are open keep it until they are closed.
func (s *Store) Close() error {
	s.mu.Lock()
	f := s.mu.file
	s.mu.file = nil
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	return f.release()
}

func (s *Store) acquire() (*file, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.file == nil {
		return nil, errors.New("checkpoint is closed")
	}
	s.mu.file.retain()
	return s.mu.file, nil
}

// file is an open bbolt file. It is closed when the last of its holders lets go: the store, and each open view.
type file struct {
	db *bolt.DB
	mu struct {
		sync.Mutex
		holders int
	}
}

func (f *file) retain() {
	f.mu.Lock()
	f.mu.holders++
	f.mu.Unlock()
}

func (f *file) release() error {
	f.mu.Lock()
	f.mu.holders--
	last := f.mu.holders == 0
	f.mu.Unlock()
	if !last {
		return nil
	}
	return f.db.Close()
}

func openFile(path string) (_ *file, err error) {
	if err := verify(path); err != nil {
		return nil, err
	}
	var raw *os.File
	defer func() {
		// What bbolt holds after a panic is anybody's guess, and closing it may wait for ever. Its lock goes with the file.
		if errors.Is(err, errPanic) && raw != nil {
			_ = raw.Close()
		}
	}()
	defer catch(path, &err)
	db, err := bolt.Open(path, 0o600, &bolt.Options{
		Timeout: lockWait, NoFreelistSync: true, FreelistType: bolt.FreelistMapType,
		OpenFile: func(name string, flag int, perm os.FileMode) (f *os.File, err error) {
			raw, err = os.OpenFile(name, flag, perm)
			return raw, err
		},
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("%s: %w", path, ErrInUse)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := checkFormat(db); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), db.Close())
	}
	f := &file{db: db}
	f.mu.holders = 1
	return f, nil
}

// checkFormat writes the format into a new file and refuses any other.
func checkFormat(db *bolt.DB) error {
	var have []byte
	err := db.View(func(tx *bolt.Tx) error {
		if b := tx.Bucket(bucketMeta); b != nil {
			have = append([]byte{}, b.Get(keyFormat)...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if have == nil {
		return db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucket(bucketMeta)
			if err != nil {
				return err
			}
			return b.Put(keyFormat, binary.LittleEndian.AppendUint32(nil, format))
		})
	}
	if len(have) != 4 {
		return fmt.Errorf("%w: format of %d bytes", ErrDamaged, len(have))
	}
	if v := binary.LittleEndian.Uint32(have); v != format {
		return fmt.Errorf("format %d, this binary knows %d: %w", v, format, ErrTooNew)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
