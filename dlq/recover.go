package dlq

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// recover brings the directory in order after whatever ended the last process:
//
//   - Rewrites that did not finish are removed: their originals are whole.
//   - Lines of sealed files that are no records move to the quarantine.
//   - The active file is scanned likewise, and sealed when a record is left in it.
//
// A crash in the middle of this repeats some of it: a line may then stand in the quarantine twice, a record in two files.
// Nothing is lost, because the quarantine is durable before a file is rewritten, and a rewrite before its original goes.
func (v *Volume) recover() error {
	entries, err := v.fs.ReadDir(v.dir)
	if err != nil {
		return err
	}
	for _, e := range entries { // first: a rewrite below uses the same names
		if isLeftover(e.Name()) {
			if err := v.fs.Remove(v.path(e.Name())); err != nil {
				return err
			}
			v.log.Info("leftover of a rewrite removed", "file", e.Name())
		}
	}
	for _, e := range entries { // sorted, so sealed files come by number
		number, ok := sealedNumber(e.Name())
		if !ok || !e.Type().IsRegular() {
			continue
		}
		s, err := v.scrub(number, e.Name(), e.Name())
		if err != nil {
			return err
		}
		if v.next = number + 1; s.size > 0 {
			v.addSealed(s, number)
		}
	}
	return v.recoverActive()
}

func (v *Volume) recoverActive() error {
	if _, err := v.fs.Stat(v.path(activeName)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	number := v.next
	s, err := v.scrub(number, activeName, sealedName(number))
	if err != nil {
		return err
	}
	if s.size > 0 {
		v.addSealed(s, number)
		v.log.Info("active dead-letter file sealed", "file", sealedName(number), "records", s.records)
	}
	return nil
}

// span is a range of bytes of a file.
type span struct{ from, to int64 }

// scrub leaves only records in the file name, under the name target, durable; the rest is in the quarantine. A file without a
// record in it goes.
func (v *Volume) scrub(number uint64, name, target string) (segment, error) {
	s := segment{number: number}
	var bad []span
	err := v.eachLine(name, -1, func(at span, line []byte, whole bool) error {
		if line != nil && whole {
			r, err := scanLine(line)
			if err == nil {
				v.count(&s, number, &r)
				s.size += at.to - at.from
				return nil
			}
			if errors.Is(err, ErrTooNew) {
				return fmt.Errorf("%s at byte %d: %w", name, at.from, err)
			}
		}
		bad = append(bad, at)
		return nil
	})
	if err != nil {
		return s, fmt.Errorf("scan %s: %w", name, err)
	}
	if len(bad) > 0 {
		if err := v.quarantine(name, bad); err != nil {
			return s, fmt.Errorf("quarantine %d lines of %s: %w", len(bad), name, err)
		}
	}
	if err := v.keep(name, target, s.size, bad); err != nil {
		return s, fmt.Errorf("recover %s: %w", name, err)
	}
	return s, nil
}

// scanLine reads what the index needs of a line. A line of this version with the right checksum is what AppendLine wrote; all others
// are read in full, to tell damage from a newer version. A start reads every line there is, and this is ten times as fast.
func scanLine(line []byte) (Record, error) {
	if id, state, ok := headOf(line); ok && checkLine(line) == nil {
		if at := timeOf(line); !at.IsZero() {
			return Record{ID: string(id), State: state, At: at}, nil
		}
	}
	return ParseLine(line)
}

// keep moves what is good of the file name to target.
func (v *Volume) keep(name, target string, good int64, bad []span) error {
	switch {
	case good == 0:
		if err := v.fs.Remove(v.path(name)); err != nil {
			return err
		}
	case len(bad) > 0:
		if err := v.rewrite(name, target, bad); err != nil {
			return err
		}
		if name != target {
			if err := v.fs.Remove(v.path(name)); err != nil {
				return err
			}
		}
	case name != target:
		// A process that was killed may have left whole lines that are not on disk yet.
		if err := v.syncFile(name); err != nil {
			return err
		}
		if err := v.fs.Rename(v.path(name), v.path(target)); err != nil {
			return err
		}
	default:
		return nil
	}
	return v.fs.SyncDir(v.dir)
}

func (v *Volume) syncFile(name string) (err error) {
	f, err := v.fs.OpenFile(v.path(name), os.O_RDWR, fileMode)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// rewrite copies a file without the bad spans to target: temporary file, fsync, rename, fsync of the directory.
func (v *Volume) rewrite(name, target string, bad []span) (err error) {
	from, err := v.fs.Open(v.path(name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	tmp := v.path(target + tmpSuffix)
	to, err := v.fs.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return err
	}
	info, err := from.Stat()
	if err == nil {
		err = copySpans(to, from, goodSpans(bad, info.Size()))
	}
	if err == nil {
		err = to.Sync()
	}
	if err = errors.Join(err, to.Close()); err != nil {
		return err
	}
	if err := v.fs.Rename(tmp, v.path(target)); err != nil {
		return err
	}
	return v.fs.SyncDir(v.dir)
}

// goodSpans is what lies between the bad ones.
func goodSpans(bad []span, size int64) []span {
	var good []span
	var at int64
	for _, b := range bad {
		if b.from > at {
			good = append(good, span{at, b.from})
		}
		at = b.to
	}
	if size > at {
		good = append(good, span{at, size})
	}
	return good
}

func copySpans(to io.Writer, from io.ReaderAt, spans []span) error {
	for _, s := range spans {
		if _, err := io.Copy(to, io.NewSectionReader(from, s.from, s.to-s.from)); err != nil {
			return err
		}
	}
	return nil
}

// quarantine appends the spans byte for byte, each ended by a newline, and returns when they are durable.
func (v *Volume) quarantine(name string, bad []span) (err error) {
	from, err := v.fs.Open(v.path(name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := v.fs.OpenFile(v.path(quarantineName), os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if _, err := to.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	for _, b := range bad {
		if err := copySpans(to, from, []span{b}); err != nil {
			return err
		}
		var last [1]byte
		if _, err := from.ReadAt(last[:], b.to-1); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if last[0] != '\n' { // a torn line must not merge with the next one here either
			if _, err := to.Write([]byte{'\n'}); err != nil {
				return err
			}
		}
	}
	if err := to.Sync(); err != nil {
		return err
	}
	if err := v.fs.SyncDir(v.dir); err != nil {
		return err
	}
	v.metrics.quarantined.Add(float64(len(bad)))
	v.log.Error("lines that are no dead letters moved to the quarantine", "file", name, "lines", len(bad))
	return nil
}
