package dlq

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// Records calls fn for each record, oldest file first, in the order in which they were written; an id may come twice, and
// the later one counts. It streams, holds no lock while fn runs, and sees at least what was durable when it was called. A line
// that has become damaged since the start is skipped and logged; the next start moves it to the quarantine. An error of fn
// ends it.
func (v *Volume) Records(fn func(Record) error) error {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return ErrClosed
	}
	files := append([]segment(nil), v.sealed...)
	active, next := v.active.size, v.next
	v.mu.Unlock()
	for _, s := range files {
		err := v.records(sealedName(s.number), -1, fn)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // taken away meanwhile
			return err
		}
	}
	if active == 0 {
		return nil
	}
	err := v.records(activeName, active, fn)
	if errors.Is(err, fs.ErrNotExist) {
		err = v.records(sealedName(next), active, fn) // sealed since
	}
	return err
}

func (v *Volume) records(name string, size int64, fn func(Record) error) error {
	return v.eachLine(name, size, func(at span, line []byte, whole bool) error {
		err := errors.New("line is too long or torn")
		var r Record
		if line != nil && whole {
			r, err = ParseLine(line)
		}
		if errors.Is(err, ErrTooNew) {
			return err
		}
		if err != nil {
			v.log.Error("damaged line in dead-letter file skipped", "file", name, "byte", at.from, "error", err)
			return nil
		}
		return fn(r)
	})
}

// eachLine calls fn for each line of the first size bytes of a file, all of it when size is negative. line holds its newline,
// and is nil when the line is longer than MaxLineBytes; whole is false for a last line without a newline. line is reused.
func (v *Volume) eachLine(name string, size int64, fn func(at span, line []byte, whole bool) error) (err error) {
	f, err := v.fs.Open(v.path(name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var src io.Reader = f
	if size >= 0 {
		src = io.LimitReader(f, size)
	}
	var (
		r    = bufio.NewReaderSize(src, 64<<10)
		buf  []byte
		at   span
		long bool
	)
	for {
		chunk, rerr := r.ReadSlice('\n')
		at.to += int64(len(chunk))
		if long = long || len(buf)+len(chunk) > v.cfg.MaxLineBytes; !long {
			buf = append(buf, chunk...)
		}
		if errors.Is(rerr, bufio.ErrBufferFull) {
			continue
		}
		if rerr != nil && !errors.Is(rerr, io.EOF) {
			return fmt.Errorf("read %s: %w", name, rerr)
		}
		if at.to > at.from {
			line := buf
			if long {
				line = nil
			}
			if err := fn(at, line, bytes.HasSuffix(chunk, []byte{'\n'})); err != nil {
				return err
			}
		}
		if rerr != nil {
			return nil
		}
		buf, long, at.from = buf[:0], false, at.to
	}
}
