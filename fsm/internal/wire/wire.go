// Package wire is the little binary language that commands, results and state rows are written in: unsigned varints,
// zigzag varints, fixed little-endian words, and byte strings with their length before them.
//
// It promises that a Reader never reads past its input, never allocates for more than its input can hold, accepts only the
// shortest form of a varint (so that equal values have equal bytes), and keeps its first error. It knows no format: the
// box diagrams stand above the codecs that use it.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrCorrupt is the root of every decoding error of this package.
var ErrCorrupt = errors.New("malformed bytes")

// AppendUint appends v as an unsigned varint.
func AppendUint(dst []byte, v uint64) []byte { return binary.AppendUvarint(dst, v) }

// AppendInt appends v as a zigzag varint.
func AppendInt(dst []byte, v int64) []byte { return binary.AppendVarint(dst, v) }

// AppendWord appends v as 8 little-endian bytes.
func AppendWord(dst []byte, v uint64) []byte { return binary.LittleEndian.AppendUint64(dst, v) }

// AppendBool appends 0 or 1.
func AppendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// AppendString appends the length of s and s.
func AppendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// AppendBytes appends the length of b and b.
func AppendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// Reader reads what the Append functions wrote. After an error every read gives the zero value; ask Done or Err at the end.
type Reader struct {
	b   []byte
	err error
}

// NewReader reads from b, which the results of Bytes and Rest alias.
func NewReader(b []byte) Reader { return Reader{b: b} }

// Err is the first error.
func (r *Reader) Err() error { return r.err }

// Done is the first error, or an error when bytes are left over.
func (r *Reader) Done() error {
	if r.err == nil && len(r.b) > 0 {
		r.Fail("%d bytes left over", len(r.b))
	}
	return r.err
}

// Len is the number of bytes left.
func (r *Reader) Len() int { return len(r.b) }

// Fail records an error; the first one stays.
func (r *Reader) Fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
	}
	r.b = nil
}

// Uint reads an unsigned varint.
func (r *Reader) Uint() uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b)
	if n <= 0 || (n > 1 && r.b[n-1] == 0) {
		r.Fail("bad varint")
		return 0
	}
	r.b = r.b[n:]
	return v
}

// Uint32 reads an unsigned varint that must fit 32 bits.
func (r *Reader) Uint32() uint32 {
	v := r.Uint()
	if v > 1<<32-1 {
		r.Fail("%d does not fit 32 bits", v)
		return 0
	}
	return uint32(v)
}

// Int reads a zigzag varint.
func (r *Reader) Int() int64 {
	u := r.Uint()
	return int64(u>>1) ^ -int64(u&1)
}

// Word reads 8 little-endian bytes.
func (r *Reader) Word() uint64 {
	b := r.Raw(8)
	if b == nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

// Byte reads one byte.
func (r *Reader) Byte() byte {
	b := r.Raw(1)
	if b == nil {
		return 0
	}
	return b[0]
}

// Bool reads one byte that must be 0 or 1.
func (r *Reader) Bool() bool {
	v := r.Byte()
	if v > 1 {
		r.Fail("bool is %d", v)
	}
	return v == 1
}

// Raw reads n bytes; nil after an error.
func (r *Reader) Raw(n int) []byte {
	if r.err != nil {
		return nil
	}
	if n < 0 || n > len(r.b) {
		r.Fail("want %d bytes, have %d", n, len(r.b))
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

// Bytes reads a byte string; it aliases the input.
func (r *Reader) Bytes() []byte {
	n := r.Uint()
	if n > uint64(len(r.b)) {
		r.Fail("byte string of %d, have %d", n, len(r.b))
		return nil
	}
	return r.Raw(int(n))
}

// String reads a byte string of at most limit bytes as a string.
func (r *Reader) String(limit int) string {
	b := r.Bytes()
	if len(b) > limit {
		r.Fail("string of %d bytes, limit %d", len(b), limit)
		return ""
	}
	return string(b)
}

// Count reads the number of things that follow, each at least size bytes long: a count that cannot be true is an error
// before anything is allocated for it.
func (r *Reader) Count(size int) int {
	n := r.Uint()
	if n > uint64(len(r.b)/size) {
		r.Fail("count %d, but only %d bytes follow", n, len(r.b))
		return 0
	}
	return int(n)
}

// Rest reads all that is left; it aliases the input.
func (r *Reader) Rest() []byte {
	b := r.b
	r.b = nil
	return b
}
