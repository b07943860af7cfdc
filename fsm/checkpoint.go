package fsm

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Checkpoint makes the state durable: the rows that changed since the last one, the applied index and the hash, in one
// step. Applying goes on while the rows are written. An error is final, but for ErrNoSpace: then the checkpoint before stays,
// the log keeps what came since, and a later one writes it all.
func (m *Machine) Checkpoint() error {
	m.storeMu.Lock()
	defer m.storeMu.Unlock()
	return m.checkpointLocked()
}

// CheckpointDue tells whether half of Config.DirtyBytes has changed. Who then calls Checkpoint from a goroutine of its own
// spares Apply from doing it, and from waiting for the disk.
func (m *Machine) CheckpointDue() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.weight >= m.cfg.DirtyBytes/2
}

// checkpointLocked needs storeMu.
func (m *Machine) checkpointLocked() error {
	m.mu.Lock()
	if err := m.mu.err; err != nil {
		m.mu.Unlock()
		return err
	}
	s := m.mu.state
	h, rows := s.takeUnsaved()
	m.mu.Unlock()
	if err := m.store.Write(h.encode(), rows); err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		if errors.Is(err, ErrNoSpace) {
			// Restore holds storeMu too, so the state is the same. The weight begins anew, so that Apply does not try at every entry.
			for i := range rows {
				s.unsaved[string(append([]byte{rows[i].Table}, rows[i].Key...))] = struct{}{}
			}
			return fmt.Errorf("checkpoint: %w", err)
		}
		return m.failLocked(fmt.Errorf("checkpoint: %w", err))
	}
	return nil
}

// takeUnsaved gives the rows to write, sorted, and counts them as saved.
func (s *state) takeUnsaved() (head, []Row) {
	s.flush()
	keys := make([]string, 0, len(s.unsaved))
	for key := range s.unsaved {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	rows := make([]Row, 0, len(keys))
	for _, key := range keys {
		r := Row{Table: key[0], Key: []byte(key[1:])}
		if value, ok := s.appendRow([]byte{}, key); ok {
			r.Value = value
		}
		rows = append(rows, r)
	}
	clear(s.unsaved)
	s.weight = 0
	return s.head(), rows
}

// allRows yields every row of the flushed state in order. The value is valid until the next one.
func (s *state) allRows(yield func(Row) bool) {
	var value []byte
	for _, key := range s.sortedRows() {
		var ok bool
		if value, ok = s.appendRow(value[:0], key); !ok {
			continue
		}
		if !yield(Row{Table: key[0], Key: []byte(key[1:]), Value: value}) {
			return
		}
	}
}

// Dump writes every row of the state, one line each, in order: equal states give equal dumps, byte for byte (I4).
func (m *Machine) Dump(w io.Writer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.mu.state
	s.flush()
	bw := bufio.NewWriter(w)
	fmt.Fprintf(bw, "index %d term %d\n", s.index, s.term)
	var line []byte
	for r := range s.allRows {
		line = append(append(line[:0], table(r.Table).String()...), ' ')
		line = append(hex.AppendEncode(line, r.Key), ' ')
		line = append(hex.AppendEncode(line, r.Value), '\n')
		if _, err := bw.Write(line); err != nil {
			return fmt.Errorf("dump: %w", err)
		}
	}
	return bw.Flush()
}

// StateHash is the hash of the whole state at the applied index, and one per table, by the table's name.
func (m *Machine) StateHash() (index uint64, hash string, tables map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.state.flush()
	hash, tables = m.mu.state.hash()
	return m.mu.state.index, hash, tables
}
