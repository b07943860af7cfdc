package cluster

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"penstock/internal/chaos"
)

// snapshotStore implements raft.SnapshotStore over the two newest snapshots.
//
// List tells the truth about a snapshot: its index is the applied index A of the state in it, so that a restart replays from there.
// Open, which is how a leader takes one to send, tells the label L = min(floor-1, A) instead: the receiver installs the state and is
// then sent every entry from L+1 on, which are the payloads still needed, and its state machine skips what is applied. The floor is
// pinned at L from then on (floor.go).
//
// The exception is a snapshot that was installed here and whose log has not reached A yet: List and Open give its label, since the log
// is what the label says.
type snapshotStore struct {
	dir    string
	log    *logStore
	floor  *floorKeeper
	logger *slog.Logger
	spoilt func() // called for each damaged snapshot that is set aside; nil for nobody

	mu struct {
		sync.Mutex
		snaps  []*snapMeta // newest state first
		marker *installMarker
		marks  string // path of the marker
		gen    uint64 // raised by each installation: a local snapshot begun before it is refused
		tmp    uint64
	}
}

const keepSnapshots = 2

// openSnapshotStore reads what is there. A damaged snapshot is set aside, never deleted; left-overs of a crash are removed.
func openSnapshotStore(dataDir string, log *logStore, logger *slog.Logger, spoilt func()) (*snapshotStore, error) {
	s := &snapshotStore{dir: filepath.Join(dataDir, "snapshots"), log: log, logger: logger, spoilt: spoilt}
	s.mu.marks = filepath.Join(dataDir, "install")
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make snapshot directory: %w", err)
	}
	var err error
	if s.mu.marker, err = readInstallMarker(s.mu.marks); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("read snapshot directory: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		switch filepath.Ext(e.Name()) {
		case ".tmp":
			if err := os.Remove(path); err != nil {
				return nil, fmt.Errorf("remove left-over snapshot: %w", err)
			}
		case ".snap":
			if err := s.load(path); err != nil {
				return nil, err
			}
		}
	}
	s.sortLocked()
	return s, nil
}

func (s *snapshotStore) load(path string) error {
	m, err := readSnapMeta(path)
	if err == nil {
		var f *os.File
		if f, _, err = openSnapData(path, m); err == nil {
			f.Close()
		}
	}
	if errors.Is(err, ErrDamaged) {
		return s.setAside(path, err)
	}
	if err != nil {
		return err
	}
	m.ID = strings.TrimSuffix(filepath.Base(path), ".snap")
	s.mu.snaps = append(s.mu.snaps, m)
	return nil
}

// setAside keeps a damaged file for people to look at.
func (s *snapshotStore) setAside(path string, why error) error {
	s.logger.Error("a damaged snapshot is set aside", "path", path, "error", why)
	if s.spoilt != nil {
		s.spoilt()
	}
	if err := os.Rename(path, path+".damaged"); err != nil {
		return fmt.Errorf("set a damaged snapshot aside: %w", err)
	}
	return syncDir(s.dir)
}

// drop takes a snapshot that turned out damaged, or is gone, out of the list. The log behind it stays until there are two again.
func (s *snapshotStore) drop(m *snapMeta, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.mu.snaps, m)
	if i < 0 {
		return
	}
	s.mu.snaps = slices.Delete(slices.Clone(s.mu.snaps), i, i+1)
	if err := s.setAside(s.path(m.ID), why); err != nil {
		s.logger.Error("snapshot", "error", err)
	}
}

// scrub reads every snapshot from the disk and sets aside what is damaged.
func (s *snapshotStore) scrub() {
	s.mu.Lock()
	snaps := slices.Clone(s.mu.snaps)
	s.mu.Unlock()
	for _, m := range snaps {
		if err := verifySnapshot(s.path(m.ID)); errors.Is(err, ErrDamaged) || errors.Is(err, os.ErrNotExist) {
			s.drop(m, err)
		}
	}
}

// start is the (index, term) that Raft starts from; zero when there is no snapshot.
func (s *snapshotStore) start() (index, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.snaps) == 0 {
		return 0, 0
	}
	return s.startIndexLocked(s.mu.snaps[0])
}

func (s *snapshotStore) sortLocked() {
	sort.Slice(s.mu.snaps, func(i, j int) bool { return s.mu.snaps[i].StateIndex > s.mu.snaps[j].StateIndex })
}

func (s *snapshotStore) path(id string) string { return filepath.Join(s.dir, id+".snap") }

// newest gives the newest snapshot, or nil.
func (s *snapshotStore) newest() *snapMeta {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.snaps) == 0 {
		return nil
	}
	return s.mu.snaps[0]
}

// behind gives the index up to which the log may go as far as snapshots are concerned: that of the older of two.
func (s *snapshotStore) behind() (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.snaps) < keepSnapshots {
		return 0, false
	}
	return s.mu.snaps[keepSnapshots-1].StateIndex, true
}

func (s *snapshotStore) generation() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.gen
}

// startIndexLocked is where a restart begins from m.
func (s *snapshotStore) startIndexLocked(m *snapMeta) (index, term uint64) {
	if k := s.mu.marker; k != nil && k.ID == m.ID {
		return k.LabelIndex, k.LabelTerm
	}
	return m.StateIndex, m.StateTerm
}

// List implements raft.SnapshotStore.
func (s *snapshotStore) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*raft.SnapshotMeta, 0, len(s.mu.snaps))
	for _, m := range s.mu.snaps {
		out = append(out, m.raftMeta(s.startIndexLocked(m)))
	}
	return out, nil
}

func (s *snapshotStore) find(id string) (*snapMeta, *installMarker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.mu.snaps {
		if m.ID == id {
			return m, s.mu.marker
		}
	}
	return nil, nil
}

// Open implements raft.SnapshotStore.
func (s *snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	m, marker := s.find(id)
	if m == nil {
		return nil, nil, fmt.Errorf("open snapshot %s: there is none", id)
	}
	if marker != nil && marker.ID == id && marker.Phase == phaseInstalling { // our own restore
		f, data, err := openSnapData(s.path(id), m)
		if err != nil {
			return nil, nil, err
		}
		return m.raftMeta(marker.LabelIndex, marker.LabelTerm), &snapshotReader{f: f, data: data}, nil
	}
	if marker != nil {
		return nil, nil, fmt.Errorf("open snapshot %s: an installation here is not over", id)
	}
	label, term, pin, err := s.floor.pin(m)
	if err != nil {
		return nil, nil, fmt.Errorf("label snapshot %s: %w", id, err)
	}
	f, data, err := openSnapData(s.path(id), m)
	if err != nil {
		pin.release()
		if errors.Is(err, ErrDamaged) || errors.Is(err, os.ErrNotExist) {
			s.drop(m, err) // the older one is sent, and a new one is due
		}
		return nil, nil, err
	}
	return m.raftMeta(label, term), &snapshotReader{f: f, data: data, pin: pin}, nil
}

// snapshotReader reads the data of one snapshot. Closing it releases the pin, unless a transfer took it over.
type snapshotReader struct {
	f    *os.File
	data io.Reader
	pin  *floorPin
}

func (r *snapshotReader) Read(p []byte) (int, error) { return r.data.Read(p) }

func (r *snapshotReader) assign(peer string) {
	if r.pin != nil {
		r.pin.assign(peer)
	}
}

func (r *snapshotReader) Close() error {
	if r.pin != nil {
		r.pin.readerClosed()
	}
	return r.f.Close()
}

// Create implements raft.SnapshotStore. Raft calls it alike for a snapshot of its own and for one it is sent; which of the two this is
// shows before the first byte: Persist calls local on the sink.
func (s *snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if version != 1 {
		return nil, fmt.Errorf("create snapshot: version %d", version)
	}
	s.mu.Lock()
	s.mu.tmp++
	name := fmt.Sprintf("%d-%d.tmp", time.Now().UnixNano(), s.mu.tmp)
	s.mu.Unlock()
	w, err := newSnapWriter(filepath.Join(s.dir, name))
	if err != nil {
		return nil, err
	}
	return &snapshotSink{
		store: s, w: w, tmp: filepath.Join(s.dir, name), gen: s.generation(),
		meta: snapMeta{LabelIndex: index, LabelTerm: term, Configuration: raft.EncodeConfiguration(conf), ConfigurationIndex: confIndex},
	}, nil
}

// forwardLocked refuses a local snapshot that is not newer than what is here, or was begun before an installation.
func (s *snapshotStore) forwardLocked(m *snapMeta, gen uint64) error {
	if gen != s.mu.gen || len(s.mu.snaps) > 0 && s.mu.snaps[0].StateIndex >= m.StateIndex {
		return fmt.Errorf("close snapshot at %d: %w", m.StateIndex, errBackwards)
	}
	return nil
}

// put makes a finished file visible.
func (s *snapshotStore) put(tmp string, m *snapMeta, gen uint64, marker *installMarker) error {
	s.mu.Lock()
	defer s.mu.Unlock() // IO under the lock: Raft lists and opens rarely, and must not see half of this
	if marker == nil {
		if err := s.forwardLocked(m, gen); err != nil {
			return err
		}
	}
	if marker != nil {
		if err := writeInstallMarker(s.mu.marks, marker); err != nil {
			return err
		}
		s.mu.marker = marker
		s.mu.gen++
	}
	chaos.Point("cluster.before_snapshot_rename")
	if err := os.Rename(tmp, s.path(m.ID)); err != nil {
		return fmt.Errorf("rename snapshot: %w", err)
	}
	chaos.Point("cluster.before_snapshot_directory_sync")
	if err := syncDir(s.dir); err != nil {
		return err
	}
	s.mu.snaps = append(s.mu.snaps, m)
	s.sortLocked()
	if marker != nil {
		return nil // the others go when the installation is complete
	}
	for len(s.mu.snaps) > keepSnapshots {
		last := s.mu.snaps[len(s.mu.snaps)-1]
		if err := os.Remove(s.path(last.ID)); err != nil {
			return fmt.Errorf("remove old snapshot: %w", err)
		}
		s.mu.snaps = s.mu.snaps[:len(s.mu.snaps)-1]
	}
	return nil
}
