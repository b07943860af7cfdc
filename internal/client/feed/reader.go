package feed

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"penstock/event"
)

// kind is how a record travels; a request holds records of one kind.
type kind uint8

const (
	linePlain      kind = iota // one line of NDJSON, wrapped by the node
	lineCloudEvent             // one line that is a CloudEvent and keeps its id
	whole                      // a file that is one event
)

// record is one event of an input.
type record struct {
	data  []byte // without the newline
	kind  kind
	line  uint64             // from 1; 1 for a whole file
	start uint64             // byte
	end   event.SourceOffset // position = byte behind it, record = lines read
}

// maxRecord bounds the memory for one record: far over what any node takes, so that the node's answer names the limit.
const maxRecord = 128 << 20

var errTooLong = fmt.Errorf("longer than %d bytes", maxRecord)

// reader cuts an input into records and knows where each ends.
type reader struct {
	r     *bufio.Reader
	lines bool
	pos   uint64
	line  uint64
}

func newReader(r io.Reader, lines bool) *reader {
	return &reader{r: bufio.NewReaderSize(r, 256<<10), lines: lines}
}

func (r *reader) offset() event.SourceOffset {
	return event.SourceOffset{Position: r.pos, Record: r.line}
}

// next gives the next record; empty lines are read over. io.EOF ends the input.
func (r *reader) next() (record, error) {
	if !r.lines {
		return r.whole()
	}
	for {
		start := r.pos
		line, err := r.readLine()
		if err != nil {
			return record{}, err
		}
		data := bytes.TrimSuffix(line, []byte("\r"))
		if len(bytes.TrimSpace(data)) == 0 {
			continue
		}
		k := linePlain
		if cloudEvent(data) {
			k = lineCloudEvent
		}
		return record{data: data, kind: k, line: r.line, start: start, end: r.offset()}, nil
	}
}

// readLine reads one line of any length. A last line without newline counts.
func (r *reader) readLine() ([]byte, error) {
	var line []byte
	for {
		part, err := r.r.ReadSlice('\n')
		line = append(line, part...)
		r.pos += uint64(len(part))
		switch {
		case len(line) > maxRecord:
			return nil, errTooLong
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err == io.EOF && len(line) == 0:
			return nil, io.EOF
		case err != nil && err != io.EOF:
			return nil, err
		}
		r.line++
		return bytes.TrimSuffix(line, []byte("\n")), nil
	}
}

func (r *reader) whole() (record, error) {
	if r.pos > 0 {
		return record{}, io.EOF
	}
	b, err := io.ReadAll(io.LimitReader(r.r, maxRecord+1))
	switch {
	case err != nil:
		return record{}, err
	case len(b) > maxRecord:
		return record{}, errTooLong
	case len(b) == 0:
		return record{}, errors.New("the file is empty, which is no JSON value")
	}
	r.pos, r.line = uint64(len(b)), 1
	return record{data: b, kind: whole, line: 1, end: r.offset()}, nil
}

// skip goes to an offset of an earlier run. A seekable input is checked to still be the one that was read: not shorter, and
// with a line's end at the offset.
func (r *reader) skip(src io.Reader, at event.SourceOffset) error {
	if at.Position == 0 {
		return nil
	}
	if s, ok := src.(io.ReadSeeker); ok {
		size, err := s.Seek(0, io.SeekEnd)
		if err == nil {
			return r.seek(s, size, at)
		} // a pipe: read over it
	}
	n, err := io.CopyN(io.Discard, r.r, int64(at.Position))
	if err == io.EOF {
		return fmt.Errorf("the input has only %d bytes: not the one that was read before", n)
	}
	r.pos, r.line = at.Position, at.Record
	return err
}

func (r *reader) seek(s io.ReadSeeker, size int64, at event.SourceOffset) error {
	pos := int64(at.Position)
	if pos < 0 || pos > size {
		return fmt.Errorf("the input has only %d bytes: not the one that was read before", size)
	}
	if r.lines && pos < size {
		if _, err := s.Seek(pos-1, io.SeekStart); err != nil {
			return err
		}
		var around [2]byte
		if _, err := io.ReadFull(s, around[:]); err != nil {
			return err
		}
		if around[0] != '\n' && around[1] != '\n' {
			return errors.New("no line ends there: not the input that was read before")
		}
	}
	if _, err := s.Seek(pos, io.SeekStart); err != nil {
		return err
	}
	r.r.Reset(s)
	r.pos, r.line = at.Position, at.Record
	return nil
}

// cloudEvent tells whether a JSON text is a structured CloudEvent. Anything else is the data of one.
func cloudEvent(b []byte) bool {
	if !bytes.Contains(b, []byte(`"specversion"`)) {
		return false
	}
	var top map[string]json.RawMessage
	if json.Unmarshal(b, &top) != nil {
		return false
	}
	for _, name := range []string{"specversion", "id", "source", "type"} {
		if v := top[name]; len(v) < 3 || v[0] != '"' {
			return false
		}
	}
	return true
}
