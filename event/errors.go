package event

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrorKind says which answer a refused request gets.
type ErrorKind uint8

// The kinds of refusal.
const (
	// BadEvent: an event, or the body around it, is malformed (400).
	BadEvent ErrorKind = iota + 1
	// TooLarge: a documented limit is passed (413); Limit holds it.
	TooLarge
	// UnsupportedType: the Content-Type is none that this package reads (415).
	UnsupportedType
	// UnsupportedEncoding: the Content-Encoding is none of gzip, zstd, identity, or several of them (415).
	UnsupportedEncoding
)

// String gives the stable name of the kind.
func (k ErrorKind) String() string {
	switch k {
	case BadEvent:
		return "bad-event"
	case TooLarge:
		return "too-large"
	case UnsupportedType:
		return "unsupported-media-type"
	case UnsupportedEncoding:
		return "unsupported-encoding"
	}
	return "unknown"
}

// HTTPStatus gives the status of the answer.
func (k ErrorKind) HTTPStatus() int {
	switch k {
	case TooLarge:
		return 413
	case UnsupportedType, UnsupportedEncoding:
		return 415
	}
	return 400
}

// NoOrdinal is the ordinal of an error that is not about one event, and NoByte the byte of one that has no place in the
// body. Both are -1, since 0 is a real place.
const (
	NoOrdinal = -1
	NoByte    = -1
)

// Error is why a request was refused, and where. Nothing of the request was accepted.
type Error struct {
	Kind ErrorKind
	// Ordinal is the place of the event in the request, from 0, or NoOrdinal.
	Ordinal int
	// Line and Column are the place in the decompressed body, from 1; Column counts characters. 0 when there is no place.
	Line, Column int
	// Byte is the same place in bytes from 0, or NoByte.
	Byte int64
	// Field is the CloudEvents attribute or the header that is wrong, if one is.
	Field string
	// Reason says what is wrong, in words for the producer.
	Reason string
	// Limit is the limit that was passed, in the unit Reason names; 0 when none was.
	Limit int64
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Ordinal >= 0 {
		fmt.Fprintf(&b, "event %d: ", e.Ordinal)
	}
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d, column %d (byte %d): ", e.Line, e.Column, e.Byte)
	}
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Reason)
	return b.String()
}

// refuse makes an Error without a place.
func refuse(kind ErrorKind, field, format string, args ...any) *Error {
	return &Error{Kind: kind, Ordinal: NoOrdinal, Byte: NoByte, Field: field, Reason: fmt.Sprintf(format, args...)}
}

// tooLarge makes an Error for a passed limit.
func tooLarge(limit int, format string, args ...any) *Error {
	e := refuse(TooLarge, "", format, args...)
	e.Limit = int64(limit)
	return e
}

// at gives e its place: the byte of body, and the line and column that follow from it.
func (e *Error) at(body []byte, i int) *Error {
	i = min(i, len(body))
	before := body[:i]
	line := bytes.LastIndexByte(before, '\n') + 1
	e.Byte = int64(i)
	e.Line = bytes.Count(before, []byte{'\n'}) + 1
	e.Column = utf8.RuneCount(before[line:]) + 1
	return e
}

// of gives e its event.
func (e *Error) of(ordinal int) *Error {
	e.Ordinal = ordinal
	return e
}

// ErrNotBatch is wrapped by every error of DecodeBatch and Batch.Events: the bytes are no batch that this version reads.
var ErrNotBatch = errors.New("not a batch")
