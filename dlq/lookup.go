package dlq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"
	"strings"

	"penstock/internal/chaos"
)

// Get gives the latest record of an id. It reads the one file that holds it.
func (v *Volume) Get(id string) (Record, bool, error) {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return Record{}, false, ErrClosed
	}
	p, ok := v.index.at[hashID([]byte(id))]
	name, size := v.nameOf(p.number()), v.active.size
	sealed := name != activeName
	v.mu.Unlock()
	if !ok {
		return Record{}, false, nil
	}
	if sealed {
		size = -1
	}
	r, found, err := v.find(name, size, id)
	if errors.Is(err, fs.ErrNotExist) && !sealed {
		r, found, err = v.find(sealedName(p.number()), size, id) // sealed since
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, false, nil // taken away
	}
	return r, found, err
}

func (v *Volume) find(name string, size int64, id string) (r Record, found bool, err error) {
	err = v.eachLine(name, size, func(_ span, line []byte, whole bool) error {
		have, _, ok := headOf(line)
		if !ok || !whole || string(have) != id {
			return nil
		}
		x, err := ParseLine(line)
		if err != nil {
			return fmt.Errorf("dead letter %s in %s: %w", id, name, err)
		}
		r, found = x, true
		return nil
	})
	return r, found, err
}

// Holds tells whether the volume has a record of the id.
func (v *Volume) Holds(id string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, ok := v.index.at[hashID([]byte(id))]
	return ok
}

// All gives each id once, with its latest record, oldest file first. One record is in memory at a time, and nothing is locked
// while the caller looks at it. What is appended or changed meanwhile may or may not show.
func (v *Volume) All() iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		stop := errors.New("stop")
		for _, number := range v.numbers() {
			err := v.latestOf(number, func(line []byte) error {
				r, err := ParseLine(line)
				if err != nil {
					return err
				}
				if !yield(r, nil) {
					return stop
				}
				return nil
			})
			if errors.Is(err, stop) {
				return
			}
			if err != nil && !yield(Record{}, err) {
				return
			}
		}
	}
}

// Export writes the latest line of each id byte for byte as it stands in the files, of those that keep asks for; nil takes
// all. It gives their number.
func (v *Volume) Export(ctx context.Context, w io.Writer, keep func(*Record) bool) (n int, err error) {
	for _, number := range v.numbers() {
		err := v.latestOf(number, func(line []byte) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			if keep != nil {
				r, err := ParseLine(line)
				if err != nil {
					return err
				}
				if !keep(&r) {
					return nil
				}
			}
			n++
			_, err := w.Write(line)
			return err
		})
		if err != nil {
			return n, fmt.Errorf("export dead letters: %w", err)
		}
	}
	return n, nil
}

// numbers are the files that there are now, the active one included.
func (v *Volume) numbers() []uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := make([]uint64, 0, len(v.sealed)+1)
	for _, s := range v.sealed {
		all = append(all, s.number)
	}
	if v.active.size > 0 {
		all = append(all, v.next)
	}
	return all
}

// latestOf calls fn with the line of each id whose latest record stands in the file. Damaged lines are passed over.
func (v *Volume) latestOf(number uint64, fn func(line []byte) error) error {
	v.mu.Lock()
	name, size := v.nameOf(number), int64(-1)
	if name == activeName {
		size = v.active.size
	}
	v.mu.Unlock()
	p, err := v.planOf(name, size)
	if errors.Is(err, fs.ErrNotExist) && name == activeName {
		name = sealedName(number)
		p, err = v.planOf(name, size)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = v.eachLine(name, size, func(at span, line []byte, whole bool) error {
		id, _, ok := headOf(line)
		if !ok || !whole || checkLine(line) != nil {
			return nil
		}
		if p.last[hashID(id)] != at.from || !v.isLatest(string(id), number) {
			return nil
		}
		return fn(line)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Rebuild appends the records whose ids the volume does not hold, a few at a time, and returns when they are durable: how a new
// owner fills its volume from the state machine and the log. A record that is there already, of whatever epoch, knows more than
// a rebuilt one and stays. It may be repeated.
func (v *Volume) Rebuild(ctx context.Context, records iter.Seq2[Record, error]) (added int, err error) {
	var batch []Record
	size := 0
	flush := func() error {
		err := v.Append(ctx, batch)
		if err == nil {
			if len(batch) > 0 {
				chaos.Point("dlq.in_rebuild")
			}
			added += len(batch)
		}
		batch, size = batch[:0], 0
		return err
	}
	for r, err := range records {
		if err != nil {
			return added, fmt.Errorf("rebuild dead-letter volume: %w", err)
		}
		if v.Holds(r.ID) {
			continue
		}
		batch = append(batch, r)
		if size += 1024 + len(r.Event.Data); size >= 1<<20 || len(batch) >= 256 {
			if err := flush(); err != nil {
				return added, fmt.Errorf("rebuild dead-letter volume: %w", err)
			}
		}
	}
	if err := flush(); err != nil {
		return added, fmt.Errorf("rebuild dead-letter volume: %w", err)
	}
	return added, nil
}

// Prune removes the records that keep does not want: those that were resolved while this node did not look, or that belong to
// another owner now. It gives their number.
func (v *Volume) Prune(ctx context.Context, keep func(*Record) bool) (removed int, err error) {
	for _, number := range v.numbers() {
		gone := map[string]bool{}
		err := v.latestOf(number, func(line []byte) error {
			r, err := ParseLine(line)
			if err == nil && !keep(&r) {
				gone[r.ID] = true
			}
			return err
		})
		if err != nil {
			return removed, fmt.Errorf("prune dead-letter volume: %w", err)
		}
		if len(gone) == 0 {
			continue
		}
		changes := make([]Change, 0, len(gone))
		for id := range gone {
			changes = append(changes, Change{ID: id, Resolved: true})
		}
		slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.ID, b.ID) })
		if err := v.Update(ctx, changes); err != nil {
			return removed, err
		}
		removed += len(gone)
	}
	return removed, nil
}
