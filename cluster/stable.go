package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"penstock/internal/boltcheck"
	"penstock/internal/chaos"
	"penstock/internal/mutant"
	"penstock/internal/watchdog"
)

// stableKeys are all Raft ever keeps; they are written when the store is made, so that a missing one is damage from then on.
var stableKeys = []string{"CurrentTerm", "LastVoteTerm", "LastVoteCand"}

// errNotFound has the one text by which Raft knows a key that was never set.
var errNotFound = errors.New("not found")

// stableStore keeps term and vote. A lost vote lets two leaders win one term, so every value carries its CRC and any error, a
// missing key, a bad meta page (bbolt would go on from the vote before) or a write that does not return within stableStall (of time in which the process was running) ends the process (I11).
//
//	+----------+-----------+
//	| crc32c   | value     |   the CRC covers the key and the value
//	| u32 LE   |           |
//	+----------+-----------+
type stableStore struct {
	bolt *raftboltdb.BoltStore
	// volatile stands in for bolt under the planted bug VoteNotPersisted; nil otherwise.
	volatile *volatileValues
	stall    time.Duration
	fatal    func(code int, err error)
}

const stableStall = 10 * time.Second

// openStable opens stable.db in dir. fresh tells that a store may be made: a directory that held one before must still have it.
func openStable(dir string, fresh bool, fatal func(int, error)) (*stableStore, error) {
	path := filepath.Join(dir, "stable.db")
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if !fresh {
			return nil, damaged("%s is missing: it held this node's vote", path)
		}
		if err := createStable(path); err != nil {
			return nil, err
		}
	}
	bolt, err := openBolt(path)
	if err != nil {
		return nil, &ExitError{Code: ExitDisk, Err: err}
	}
	s := &stableStore{bolt: bolt, stall: stableStall, fatal: fatal}
	if mutant.On(mutant.VoteNotPersisted) {
		s.volatile = new(volatileValues)
	}
	for _, key := range stableKeys {
		if _, err := s.read([]byte(key)); err != nil {
			bolt.Close()
			return nil, damaged("%s: key %s: %v", path, key, err)
		}
	}
	return s, nil
}

// openBolt opens a store of bbolt, which meets damage with panics, some of them in goroutines of its own: the file is read
// before.
func openBolt(path string) (_ *raftboltdb.BoltStore, err error) {
	err = boltcheck.File(path)
	if err == nil {
		err = boltcheck.Metas(path) // an older vote must not come back
	}
	if errors.Is(err, boltcheck.ErrDamaged) {
		return nil, damaged("%v: it holds this node's vote and cannot be made again; the node comes back under a new id", err)
	} else if err != nil {
		return nil, err
	}
	var raw *os.File
	defer func() {
		if p := recover(); p != nil {
			if raw != nil {
				_ = raw.Close() // and with it bbolt's lock; closing bbolt itself may wait for ever
			}
			err = damaged("open %s: %v", path, p)
		}
	}()
	bolt, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: &bbolt.Options{
		Timeout: time.Second, FreelistType: bbolt.FreelistMapType,
		OpenFile: func(name string, flag int, perm os.FileMode) (f *os.File, err error) {
			raw, err = os.OpenFile(name, flag, perm)
			return raw, err
		},
	}})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return bolt, nil
}

// createStable makes the store under another name first: a crash leaves either no store or a whole one.
func createStable(path string) error {
	tmp := path + ".tmp"
	if err := removeFile(tmp); err != nil {
		return err
	}
	bolt, err := openBolt(tmp)
	if err != nil {
		return err
	}
	values := map[string][]byte{"CurrentTerm": make([]byte, 8), "LastVoteTerm": make([]byte, 8), "LastVoteCand": {}}
	for _, key := range stableKeys {
		if err := bolt.Set([]byte(key), sealValue([]byte(key), values[key])); err != nil {
			bolt.Close()
			return fmt.Errorf("create %s: %w", tmp, err)
		}
	}
	if err := bolt.Close(); err != nil {
		return fmt.Errorf("close %s: %w", tmp, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("rename %s: %w", tmp, err)
	}
	return syncDir(filepath.Dir(path))
}

func sealValue(key, value []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value))
	return append(b, value...)
}

func unsealValue(key, sealed []byte) ([]byte, error) {
	if len(sealed) < 4 {
		return nil, fmt.Errorf("%d bytes, too short", len(sealed))
	}
	value := sealed[4:]
	got := crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
	if want := binary.LittleEndian.Uint32(sealed); got != want {
		return nil, fmt.Errorf("checksum %08x, expected %08x", got, want)
	}
	return value, nil
}

// volatileValues are what a store that forgets keeps: a planted bug, in no shipped binary.
type volatileValues struct{ values sync.Map }

func (s *stableStore) read(key []byte) (_ []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("bbolt gave up: %v", p)
		}
	}()
	if s.volatile != nil {
		if v, ok := s.volatile.values.Load(string(key)); ok {
			return v.([]byte), nil
		}
	}
	sealed, err := s.bolt.Get(key)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return nil, errNotFound
	}
	if err != nil {
		return nil, err
	}
	return unsealValue(key, sealed)
}

// Get implements raft.StableStore.
func (s *stableStore) Get(key []byte) ([]byte, error) {
	value, err := s.read(key)
	if err == nil || err == errNotFound && !isStableKey(key) {
		return value, err
	}
	err = fmt.Errorf("read %s from the stable store: %w", key, err)
	s.fatal(ExitDisk, err)
	return nil, err
}

func isStableKey(key []byte) bool {
	for _, k := range stableKeys {
		if string(key) == k {
			return true
		}
	}
	return false
}

func (s *stableStore) watch(key []byte) *watchdog.Watch {
	return watchdog.Start(s.stall, func() {
		s.fatal(ExitDisk, fmt.Errorf("write %s to the stable store: no answer from the disk in %s", key, s.stall))
	})
}

// Set implements raft.StableStore: durable when it returns.
func (s *stableStore) Set(key, value []byte) error {
	if s.volatile != nil {
		s.volatile.values.Store(string(key), slices.Clone(value))
		return nil
	}
	chaos.Point("cluster.before_vote")
	defer s.watch(key).Stop()
	if err := s.bolt.Set(key, sealValue(key, value)); err != nil {
		err = fmt.Errorf("write %s to the stable store: %w", key, err)
		s.fatal(ExitDisk, err)
		return err
	}
	return nil
}

// SetUint64 implements raft.StableStore.
func (s *stableStore) SetUint64(key []byte, value uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, value))
}

// GetUint64 implements raft.StableStore.
func (s *stableStore) GetUint64(key []byte) (uint64, error) {
	value, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	if len(value) != 8 {
		err := fmt.Errorf("read %s from the stable store: %d bytes, expected 8", key, len(value))
		s.fatal(ExitDisk, err)
		return 0, err
	}
	return binary.BigEndian.Uint64(value), nil
}

func (s *stableStore) Close() error { return s.bolt.Close() }
