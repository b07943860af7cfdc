package command

import (
	"fmt"

	"penstock/fsm/internal/wire"
)

// The entry frame. Constants of the format: they never change.
const (
	entryMagic   = 0xE7 // not zero, and no first byte of a command
	entryVersion = 1
)

// Entry is the payload of one Raft log entry: the stamp of the leader's clock (DESIGN 4.15) and the commands, in order.
type Entry struct {
	Stamp    int64 // unix nanoseconds
	Commands [][]byte
}

// AppendEntry appends the frame around the commands.
//
//	+------+---------+--------------+-------+--------+---------+--------+---------+
//	| 0xE7 | version | stamp  i64le | count | length | command | length | command | ...
//	+------+---------+--------------+-------+--------+---------+--------+---------+
//	  1      1         8              varint  varint   bytes
func AppendEntry(dst []byte, stamp int64, commands [][]byte) []byte {
	dst = append(dst, entryMagic, entryVersion)
	dst = wire.AppendWord(dst, uint64(stamp))
	dst = wire.AppendUint(dst, uint64(len(commands)))
	for _, c := range commands {
		dst = wire.AppendBytes(dst, c)
	}
	return dst
}

// DecodeEntry reads one frame. The commands alias b. It checks the frame only, not what the commands hold.
func DecodeEntry(b []byte) (Entry, error) {
	if len(b) >= 2 && b[0] == entryMagic && b[1] != entryVersion {
		return Entry{}, fmt.Errorf("decode entry: version %d: %w", b[1], ErrUnknown)
	}
	r := wire.NewReader(b)
	if m := r.Byte(); m != entryMagic && r.Err() == nil {
		return Entry{}, fmt.Errorf("decode entry: %w: first byte is 0x%02x, want 0x%02x", ErrMalformed, m, entryMagic)
	}
	r.Byte()
	e := Entry{Stamp: int64(r.Word())}
	// A command is at least its kind and its version, with a length before it.
	e.Commands = make([][]byte, 0, r.Count(3))
	for range cap(e.Commands) {
		c := r.Bytes()
		if len(c) < 2 {
			r.Fail("command of %d bytes", len(c))
			break
		}
		e.Commands = append(e.Commands, c)
	}
	if err := r.Done(); err != nil {
		return Entry{}, fmt.Errorf("decode entry: %w", err)
	}
	return e, nil
}
