package replay

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"penstock/fsm"
)

// mirrorBytes is the size at which the mirror is moved aside; one old file is kept.
const mirrorBytes = 32 << 20

// Mirror copies the audit trail to a file of this node, a line for each intent and one for each outcome, so that it can be
// read and shipped without asking the cluster. The trail itself is the replicated one; the file may be removed at any time.
type Mirror struct {
	Path    string
	Machine *fsm.Machine
	Logger  *slog.Logger

	last uint64              // number of the newest intent written
	open map[uint64]struct{} // written without their outcome
	read bool
}

// Run copies until ctx ends.
func (m *Mirror) Run(ctx context.Context) {
	for {
		changed := m.Machine.Changed()
		if err := m.copy(); err != nil {
			m.Logger.Warn("audit trail is not mirrored to its file", "file", m.Path, "error", err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			_ = m.copy()
			return
		}
		select { // many entries are applied a second, few of them are audit
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// copy writes what is new, and makes it durable.
func (m *Mirror) copy() error {
	if !m.read {
		if err := m.resume(); err != nil {
			return err
		}
		m.read = true
	}
	lines := m.outcomes(nil)
	for {
		page := m.Machine.Audit(fsm.AuditQuery{After: m.last, Limit: auditPage})
		for _, r := range page {
			m.last = r.Seq
			closed := r
			r.Open, r.Result, r.Detail, r.ClosedAt = true, "", "", 0
			lines = appendLine(lines, r)
			if closed.Open {
				m.open[r.Seq] = struct{}{}
			} else {
				lines = appendLine(lines, closed)
			}
		}
		if len(page) < auditPage {
			break
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return m.append(lines)
}

// outcomes are those of intents that were written without.
func (m *Mirror) outcomes(lines []byte) []byte {
	for seq := range m.open {
		page := m.Machine.Audit(fsm.AuditQuery{After: seq - 1, Limit: 1})
		if len(page) == 1 && page[0].Seq == seq && page[0].Open {
			continue
		}
		if len(page) == 1 && page[0].Seq == seq {
			lines = appendLine(lines, page[0])
		}
		delete(m.open, seq)
	}
	return lines
}

func appendLine(dst []byte, r fsm.AuditRecord) []byte {
	b, err := json.Marshal(auditOf(r))
	if err != nil {
		return dst
	}
	return append(append(dst, b...), '\n')
}

func (m *Mirror) append(lines []byte) (err error) {
	if info, err := os.Stat(m.Path); err == nil && info.Size() > mirrorBytes {
		if err := os.Rename(m.Path, m.Path+".1"); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(m.Path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(lines); err != nil {
		return err
	}
	return f.Sync()
}

// resume finds where the file ends. A torn last line is ended, so that it merges with nothing.
func (m *Mirror) resume() error {
	m.open = map[uint64]struct{}{}
	f, err := os.Open(m.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	whole := true
	for lines.Scan() {
		var a auditAnswer
		if whole = json.Unmarshal(lines.Bytes(), &a) == nil; !whole {
			continue
		}
		m.last = max(m.last, a.Seq)
		if a.Open {
			m.open[a.Seq] = struct{}{}
		} else {
			delete(m.open, a.Seq)
		}
	}
	if err := errors.Join(lines.Err(), f.Close()); err != nil {
		return fmt.Errorf("read %s: %w", m.Path, err)
	}
	if !whole {
		return m.append([]byte{'\n'})
	}
	return nil
}
