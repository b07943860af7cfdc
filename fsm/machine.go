package fsm

import (
	"errors"
	"fmt"
	"sync"

	"penstock/fsm/command"
)

// Config of a Machine. The zero value is good.
type Config struct {
	// DirtyBytes is about how much may change before Apply makes a checkpoint by itself. Default 64 MiB.
	DirtyBytes int64
}

const defaultDirtyBytes = 64 << 20

// Machine is the state machine over its store.
type Machine struct {
	cfg   Config
	store Store

	// storeMu is held while the store is written or a view of it is opened. It is taken before mu.
	storeMu sync.Mutex

	mu struct {
		sync.RWMutex
		*state
		changed chan struct{} // closed at the next change; nil when nobody asked
		err     error         // the first failure; final
	}
}

// Open loads the state that the store holds and verifies its hash. An empty store is an empty state.
func Open(store Store, cfg Config) (*Machine, error) {
	if cfg.DirtyBytes <= 0 {
		cfg.DirtyBytes = defaultDirtyBytes
	}
	m := &Machine{cfg: cfg, store: store}
	s, err := load(store)
	if err != nil {
		return nil, fmt.Errorf("load the state: %w", err)
	}
	m.mu.state = s
	return m, nil
}

func load(store Store) (s *state, err error) {
	view, err := store.View()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, view.Close()) }()
	if view.Head() == nil {
		return newState(), nil
	}
	h, err := decodeHead(view.Head())
	if err != nil {
		return nil, err
	}
	l := newLoader()
	if err := view.Rows(func(r Row) error { return l.row(r.Table, r.Key, r.Value) }); err != nil {
		return nil, err
	}
	return l.finish(h)
}

// Apply applies one committed entry and gives one result per command, in order. An entry at or below the applied index is
// skipped (nil, nil) if it is the one that was applied. An error is final: the process must end, since a node that skips
// what others apply is no longer one of them.
func (m *Machine) Apply(index, term uint64, data []byte) ([][]byte, error) {
	results, heavy, err := m.apply(index, term, data)
	if err == nil && heavy {
		if err = m.Checkpoint(); errors.Is(err, ErrNoSpace) {
			err = nil // the log holds it; whoever looks after the checkpoints tells
		}
	}
	return results, err
}

func (m *Machine) apply(index, term uint64, data []byte) (results [][]byte, heavy bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.err != nil {
		return nil, false, m.mu.err
	}
	s := m.mu.state
	if index <= s.index {
		if err := s.terms.check(index, term); err != nil {
			return nil, false, m.failLocked(fmt.Errorf("apply: %w", err))
		}
		return nil, false, nil
	}
	results, err = s.applyEntry(index, term, data)
	if err != nil {
		return nil, false, m.failLocked(fmt.Errorf("apply entry %d: %w", index, err))
	}
	if m.mu.changed != nil {
		close(m.mu.changed)
		m.mu.changed = nil
	}
	return results, s.weight >= m.cfg.DirtyBytes, nil
}

func (m *Machine) failLocked(err error) error {
	if m.mu.err == nil {
		m.mu.err = err
	}
	return err
}

// applyEntry is the whole of what an entry does to the state.
func (s *state) applyEntry(index, term uint64, data []byte) ([][]byte, error) {
	if term < s.term {
		return nil, fmt.Errorf("term %d after term %d", term, s.term)
	}
	entry, err := command.DecodeEntry(data)
	if err != nil {
		return nil, err
	}
	s.ring(index)
	s.advance(entry.Stamp)
	at := entryState{index: index, batches: 0}
	results, out := make([][]byte, len(entry.Commands)), []byte(nil)
	for i, c := range entry.Commands {
		from := len(out)
		if out, err = s.applyCommand(out, &at, c); err != nil {
			return nil, fmt.Errorf("command %d: %w", i, err)
		}
		// If a later append moves out elsewhere, this result keeps the old array: it is never written again.
		results[i] = out[from:len(out):len(out)]
	}
	s.index, s.term = index, term
	if s.moved {
		s.owners, s.moved = index, false
	}
	s.mark(rowKey(tableTerms, s.terms.push(appliedEntry{index, term})))
	s.weight += entryWeight
	return results, nil
}

// entryWeight is about what an entry without events adds to the next checkpoint.
const entryWeight = 256

// ring keeps the hash of the state before the first command at or past k*4096, under k, so that nodes can be compared
// while they are under load.
func (s *state) ring(index uint64) {
	k, last := index/ringEvery, uint64(0)
	if n := len(s.hashes); n > 0 {
		last = s.hashes[n-1].K
	}
	if k <= last {
		return
	}
	s.flush()
	h, _ := s.hash()
	first := last + 1
	if k >= ringHashes {
		first = max(first, k-ringHashes+1)
	}
	for n := first; n <= k; n++ {
		s.hashes = append(s.hashes, RingHash{K: n, Index: s.index, Hash: h})
		s.mark(rowKey(tableHashes, n))
	}
	for len(s.hashes) > ringHashes {
		s.mark(rowKey(tableHashes, s.hashes[0].K))
		s.hashes = s.hashes[1:]
	}
}

// applyCommand applies one command and appends its result. Unknown kinds and versions are errors; everything else that is
// wrong with a command is a result, since the proposer must learn of it and every node must answer alike.
func (s *state) applyCommand(out []byte, at *entryState, b []byte) ([]byte, error) {
	kind, body, err := command.Split(b)
	if err != nil {
		return nil, err
	}
	if kind == command.KindBatch { // the hot path: no command object
		res, err := s.applyBatch(at, body)
		if err != nil {
			return nil, err
		}
		return res.Append(out), nil
	}
	c, err := command.Decode(b)
	if err != nil {
		return s.appendMalformed(out, kind, err), nil
	}
	switch c := c.(type) {
	case command.ClusterInit:
		return s.initCluster(c).Append(out), nil
	case command.ChannelPut:
		return s.putChannel(at.index, c).Append(out), nil
	case command.ChannelDelete:
		return s.deleteChannel(c).Append(out), nil
	case command.Tick:
		s.tick()
		return command.PlainResult{Status: command.OK}.Append(out), nil
	case command.Assign:
		return s.assign(c).Append(out), nil
	case command.Outcomes:
		s.weight += int64(len(b))
		return s.applyOutcomes(c).Append(out), nil
	case command.Feature:
		res, err := s.raiseFeature(c)
		if err != nil {
			return nil, err
		}
		return res.Append(out), nil
	case command.EmitterPause:
		return s.pause(c).Append(out), nil
	case command.AuditIntent:
		return s.intend(c).Append(out), nil
	case command.AuditOutcome:
		return s.conclude(c).Append(out), nil
	case command.ReplayClaim:
		return s.claimLetters(c).Append(out), nil
	case command.ReplayRelease:
		return s.releaseLetters(c).Append(out), nil
	case command.Discard:
		return s.discard(c).Append(out), nil
	case command.Carry:
		return s.applyCarry(at, c).Append(out), nil
	case command.Yield:
		s.yield(c.Index)
		return command.PlainResult{Status: command.OK}.Append(out), nil
	}
	return nil, fmt.Errorf("kind %s: %w", kind, command.ErrUnknown)
}

// appendMalformed answers a command of a known kind and version whose body cannot be read.
func (s *state) appendMalformed(out []byte, kind command.Kind, err error) []byte {
	switch kind {
	case command.KindChannelPut, command.KindChannelDelete:
		return command.ChannelResult{Status: command.Malformed, Message: err.Error()}.Append(out)
	case command.KindOutcomes:
		return command.OutcomesResult{Status: command.Malformed}.Append(out)
	case command.KindReplayClaim, command.KindReplayRelease, command.KindDiscard:
		return command.LettersResult{Status: command.Malformed}.Append(out)
	}
	return command.PlainResult{Status: command.Malformed, Message: err.Error()}.Append(out)
}

func (s *state) initCluster(c command.ClusterInit) command.PlainResult {
	switch {
	case s.cluster.set && s.cluster.id != c.ClusterID:
		return command.PlainResult{Status: command.AlreadyInitialized, Message: "the cluster has another id"}
	case !s.cluster.set:
		s.cluster = cluster{set: true, id: c.ClusterID, key: c.Key, name: c.Name}
		s.mark(rowCluster)
	}
	return command.PlainResult{Status: command.OK}
}

// raiseFeature raises the feature level; it never goes down. A level above what this binary knows ends the process.
func (s *state) raiseFeature(f command.Feature) (command.PlainResult, error) {
	if f.Level > FeatureLevel {
		return command.PlainResult{}, fmt.Errorf("feature level %d, this binary knows %d: %w", f.Level, FeatureLevel, command.ErrUnknown)
	}
	if f.Level > s.feature {
		s.feature = f.Level
		s.mark(rowFeature)
	}
	return command.PlainResult{Status: command.OK}, nil
}
