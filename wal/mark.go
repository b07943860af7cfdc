package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"penstock/internal/vfs"
)

const (
	markName  = "mark"
	markMagic = "PENSTMRK"
	markUsed  = 96

	markEndByte = 136
	markSlots   = 2
)

// mark is the durable mark: what is known to be on disk, so that a log which
// ends earlier was damaged and not torn. It is written off the ack path, at
// most once a second and when the log falls idle, and always before files go.
//
// The file has two slots of 4 KiB, written in turn (sequence modulo 2) and
// synced; each lies within one sector:
//
//	byte   0                 8         12        16        20        24
//	       +-----------------+---------+---------+---------+---------+
//	       | "PENSTMRK"      | version | CRC32C  | CRC32C  | flags   |
//	       |                 |         | of 0-12 | of rest |         |
//	       +-----------------+---------+---------+---------+---------+
//	      24                32                40                48
//	       +-----------------+-----------------+-----------------+
//	       | sequence        | first segment   | newest segment  |
//	       +-----------------+-----------------+-----------------+
//	      48         52        56                64                72        80      96
//	       +---------+---------+-----------------+-----------------+---------+-------+
//	       | gener-  | end     | last index      | last term       | unix ns | 0     |
//	       | ation   | block   |                 |                 |         |       |
//	       +---------+---------+-----------------+-----------------+---------+-------+
//	      96       100    104                112               120               128      132     136
//	       +--------+------+-----------------+-----------------+-----------------+--------+-------+
//	       | CRC of | 0    | newest's start  | newest's term   | newest's prev   | its    | its   |
//	       | 100-136|      |                 | of start-1      |                 | gen.   | end   |
//	       +--------+------+-----------------+-----------------+-----------------+--------+-------+
//
// The last row repeats the header of the newest segment, as each header does
// for the segment before it; all zero in marks from before it was written.
//
// Segments below first were dropped on purpose; every segment of the chain
// from first on must be there. The newest segment holds good batches up to
// end, the last of them ending with (last index, last term). Last index is
// above the log's end after damage was cut off: so much was here once, and the
// node that has it not is in doubt. Newest 0: none was ever made.
//
// Flag 1: the log was closed, everything in it was synced, and nothing lies in
// the newest segment from end on. It is taken back, durably, before the log is
// opened to be written.
type mark struct {
	seq       uint64
	first     uint64
	newest    uint64
	gen       uint32
	end       uint32
	lastIndex uint64
	lastTerm  uint64
	at        int64
	head      headerCopy
	closed    bool
}

const markClosed = 1

func (m *mark) encode(raw []byte) {
	clear(raw[:blockSize])
	copy(raw, markMagic)
	le.PutUint32(raw[8:], formatVersion)
	le.PutUint32(raw[12:], crcOf(raw[:12]))
	if m.closed {
		le.PutUint32(raw[20:], markClosed)
	}
	le.PutUint64(raw[24:], m.seq)
	le.PutUint64(raw[32:], m.first)
	le.PutUint64(raw[40:], m.newest)
	le.PutUint32(raw[48:], m.gen)
	le.PutUint32(raw[52:], m.end)
	le.PutUint64(raw[56:], m.lastIndex)
	le.PutUint64(raw[64:], m.lastTerm)
	le.PutUint64(raw[72:], uint64(m.at))
	le.PutUint32(raw[16:], crcOf(raw[20:markUsed]))
	if m.head.start > 0 {
		m.head.encode(raw[markUsed+8:])
		le.PutUint32(raw[markUsed:], crcOf(raw[markUsed+4:markEndByte]))
	}
}

func (m *mark) decode(raw []byte) error {
	if err := checkPreamble(raw, markMagic); err != nil {
		return err
	}
	if got, want := le.Uint32(raw[16:]), crcOf(raw[20:markUsed]); got != want {
		return fmt.Errorf("CRC is %08x, want %08x", got, want)
	}
	flags := le.Uint32(raw[20:])
	if f := flags &^ markClosed; f != 0 {
		return fmt.Errorf("%w: unknown mark flags %08x", ErrTooNew, f)
	}
	*m = mark{
		seq:       le.Uint64(raw[24:]),
		first:     le.Uint64(raw[32:]),
		newest:    le.Uint64(raw[40:]),
		gen:       le.Uint32(raw[48:]),
		end:       le.Uint32(raw[52:]),
		lastIndex: le.Uint64(raw[56:]),
		lastTerm:  le.Uint64(raw[64:]),
		at:        int64(le.Uint64(raw[72:])),
		closed:    flags&markClosed != 0,
	}
	switch crc := le.Uint32(raw[markUsed:]); {
	case isZero(raw[markUsed:markEndByte]):
	case crc != crcOf(raw[markUsed+4:markEndByte]):
		return fmt.Errorf("CRC of the header's copy is %08x, want %08x", crc, crcOf(raw[markUsed+4:markEndByte]))
	default:
		m.head.decode(raw[markUsed+8:])
	}
	return nil
}

// errNoMark: there is no mark file.
var errNoMark = errors.New("mark file is missing")

// readMark returns the newer good slot. doubt is set when the other slot is
// bad: the mark may then be older than what was written last. (A slot lies in
// one sector, so a crash leaves the old one or the new one, never a bad one.)
func readMark(fsys vfs.FS, dir string) (m mark, doubt, err error) {
	path := filepath.Join(dir, markName)
	b, err := vfs.ReadFile(fsys, path)
	if errors.Is(err, fs.ErrNotExist) {
		return mark{}, nil, errNoMark
	}
	if err != nil {
		return mark{}, nil, fmt.Errorf("wal: %w", err)
	}
	good := 0
	for slot := range markSlots {
		var got mark
		err := fmt.Errorf("slot %d is cut off", slot)
		if len(b) >= (slot+1)*blockSize {
			err = got.decode(b[slot*blockSize:])
		}
		if err == nil && got.seq%markSlots != uint64(slot) {
			err = fmt.Errorf("sequence %d is in slot %d", got.seq, slot)
		}
		switch {
		case errors.Is(err, ErrTooNew):
			return mark{}, nil, fmt.Errorf("%s: %w", path, err)
		case err != nil:
			doubt = fmt.Errorf("mark slot %d: %w", slot, err)
		case good == 0 || got.seq > m.seq:
			m = got
			fallthrough
		default:
			good++
		}
	}
	if good == 0 {
		return mark{}, nil, &DamageError{File: path, Kind: DamageMark, Err: doubt}
	}
	return m, doubt, nil
}

// createMark makes the file whole, both slots good; or the first one only, for
// a mark that cannot vouch that what is not there never was.
func createMark(fsys vfs.FS, dir string, m mark, slots uint64) error {
	b := make([]byte, markSlots*blockSize)
	for slot := range slots {
		m.seq = slot
		m.encode(b[slot*blockSize:])
	}
	return vfs.WriteFileAtomic(fsys, filepath.Join(dir, markName), b, 0o600)
}

// marker writes marks. Its caller serialises (Log.markMu).
type marker struct {
	file vfs.File
	buf  []byte
	last mark
	redo bool // the other slot is bad: write it in any case
}

func openMarker(fsys vfs.FS, dir string, last mark, doubt error) (*marker, error) {
	f, err := fsys.OpenFile(filepath.Join(dir, markName), os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("wal: open mark: %w", err)
	}
	return &marker{file: f, buf: alignedBuffer(blockSize), last: last, redo: doubt != nil}, nil
}

// covers reports whether the mark on disk says the same as m already.
func (w *marker) covers(m mark) bool {
	m.seq, m.at = w.last.seq, w.last.at
	return m == w.last && !w.redo
}

func (w *marker) write(m mark) error {
	m.seq, m.at = w.last.seq+1, time.Now().UnixNano()
	m.encode(w.buf)
	if _, err := w.file.WriteAt(w.buf, int64(m.seq%markSlots)*blockSize); err != nil {
		return err
	}
	if err := w.file.Sync(); err != nil {
		return err
	}
	w.last, w.redo = m, false
	return nil
}
