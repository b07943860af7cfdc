package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"penstock/internal/chaos"
)

const (
	markerMagic   = "PSin"
	markerVersion = 1

	phaseInstalling = "installing"  // the snapshot is visible, state and log may not be there yet
	phaseCatchingUp = "catching-up" // state and base are in place; the entries from the label to Until are still to come
)

// installMarker is the durable note that an installation is not over. It exists from before the snapshot becomes visible until the
// log has reached the state. As long as it does the node is not payload-complete, and Raft starts from the label.
type installMarker struct {
	Phase      string `json:"phase"`
	ID         string `json:"id"`
	LabelIndex uint64 `json:"label_index"`
	LabelTerm  uint64 `json:"label_term"`
	Until      uint64 `json:"until,omitempty"`
}

func readInstallMarker(path string) (*installMarker, error) {
	body, err := readSealed(path, markerMagic, markerVersion)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m := &installMarker{}
	if err := json.Unmarshal(body, m); err != nil {
		return nil, damaged("%s: %v", path, err)
	}
	return m, nil
}

func writeInstallMarker(path string, m *installMarker) error {
	body, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode install marker: %w", err)
	}
	return writeSealed(path, markerMagic, markerVersion, body)
}

// completeInstall does what is left of an installation; it may be repeated after a crash at any point.
//
//	state restored → log reset to the label → other snapshots removed → marker says catching-up
//
// It reports whether the log had an index at or above the label before: Raft's in-memory last index is stale then and its instance must
// be made anew (hashicorp/raft#697). A state machine that is already past the snapshot keeps its state: what it applied was committed.
func (s *snapshotStore) completeInstall(sm StateMachine, marker *installMarker, data io.Reader) (stale bool, err error) {
	if err := restoreState(sm, data); err != nil {
		return false, err
	}
	last, err := s.log.LastIndex()
	if err != nil {
		return false, fmt.Errorf("read the end of the log: %w", err)
	}
	if base, _ := s.log.Base(); base < marker.LabelIndex && !s.log.holds(marker.LabelIndex, marker.LabelTerm) {
		if err := s.log.Reset(marker.LabelIndex, marker.LabelTerm); err != nil {
			return false, fmt.Errorf("reset the log to %d: %w", marker.LabelIndex, err)
		}
		stale = last >= marker.LabelIndex
	}
	applied, _ := sm.Applied()
	return stale, s.installed(marker, applied)
}

// restoreState gives the state machine a snapshot's data unless it is past it.
func restoreState(sm StateMachine, data io.Reader) error {
	head := make([]byte, stateHeaderLen)
	if _, err := io.ReadFull(data, head); err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	index, term, err := decodeStateHeader(head)
	if err != nil {
		return err
	}
	if applied, _ := sm.Applied(); applied >= index {
		return nil
	}
	chaos.Point("cluster.before_restore")
	if err := sm.Restore(data); err != nil {
		return fmt.Errorf("restore the state machine: %w", err)
	}
	if err := sm.Checkpoint(); err != nil { // what comes next forgets how to do this again
		return fmt.Errorf("checkpoint the restored state: %w", err)
	}
	if gotIndex, gotTerm := sm.Applied(); gotIndex != index || gotTerm != term {
		return fmt.Errorf("restore the state machine: applied (%d, %d), the snapshot says (%d, %d)", gotIndex, gotTerm, index, term)
	}
	return nil
}

// installed removes what the installed snapshot replaces and moves the marker on.
func (s *snapshotStore) installed(marker *installMarker, until uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.mu.snaps[:0]
	for _, m := range s.mu.snaps {
		if m.ID == marker.ID {
			kept = append(kept, m)
			continue
		}
		if err := os.Remove(s.path(m.ID)); err != nil {
			return fmt.Errorf("remove replaced snapshot: %w", err)
		}
	}
	s.mu.snaps = kept
	if err := syncDir(s.dir); err != nil {
		return err
	}
	chaos.Point("cluster.before_catching_up")
	next := *marker
	next.Phase, next.Until = phaseCatchingUp, until
	if err := writeInstallMarker(s.mu.marks, &next); err != nil {
		return err
	}
	s.mu.marker = &next
	return nil
}

// catchingUp tells until which index the log must still come, and drops the marker when it has.
func (s *snapshotStore) catchingUp() (until uint64, still bool, err error) {
	last, err := s.log.LastIndex()
	if err != nil {
		return 0, true, fmt.Errorf("read the end of the log: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.mu.marker
	if m == nil {
		return 0, false, nil
	}
	if m.Phase == phaseInstalling || last < m.Until {
		return m.Until, true, nil
	}
	if err := removeFile(s.mu.marks); err != nil {
		return m.Until, true, err
	}
	s.mu.marker = nil
	return 0, false, nil
}

// catchUpFrom has Raft start from (index, term), where the log ends, though the newest snapshot is ahead of it: what is in between comes by
// replication, as behind an installation.
func (s *snapshotStore) catchUpFrom(m *snapMeta, index, term, until uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	marker := &installMarker{Phase: phaseCatchingUp, ID: m.ID, LabelIndex: index, LabelTerm: term, Until: until}
	if err := writeInstallMarker(s.mu.marks, marker); err != nil {
		return err
	}
	s.mu.marker = marker
	return nil
}

func (s *snapshotStore) pending() *installMarker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.marker
}

// forgetMarker drops a marker whose snapshot never became visible.
func (s *snapshotStore) forgetMarker() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.marker = nil
	return removeFile(s.mu.marks)
}
