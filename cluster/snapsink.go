package cluster

import (
	"errors"
	"fmt"
	"os"
)

var (
	errAlreadyHeld = errors.New("the log already holds the label of this snapshot")
	errBackwards   = errors.New("the snapshot is older than what is here")
)

// snapshotSink receives one snapshot: a local one after local was called, an installation otherwise.
type snapshotSink struct {
	store   *snapshotStore
	w       *snapWriter
	tmp     string
	gen     uint64
	meta    snapMeta
	isLocal bool
	head    []byte // the state header of an installation, until it is whole
	fetched bool   // taken from a peer because there is no state to go on from: what the log holds is no reason to refuse
	done    bool
	refused error
}

// local says that the state machine of this node is about to write its state at (index, term). gen is the store's generation from
// before that state was frozen.
func (k *snapshotSink) local(index, term, gen uint64) error {
	k.isLocal, k.gen = true, gen
	k.meta.StateIndex, k.meta.StateTerm = index, term
	k.meta.LabelIndex, k.meta.LabelTerm = 0, 0
	_, err := k.w.Write(encodeStateHeader(index, term))
	return err
}

// Write implements io.Writer.
func (k *snapshotSink) Write(p []byte) (int, error) {
	if !k.isLocal && len(k.head) < stateHeaderLen {
		if err := k.begin(p); err != nil {
			return 0, err
		}
	}
	return k.w.Write(p)
}

// begin looks at the first bytes of an installation, and refuses one that would take this node backwards.
func (k *snapshotSink) begin(p []byte) error {
	if k.head == nil && !k.fetched {
		if k.refused = k.store.admit(k.meta.LabelIndex, k.meta.LabelTerm); k.refused != nil {
			k.store.logger.Error("a snapshot that should not have been sent is refused", "label", k.meta.LabelIndex, "error", k.refused)
		}
	}
	if k.refused != nil {
		return k.refused
	}
	k.head = append(k.head, p[:min(len(p), stateHeaderLen-len(k.head))]...)
	if len(k.head) < stateHeaderLen {
		return nil
	}
	var err error
	k.meta.StateIndex, k.meta.StateTerm, err = decodeStateHeader(k.head)
	return err
}

// admit tells whether an installation at label may begin. A node whose log holds the label needs no snapshot to go on from there, and
// clearing its log would give up entries that it acknowledged.
func (s *snapshotStore) admit(label, term uint64) error {
	if label < 2 {
		return fmt.Errorf("label %d: must be 2 or more", label)
	}
	base, _ := s.log.Base()
	if label < base {
		return fmt.Errorf("%w: label %d, base %d", errBackwards, label, base)
	}
	if s.log.holds(label, term) {
		return fmt.Errorf("%w: (%d, %d)", errAlreadyHeld, label, term)
	}
	return nil
}

// ID implements raft.SnapshotSink. Raft asks for it after Close.
func (k *snapshotSink) ID() string { return k.meta.ID }

// Close implements raft.SnapshotSink: the snapshot is durable and visible when it returns nil. For an installation the marker is
// durable before that, so that a crash from here on is completed at the next start.
func (k *snapshotSink) Close() error {
	if k.done {
		return nil
	}
	if err := k.check(); err != nil {
		k.Cancel()
		return err
	}
	k.done = true
	k.meta.ID = fmt.Sprintf("%020d-%d-%d", k.meta.StateIndex, k.meta.StateTerm, k.store.unique())
	if err := k.w.finish(&k.meta); err != nil {
		os.Remove(k.tmp)
		return err
	}
	if err := verifySnapshot(k.tmp); err != nil { // the log behind an older one goes because of this one
		os.Remove(k.tmp)
		return fmt.Errorf("read a new snapshot back: %w", err)
	}
	var marker *installMarker
	if !k.isLocal {
		marker = &installMarker{Phase: phaseInstalling, ID: k.meta.ID, LabelIndex: k.meta.LabelIndex, LabelTerm: k.meta.LabelTerm}
	}
	if err := k.store.put(k.tmp, &k.meta, k.gen, marker); err != nil {
		os.Remove(k.tmp)
		return err
	}
	return nil
}

func (k *snapshotSink) check() error {
	if !k.isLocal {
		if len(k.head) < stateHeaderLen {
			return errors.New("close snapshot: too short")
		}
		if k.meta.StateIndex < k.meta.LabelIndex {
			return fmt.Errorf("close snapshot: state %d below label %d", k.meta.StateIndex, k.meta.LabelIndex)
		}
		return nil
	}
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	return k.store.forwardLocked(&k.meta, k.gen)
}

// Cancel implements raft.SnapshotSink.
func (k *snapshotSink) Cancel() error {
	if k.done {
		return nil
	}
	k.done = true
	k.w.f.Close()
	return os.Remove(k.tmp)
}

func (s *snapshotStore) unique() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.tmp++
	return s.mu.tmp
}
