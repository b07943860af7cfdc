package dlq

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"penstock/event"
	"penstock/internal/vfs"
)

// The policies of a volume at its bound.
const (
	// Block refuses what would pass a bound: nothing is lost, the emitter is held. MaxAge then only shows in the metrics.
	Block = "block"
	// DropOldest makes room by giving up the oldest records, each of them told to Config.Discard first.
	DropOldest = "drop_oldest"
)

// Drop is a record that has to go so that the volume stays within its bounds.
type Drop struct {
	ID                         string
	State                      State
	Channel, Emitter           string
	ChannelIndex, EmitterIndex uint64
	Seq                        uint64
	Position                   event.Position
	Owner                      string
	Epoch                      uint64
	Cause                      string // max_files, max_bytes or max_age
}

// Maintain does what time asks for: it seals an active file that is old enough, compacts when there are many files, notices
// files that an operator took away, and under drop_oldest gives up records past max_age. Call it now and then, also
// while nothing is appended.
func (v *Volume) Maintain(ctx context.Context) error {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return ErrClosed
	}
	err := v.maintainLocked()
	v.mu.Unlock()
	if err != nil {
		return fmt.Errorf("maintain dead-letter volume: %w", err)
	}
	if v.cfg.Overflow == DropOldest && v.cfg.MaxAge > 0 {
		return v.dropExpired(ctx)
	}
	return nil
}

// Failing is why the volume takes no records, other than that it is at its bound: I/O error, read-only, file system full. nil
// when it does. The node then gives its emitters to another one.
func (v *Volume) Failing() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.failing
}

// Probe writes, fsyncs and removes a little file, to see whether a volume that failed works again.
func (v *Volume) Probe() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	name := v.path(activeName + tmpSuffix)
	err := v.writeTo(name, func(f vfs.File) error {
		_, err := f.Write(make([]byte, 4096))
		return err
	})
	if err == nil {
		err = v.fs.Remove(name)
	}
	if err == nil {
		err = v.fs.SyncDir(v.dir)
	}
	if v.failing = err; err != nil {
		return fmt.Errorf("probe dead-letter volume: %w", err)
	}
	return nil
}

func (v *Volume) maintainLocked() error {
	if err := v.settleDirectory(); err != nil {
		return err
	}
	if v.broken {
		if err := v.mend(); err != nil {
			return err
		}
	}
	if v.active.size > 0 && v.cfg.Now().Sub(v.activeSince) >= v.cfg.SealAge {
		if err := v.sealActive(); err != nil {
			return err
		}
	}
	if err := v.refresh(); err != nil {
		return err
	}
	if len(v.sealed) > v.cfg.MaxFiles/2 {
		return v.compact()
	}
	return nil
}

// room refuses what would pass a bound. Before it does it looks at the directory again, since an operator may have taken files
// away, and compacts.
func (v *Volume) room(n int64) error {
	if v.over(n) == "" {
		return nil
	}
	if err := v.refresh(); err != nil {
		return err
	}
	if v.over(n) != "" {
		if err := v.compact(); err != nil {
			return err
		}
	}
	if bound := v.over(n); bound != "" {
		return fmt.Errorf("%w %s: %d bytes in %d sealed files", ErrFull, bound, v.bytes(), len(v.sealed))
	}
	return nil
}

// over names the bound that n more bytes would pass, "" for none.
func (v *Volume) over(n int64) string {
	switch {
	case v.bytes()+n > v.cfg.MaxBytes:
		return "max_bytes"
	case v.active.size == 0 && len(v.sealed) >= v.cfg.MaxFiles:
		return "max_files"
	}
	return ""
}

// refresh drops the sealed files that are gone, and what was known of the active one if that is gone.
func (v *Volume) refresh() error {
	for i := len(v.sealed) - 1; i >= 0; i-- {
		info, err := v.fs.Stat(v.path(sealedName(v.sealed[i].number)))
		if err != nil {
			if err := v.vanished(i, err); err != nil {
				return err
			}
			continue
		}
		v.sealed[i].size = info.Size()
	}
	return v.checkActive()
}

// vanished forgets the i-th sealed file when err says that it is gone; any other error comes back.
func (v *Volume) vanished(i int, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	gone := v.sealed[i]
	v.log.Warn("dead-letter file was taken away", "file", sealedName(gone.number), "records", gone.records)
	v.sealed = slices.Delete(v.sealed, i, i+1)
	v.index.dropFile(gone.number)
	return v.reindex()
}

// reindex makes records visible again whose replacement is gone.
func (v *Volume) reindex() error {
	for i := range v.sealed {
		s := &v.sealed[i]
		if s.replaced == 0 {
			continue
		}
		s.replaced = 0
		err := v.eachLine(sealedName(s.number), -1, func(_ span, line []byte, whole bool) error {
			if id, state, ok := headOf(line); ok && whole {
				h := hashID(id)
				if at, held := v.index.at[h]; !held {
					v.index.put(h, newPlace(s.number, state))
				} else if at.number() != s.number {
					s.replaced++
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// checkActive notices that the active file was taken away or cut behind our back: what is appended to a file without a name
// would be lost.
func (v *Volume) checkActive() error {
	if v.active.size == 0 || v.broken {
		return nil
	}
	info, err := v.fs.Stat(v.path(activeName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		v.log.Warn("active dead-letter file was taken away", "records", v.active.records)
		if err := v.closeFile(); err != nil {
			v.log.Debug("close active dead-letter file", "error", err)
		}
		v.active = segment{}
		v.index.dropFile(v.next)
		return v.reindex()
	case err != nil:
		return err
	case info.Size() < v.active.size:
		v.log.Warn("active dead-letter file was cut", "bytes", info.Size(), "expected", v.active.size)
		if err := v.closeFile(); err != nil {
			v.log.Debug("close active dead-letter file", "error", err)
		}
		v.active = segment{}
		v.index.dropFile(v.next)
		if err := v.recoverActive(); err != nil {
			return err
		}
		return v.reindex()
	}
	return nil
}

// compact makes the volume smaller without losing a record: replaced repeats go, and neighbours among the sealed files are
// joined while two of them fit one, so that files sealed by age do not use up max_files.
func (v *Volume) compact() error {
	for i := len(v.sealed) - 1; i >= 0; i-- {
		if v.sealed[i].replaced == 0 {
			continue
		}
		if err := v.rewriteSealed(i, func([]byte) edit { return edit{} }); err != nil {
			return err
		}
	}
	for i := 0; i+1 < len(v.sealed); {
		if v.sealed[i].size+v.sealed[i+1].size > v.cfg.SegmentBytes {
			i++
			continue
		}
		if err := v.merge(i); err != nil {
			return fmt.Errorf("merge dead-letter files: %w", err)
		}
	}
	return nil
}

// merge joins the i-th sealed file into the next one. The joined content is durable under the younger name before the older
// one goes; a crash between the two repeats records, which fold.
func (v *Volume) merge(i int) error {
	a, b := v.sealed[i], v.sealed[i+1]
	tmp := v.path(sealedName(b.number) + tmpSuffix)
	err := v.writeTo(tmp, func(to vfs.File) error {
		return errors.Join(v.copyFile(to, a), v.copyFile(to, b))
	})
	if err != nil {
		return err
	}
	if err := v.fs.Rename(tmp, v.path(sealedName(b.number))); err != nil {
		return err
	}
	// From here on every record of the older file stands in the younger one too.
	for h, p := range v.index.at {
		if p.number() == a.number {
			v.index.at[h] = place(b.number<<1) | p&1
		}
	}
	b.size += a.size
	b.records += a.records
	b.replaced += a.replaced
	b.oldestDead, b.oldestPoisoned = oldest(a.oldestDead, b.oldestDead), oldest(a.oldestPoisoned, b.oldestPoisoned)
	v.sealed[i].replaced = a.records
	v.sealed[i+1] = b
	v.unsettled = true
	if err := v.settleDirectory(); err != nil {
		return err
	}
	if err := v.fs.Remove(v.path(sealedName(a.number))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	v.sealed = slices.Delete(v.sealed, i, i+1)
	v.unsettled = true
	return v.settleDirectory()
}

func (v *Volume) copyFile(to vfs.File, s segment) error {
	from, err := v.fs.Open(v.path(sealedName(s.number)))
	if err != nil {
		return err
	}
	return errors.Join(copySpans(to, from, []span{{0, s.size}}), from.Close())
}

func oldest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// bytes is what the records take on disk.
func (v *Volume) bytes() int64 {
	n := v.active.size
	for _, s := range v.sealed {
		n += s.size
	}
	return n
}

func keys[V any](m map[uint64]V) func(func(uint64) bool) { return maps.Keys(m) }

// makeRoom gives up the oldest file. It holds no lock while Discard runs.
func (v *Volume) makeRoom(ctx context.Context) error {
	v.dropMu.Lock()
	defer v.dropMu.Unlock()
	v.mu.Lock()
	bound := v.over(0)
	if bound == "" {
		bound = "max_bytes"
	}
	if len(v.sealed) == 0 && v.active.size > 0 {
		if err := v.sealActive(); err != nil {
			v.mu.Unlock()
			return err
		}
	}
	if len(v.sealed) == 0 {
		v.mu.Unlock()
		return fmt.Errorf("%w: nothing to drop", ErrFull)
	}
	number := v.sealed[0].number
	v.mu.Unlock()
	_, err := v.dropFrom(ctx, number, bound, func(*Record) bool { return true })
	return err
}

// dropExpired gives up the records that are older than max_age.
func (v *Volume) dropExpired(ctx context.Context) error {
	v.dropMu.Lock()
	defer v.dropMu.Unlock()
	limit := v.cfg.Now().Add(-v.cfg.MaxAge)
	expired := func(s *segment) bool {
		t := oldest(s.oldestDead, s.oldestPoisoned)
		return !t.IsZero() && t.Before(limit)
	}
	var files []uint64
	v.mu.Lock()
	for i := range v.sealed {
		if expired(&v.sealed[i]) {
			files = append(files, v.sealed[i].number)
		}
	}
	if v.active.size > 0 && expired(&v.active) {
		files = append(files, v.next)
	}
	v.mu.Unlock()
	for _, number := range files {
		if _, err := v.dropFrom(ctx, number, "max_age", func(r *Record) bool { return r.At.Before(limit) }); err != nil {
			return err
		}
	}
	return nil
}

// dropFrom tells Discard of the chosen records of a file, and removes them when it agrees.
func (v *Volume) dropFrom(ctx context.Context, number uint64, cause string, choose func(*Record) bool) (int, error) {
	var drops []Drop
	chosen := map[string]bool{}
	v.mu.Lock()
	name := v.nameOf(number)
	v.mu.Unlock()
	err := v.records(name, -1, func(r Record) error {
		if choose(&r) && v.isLatest(r.ID, number) {
			chosen[r.ID] = true
			drops = append(drops, Drop{
				ID: r.ID, State: r.State, Channel: r.Channel, Emitter: r.Emitter, ChannelIndex: r.ChannelIndex,
				EmitterIndex: r.EmitterIndex, Seq: r.Seq, Position: r.Position, Owner: r.Owner, Epoch: r.Epoch, Cause: cause,
			})
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	if len(drops) > 0 {
		if err := v.cfg.Discard(ctx, drops); err != nil {
			return 0, fmt.Errorf("drop %d dead letters: %w", len(drops), err)
		}
		v.log.Warn("dead letters dropped", "cause", cause, "records", len(drops))
		v.metrics.dropped.Add(float64(len(drops)))
	}
	return len(drops), v.updateFile(ctx, number, func(id []byte) edit { return edit{remove: chosen[string(id)]} })
}

func (v *Volume) nameOf(number uint64) string {
	if number == v.next {
		return activeName
	}
	return sealedName(number)
}

func (v *Volume) isLatest(id string, number uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	p, ok := v.index.at[hashID([]byte(id))]
	return ok && p.number() == number
}
