package dlq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"penstock/internal/chaos"
	"penstock/internal/vfs"
)

// Change is what became of a dead letter in a replay.
type Change struct {
	ID string
	// Resolved: it was delivered or discarded, and that is committed. Its records go.
	Resolved bool
	// RedeliveryCount is the count of replays now; it never goes down.
	RedeliveryCount int
	// Attempt is the replay that failed, nil when there is none to add.
	Attempt *Attempt
}

// attemptsKept bounds the attempts that a record lists.
const attemptsKept = 8

// Update rewrites the files that hold the changed records: temporary file, fsync, rename, fsync of the directory. Every other
// record in them stays byte for byte, but for repeats that a later record replaced, which go. A crash at any point leaves the
// old file or the new one. Ids that the volume does not hold are passed over. Call it after the outcome is committed: a record
// that is here too long is harmless, one that went too early is not.
func (v *Volume) Update(ctx context.Context, changes []Change) error {
	byFile := map[uint64]bool{}
	byID := make(map[string]*Change, len(changes))
	v.mu.Lock()
	for i := range changes {
		byID[changes[i].ID] = &changes[i]
		if p, ok := v.index.at[hashID([]byte(changes[i].ID))]; ok {
			byFile[p.number()] = true
			if changes[i].Resolved {
				v.repeatsOf(changes[i].ID, byFile)
			}
		}
	}
	err := v.settleDirectory()
	v.mu.Unlock()
	if err != nil {
		return fmt.Errorf("update dead-letter volume: %w", err)
	}
	for _, number := range slices.Sorted(keys(byFile)) { // oldest first: a repeat never comes back by a crash
		if err := v.updateFile(ctx, number, func(id []byte) edit {
			c := byID[string(id)]
			switch {
			case c == nil:
				return edit{}
			case c.Resolved:
				return edit{remove: true}
			}
			return edit{change: c.apply}
		}); err != nil {
			return fmt.Errorf("update dead-letter volume: %w", err)
		}
	}
	return nil
}

func (c *Change) apply(r *Record) {
	r.RedeliveryCount = max(r.RedeliveryCount, c.RedeliveryCount)
	if c.Attempt == nil {
		return
	}
	r.AttemptCount++
	r.LastFailedAt = c.Attempt.At
	r.Attempts = append(r.Attempts, *c.Attempt)
	if extra := len(r.Attempts) - attemptsKept; extra > 0 {
		r.Attempts = slices.Delete(r.Attempts, 0, extra)
	}
}

// edit says what to do with a record; the zero value keeps it.
type edit struct {
	remove bool
	change func(*Record)
}

// repeatsOf adds the files that may hold earlier records of an id. Only files known to hold replaced records are looked at.
func (v *Volume) repeatsOf(id string, files map[uint64]bool) {
	for i := range v.sealed {
		if v.sealed[i].replaced > 0 {
			files[v.sealed[i].number] = true
		}
	}
}

// updateFile rewrites one file by number; one that is gone is no error.
func (v *Volume) updateFile(ctx context.Context, number uint64, decide func(id []byte) edit) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if v.closed {
		return ErrClosed
	}
	if number == v.next && v.active.size > 0 {
		if err := v.sealActive(); err != nil {
			return err
		}
	}
	i := slices.IndexFunc(v.sealed, func(s segment) bool { return s.number == number })
	if i < 0 {
		return nil
	}
	return v.rewriteSealed(i, decide)
}

// sealActive seals what is durable, whatever happened to the file before.
func (v *Volume) sealActive() error {
	if v.broken {
		return v.mend()
	}
	if err := v.seal(); err != nil {
		v.broken = true
		return err
	}
	return nil
}

// plan is what the first pass over a file finds.
type plan struct {
	last map[uint64]int64 // where the last record of an id begins
	bad  []span
}

func (v *Volume) planOf(name string, size int64) (plan, error) {
	p := plan{last: map[uint64]int64{}}
	err := v.eachLine(name, size, func(at span, line []byte, whole bool) error {
		id, _, ok := headOf(line)
		if !ok || !whole || checkLine(line) != nil {
			p.bad = append(p.bad, at)
			return nil
		}
		p.last[hashID(id)] = at.from
		return nil
	})
	return p, err
}

// rewriteSealed rewrites the i-th sealed file.
func (v *Volume) rewriteSealed(i int, decide func(id []byte) edit) error {
	old := v.sealed[i]
	name := sealedName(old.number)
	p, err := v.planOf(name, -1)
	if err != nil {
		return v.vanished(i, err)
	}
	if len(p.bad) > 0 { // damaged since the start
		if err := v.quarantine(name, p.bad); err != nil {
			return fmt.Errorf("quarantine lines of %s: %w", name, err)
		}
	}
	next := segment{number: old.number}
	var removed []uint64
	tmp := v.path(name + tmpSuffix)
	err = v.writeTo(tmp, func(to vfs.File) error {
		w := &lineWriter{to: to}
		err := v.eachLine(name, -1, func(at span, line []byte, whole bool) error {
			id, state, ok := headOf(line)
			h := hashID(id)
			if last, good := p.last[h]; !ok || !whole || !good || last != at.from {
				return nil // damaged, or a later record in this file replaced it
			}
			if v.index.at[h].number() != old.number {
				if _, held := v.index.at[h]; held {
					return nil // a later file replaced it
				}
			}
			e := decide(id)
			switch {
			case e.remove:
				removed = append(removed, h)
				return nil
			case e.change != nil:
				r, err := ParseLine(line)
				if err != nil {
					return err
				}
				e.change(&r)
				if line, err = r.AppendLine(nil); err != nil {
					return err
				}
				return w.add(&next, line, state, r.At)
			}
			return w.add(&next, line, state, timeOf(line))
		})
		return errors.Join(err, w.flush())
	})
	if err != nil {
		return fmt.Errorf("rewrite %s: %w", name, err)
	}
	chaos.Point("dlq.before_rename")
	if next.size == 0 {
		err = v.fs.Remove(v.path(name))
	} else {
		err = v.fs.Rename(tmp, v.path(name))
	}
	if err != nil {
		return fmt.Errorf("rewrite %s: %w", name, err)
	}
	// The point of no return: the new file has the name.
	for _, h := range removed {
		v.index.drop(h)
	}
	if next.size == 0 {
		v.sealed = slices.Delete(v.sealed, i, i+1)
		_ = v.fs.Remove(tmp)
	} else {
		v.sealed[i] = next
	}
	v.unsettled = true
	return v.settleDirectory()
}

// settleDirectory makes names durable that a failed fsync of the directory left in doubt.
func (v *Volume) settleDirectory() error {
	if !v.unsettled {
		return nil
	}
	if err := v.fs.SyncDir(v.dir); err != nil {
		return err
	}
	v.unsettled = false
	return nil
}

// writeTo creates a file, fills it and makes its content durable.
func (v *Volume) writeTo(name string, fill func(vfs.File) error) error {
	to, err := v.fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return err
	}
	err = fill(to)
	if err == nil {
		err = to.Sync()
	}
	return errors.Join(err, to.Close())
}

// lineWriter gathers lines into writes of a good size, and counts them for the segment.
type lineWriter struct {
	to  vfs.File
	buf []byte
}

func (w *lineWriter) add(s *segment, line []byte, state State, at time.Time) error {
	s.size += int64(len(line))
	s.note(state, at)
	w.buf = append(w.buf, line...)
	if len(w.buf) < 1<<20 {
		return nil
	}
	return w.flush()
}

func (w *lineWriter) flush() error {
	_, err := w.to.Write(w.buf)
	w.buf = w.buf[:0]
	return err
}

// timeOf reads deadLetteredAt or poisonedAt, which stand right behind the state; zero when they do not.
func timeOf(line []byte) time.Time {
	for _, name := range [...]string{`","deadLetteredAt":"`, `","poisonedAt":"`} {
		if _, rest, ok := bytes.Cut(line[:min(len(line), 512)], []byte(name)); ok {
			word, _, _ := bytes.Cut(rest, []byte(`"`))
			t, _ := time.Parse(time.RFC3339Nano, string(word))
			return t
		}
	}
	return time.Time{}
}
