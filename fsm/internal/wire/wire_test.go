package wire

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReaderReadsWhatWasAppended(t *testing.T) {
	b := AppendUint(nil, math.MaxUint64)
	b = AppendInt(b, math.MinInt64)
	b = AppendInt(b, math.MaxInt64)
	b = AppendWord(b, 7)
	b = AppendBool(b, true)
	b = AppendString(b, "s")
	b = AppendBytes(b, []byte{1, 2})
	r := NewReader(b)
	require.Equal(t, uint64(math.MaxUint64), r.Uint())
	require.Equal(t, int64(math.MinInt64), r.Int())
	require.Equal(t, int64(math.MaxInt64), r.Int())
	require.EqualValues(t, 7, r.Word())
	require.True(t, r.Bool())
	require.Equal(t, "s", r.String(1))
	require.Equal(t, []byte{1, 2}, r.Bytes())
	require.NoError(t, r.Done())
}

func TestReaderRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		in   []byte
		read func(*Reader)
	}{
		"longer form of a varint":     {[]byte{0x80, 0x00}, func(r *Reader) { r.Uint() }},
		"varint without an end":       {[]byte{0x80}, func(r *Reader) { r.Uint() }},
		"varint over 64 bits":         {[]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 2}, func(r *Reader) { r.Uint() }},
		"number over 32 bits":         {AppendUint(nil, 1<<32), func(r *Reader) { r.Uint32() }},
		"bool of 2":                   {[]byte{2}, func(r *Reader) { r.Bool() }},
		"string longer than its room": {[]byte{5, 'a'}, func(r *Reader) { _ = r.String(10) }},
		"string over its limit":       {[]byte{2, 'a', 'b'}, func(r *Reader) { _ = r.String(1) }},
		"count that cannot be true":   {AppendUint(nil, 1<<60), func(r *Reader) { r.Count(1) }},
		"bytes left over":             {[]byte{1}, func(*Reader) {}},
	} {
		r := NewReader(c.in)
		c.read(&r)
		require.ErrorIs(t, r.Done(), ErrCorrupt, name)
		require.Zero(t, r.Uint(), "%s: after an error everything is zero", name)
	}
}
