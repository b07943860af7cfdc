package fsm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"penstock/fsm/internal/wire"

	"penstock/internal/mutant"
)

// The snapshot stream, docs/format/state.md. Constants of the format: they never change.
const (
	snapshotMagic   = "PNSTSNAP"
	snapshotVersion = 1
	snapshotBlock   = 64 << 10 // bytes of rows after which a block is closed
	snapshotMaximum = 256 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrSnapshot is the root of every error about what a snapshot stream holds.
var ErrSnapshot = errors.New("damaged snapshot")

// Snapshot is one state in the store, kept readable until Close.
type Snapshot struct {
	view View
	head head
	raw  []byte
}

// Snapshot makes a checkpoint and opens it for reading.
func (m *Machine) Snapshot() (*Snapshot, error) {
	m.storeMu.Lock()
	defer m.storeMu.Unlock()
	if err := m.checkpointLocked(); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	view, err := m.store.View()
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	h, err := decodeHead(view.Head())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("snapshot: %w", err), view.Close())
	}
	return &Snapshot{view: view, head: h, raw: append([]byte(nil), view.Head()...)}, nil
}

// Index is the applied index of the state in the snapshot.
func (s *Snapshot) Index() uint64 { return s.head.index }

// Term is the term of the entry at Index.
func (s *Snapshot) Term() uint64 { return s.head.term }

// Close lets the store forget the snapshot. It may be called more than once.
func (s *Snapshot) Close() error { return s.view.Close() }

// WriteTo writes the stream. It may be called more than once, and gives the same bytes each time.
//
//	+------------+---------+   +--------+--------+---------+   +---------+-----+
//	| "PNSTSNAP" | version |   | length | crc32c | payload |   | payload | ... |    u32le each
//	+------------+---------+   +--------+--------+---------+   +---------+-----+
//	  8            4             4        4       block 0: the head (head.go)
//	                                              blocks 1..: rows { table 1, key s, value s } ...
//	                                              last block: length 8, the number of rows u64le, crc with all bits turned
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	sw := &snapshotWriter{w: bufio.NewWriterSize(w, snapshotBlock)}
	sw.write(binary.LittleEndian.AppendUint32([]byte(snapshotMagic), snapshotVersion))
	sw.block(s.raw, 0)
	var buf []byte
	rows := uint64(0)
	err := s.view.Rows(func(r Row) error {
		buf = wire.AppendBytes(append(buf, r.Table), r.Key)
		buf = wire.AppendBytes(buf, r.Value)
		rows++
		if len(buf) >= snapshotBlock {
			sw.block(buf, 0)
			buf = buf[:0]
		}
		return sw.err
	})
	if err != nil {
		return sw.n, fmt.Errorf("write snapshot: %w", err)
	}
	if len(buf) > 0 {
		sw.block(buf, 0)
	}
	sw.block(binary.LittleEndian.AppendUint64(nil, rows), ^uint32(0))
	if sw.err == nil {
		sw.err = sw.w.Flush()
	}
	if sw.err != nil {
		return sw.n, fmt.Errorf("write snapshot: %w", sw.err)
	}
	return sw.n, nil
}

type snapshotWriter struct {
	w   *bufio.Writer
	n   int64
	err error
}

func (w *snapshotWriter) write(b []byte) {
	if w.err == nil {
		var n int
		n, w.err = w.w.Write(b)
		w.n += int64(n)
	}
}

func (w *snapshotWriter) block(b []byte, turn uint32) {
	var h [8]byte
	binary.LittleEndian.PutUint32(h[:], uint32(len(b)))
	binary.LittleEndian.PutUint32(h[4:], crc32.Checksum(b, castagnoli)^turn)
	w.write(h[:])
	w.write(b)
}

// Restore replaces everything, memory and store, by the state in a snapshot stream. The stream is read and verified to its
// end first: on an error of the stream nothing was replaced and the machine goes on with what it had.
func (m *Machine) Restore(r io.Reader) error {
	s, err := readSnapshot(r)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	m.storeMu.Lock()
	defer m.storeMu.Unlock()
	if err := m.Err(); err != nil {
		return err
	}
	h := s.head()
	if err := m.store.Replace(h.encode(), s.allRows); err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.failLocked(fmt.Errorf("restore: %w", err))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.state = s
	if mutant.On(mutant.DedupNotInSnapshot) {
		for _, c := range s.channels {
			c.dedup = newDedup()
		}
	}
	if m.mu.changed != nil {
		close(m.mu.changed)
		m.mu.changed = nil
	}
	return nil
}

func readSnapshot(r io.Reader) (*state, error) {
	br := bufio.NewReaderSize(r, snapshotBlock)
	var start [len(snapshotMagic) + 4]byte
	if _, err := io.ReadFull(br, start[:]); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	if string(start[:len(snapshotMagic)]) != snapshotMagic {
		return nil, fmt.Errorf("%w: no snapshot begins like this", ErrSnapshot)
	}
	if v := binary.LittleEndian.Uint32(start[len(snapshotMagic):]); v != snapshotVersion {
		return nil, &ErrTooNew{Version: uint64(v)}
	}
	first, _, err := readBlock(br, nil)
	if err != nil {
		return nil, err
	}
	h, err := decodeHead(first)
	if err != nil {
		return nil, err
	}
	l, rows := newLoader(), uint64(0)
	for {
		b, last, err := readBlock(br, first[:0])
		if err != nil {
			return nil, err
		}
		if last {
			if binary.LittleEndian.Uint64(b) != rows {
				return nil, fmt.Errorf("%w: %d rows, the end says %d", ErrSnapshot, rows, binary.LittleEndian.Uint64(b))
			}
			if _, err := br.ReadByte(); err != io.EOF {
				return nil, fmt.Errorf("%w: bytes after the end", ErrSnapshot)
			}
			return l.finish(h)
		}
		first = b
		for p := wire.NewReader(b); p.Len() > 0; rows++ {
			t, key, value := p.Byte(), p.Bytes(), p.Bytes()
			if err := p.Err(); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
			}
			if err := l.row(t, key, value); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
			}
		}
	}
}

// readBlock reads one block into buf, growing it; last tells the end block, whose crc is turned.
func readBlock(r io.Reader, buf []byte) (b []byte, last bool, err error) {
	var h [8]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrSnapshot, noEOF(err))
	}
	n, crc := binary.LittleEndian.Uint32(h[:]), binary.LittleEndian.Uint32(h[4:])
	if n > snapshotMaximum {
		return nil, false, fmt.Errorf("%w: block of %d bytes", ErrSnapshot, n)
	}
	// Grow as the bytes come: a damaged length must not make us allocate what is not there.
	b = buf[:0]
	for uint32(len(b)) < n {
		step := min(n-uint32(len(b)), 1<<20)
		at := len(b)
		b = append(b, make([]byte, step)...)
		if _, err := io.ReadFull(r, b[at:]); err != nil {
			return nil, false, fmt.Errorf("%w: %w", ErrSnapshot, noEOF(err))
		}
	}
	got := crc32.Checksum(b, castagnoli)
	if got == ^crc && n == 8 {
		return b, true, nil
	}
	if got != crc {
		return nil, false, fmt.Errorf("%w: a block's checksum is %08x, want %08x", ErrSnapshot, got, crc)
	}
	return b, false, nil
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
