package event

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// An event in the payload of a batch, version 1:
//
//	+------+------------------------------------------------------------+-------+----------------+- - - - - -+
//	| kind | id source type subject time datacontenttype dataschema     | count | extensions     | data       |
//	| u8   | each: uvarint length, bytes                                | uvar. | count times    | the rest   |
//	+------+------------------------------------------------------------+-------+----------------+- - - - - -+
//
//	extension: kind u8, name (uvarint length, bytes), value (uvarint length, bytes)
//
// kind is DataKind. The length of the whole stands in the event's envelope, so data needs none.

// appendEvent appends the event as it stands in the payload of a batch.
func appendEvent(dst []byte, e *Event) []byte {
	return append(appendAttributes(dst, e, true), e.Data...)
}

// recordBound is at least what appendEvent appends, and little more.
func recordBound(e *Event) int {
	const length = 10 // the longest uvarint
	n := 1 + 8*length + len(e.ID) + len(e.Source) + len(e.Type) + len(e.Subject) + len(e.Time) + len(e.DataContentType) +
		len(e.DataSchema) + len(e.Data)
	for _, x := range e.Extensions {
		n += 1 + 2*length + len(x.Name) + len(x.Value)
	}
	return n
}

// appendAttributes appends all but the data; without identity, id and source count as empty.
func appendAttributes(dst []byte, e *Event, identity bool) []byte {
	dst = append(dst, byte(e.DataKind))
	if identity {
		dst = appendString(dst, e.ID)
		dst = appendString(dst, e.Source)
	} else {
		dst = append(dst, 0, 0)
	}
	dst = appendString(dst, e.Type)
	dst = appendString(dst, e.Subject)
	dst = appendString(dst, e.Time)
	dst = appendString(dst, e.DataContentType)
	dst = appendString(dst, e.DataSchema)
	dst = binary.AppendUvarint(dst, uint64(len(e.Extensions)))
	for _, x := range e.Extensions {
		dst = append(dst, byte(x.Kind))
		dst = appendString(dst, x.Name)
		dst = appendString(dst, x.Value)
	}
	return dst
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// decodeEvent reads one event that fills b. Data aliases b; the attributes share one copy of their bytes.
func decodeEvent(b []byte, e *Event) error {
	end, err := attributesEnd(b)
	if err != nil {
		return err
	}
	r := stringReader{s: string(b[:end])}
	e.DataKind = DataKind(r.byte())
	for _, field := range []*string{&e.ID, &e.Source, &e.Type, &e.Subject, &e.Time, &e.DataContentType, &e.DataSchema} {
		*field = r.string()
	}
	if n := r.uvarint(); n > 0 {
		e.Extensions = make([]Extension, n)
		for i := range e.Extensions {
			x := &e.Extensions[i]
			x.Kind = ExtensionKind(r.byte())
			x.Name, x.Value = r.string(), r.string()
			if x.Kind > ExtensionBoolean {
				return fmt.Errorf("extension %d has the unknown kind %d", i, x.Kind)
			}
		}
	}
	if end < len(b) || e.DataKind == DataText || e.DataKind == DataBinary || e.DataKind == DataJSON {
		e.Data = b[end:len(b):len(b)]
	}
	if e.DataKind > DataBinary || e.DataKind == DataNone && len(e.Data) > 0 {
		return fmt.Errorf("data of kind %d, %d bytes", e.DataKind, len(e.Data))
	}
	return nil
}

var errShort = errors.New("an event is shorter than its attributes")

// attributesEnd walks over the attributes without copying and returns where the data starts. After it, stringReader
// cannot run off the end. Every length is checked against what is left before it is used.
func attributesEnd(b []byte) (int, error) {
	i := 1 // kind
	skip := func() bool {
		n, size := binary.Uvarint(b[min(i, len(b)):])
		if size <= 0 || n > uint64(len(b)-i-size) {
			return false
		}
		i += size + int(n)
		return true
	}
	for range 7 {
		if !skip() {
			return 0, errShort
		}
	}
	count, size := binary.Uvarint(b[i:])
	if size <= 0 || count > MaxExtensions {
		return 0, errShort
	}
	i += size
	for range count {
		i++ // kind
		name := skip()
		if value := skip(); !name || !value {
			return 0, errShort
		}
	}
	return i, nil
}

// stringReader reads what attributesEnd has walked over.
type stringReader struct{ s string }

func (r *stringReader) byte() byte {
	c := r.s[0]
	r.s = r.s[1:]
	return c
}

func (r *stringReader) uvarint() (n uint64) {
	for shift := 0; ; shift += 7 {
		c := r.byte()
		n |= uint64(c&0x7F) << shift
		if c < 0x80 {
			return n
		}
	}
}

func (r *stringReader) string() string {
	n := r.uvarint()
	s := r.s[:n]
	r.s = r.s[n:]
	return s
}
