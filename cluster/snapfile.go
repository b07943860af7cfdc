package cluster

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"penstock/internal/vfs"
)

// A snapshot file is written once, front to back, and read from its end:
//
//	+----------+---------+--------------------------+-----------+---------------------------------------------------+
//	| "PSsn"   | version | data                     | meta      | meta len | data len | data crc | crc    | "PSsn"  |
//	| 4        | u32     |                          | JSON      | u32      | u64      | u32c     | u32c   | 4       |
//	+----------+---------+--------------------------+-----------+---------------------------------------------------+
//
// data is what travels to other nodes, and opens with the applied index of the state in it, which Raft's label does not tell:
//
//	+--------+---------+-------------+------------+--------+------------------------+
//	| "PSst" | version | state index | state term | crc32c | bytes of the state     |
//	| 4      | u32     | u64         | u64        | u32    | machine                |
//	+--------+---------+-------------+------------+--------+------------------------+
//
// Integers are little-endian. The trailer's crc covers meta and the trailer before it; data has its own.
const (
	snapMagic      = "PSsn"
	snapVersion    = 1
	snapHead       = 8
	snapTrailer    = 24
	snapMaxMeta    = 1 << 20
	stateMagic     = "PSst"
	stateVersion   = 1
	stateHeaderLen = 28
)

// snapMeta describes one snapshot. State is the applied index of what is in it, Label where it was installed (0 for one taken here).
type snapMeta struct {
	ID         string `json:"id"`
	StateIndex uint64 `json:"state_index"`
	StateTerm  uint64 `json:"state_term"`
	LabelIndex uint64 `json:"label_index,omitempty"`
	LabelTerm  uint64 `json:"label_term,omitempty"`
	// Configuration is Raft's encoding of the members as of ConfigurationIndex.
	Configuration      []byte `json:"configuration"`
	ConfigurationIndex uint64 `json:"configuration_index"`

	size int64 // of data; from the trailer
	crc  uint32
}

func (m *snapMeta) raftMeta(index, term uint64) *raft.SnapshotMeta {
	return &raft.SnapshotMeta{
		Version: 1, ID: m.ID, Index: index, Term: term, Size: m.size,
		Configuration: raft.DecodeConfiguration(m.Configuration), ConfigurationIndex: m.ConfigurationIndex,
	}
}

func encodeStateHeader(index, term uint64) []byte {
	b := append(make([]byte, 0, stateHeaderLen), stateMagic...)
	b = binary.LittleEndian.AppendUint32(b, stateVersion)
	b = binary.LittleEndian.AppendUint64(b, index)
	b = binary.LittleEndian.AppendUint64(b, term)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeStateHeader(b []byte) (index, term uint64, err error) {
	if len(b) < stateHeaderLen || string(b[:4]) != stateMagic {
		return 0, 0, errors.New("snapshot: no state header")
	}
	if crc32.Checksum(b[:24], castagnoli) != binary.LittleEndian.Uint32(b[24:]) {
		return 0, 0, errors.New("snapshot: state header: checksum")
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != stateVersion {
		return 0, 0, exitError(ExitTooNew, ErrTooNew, "snapshot state version %d, this one reads %d", v, stateVersion)
	}
	return binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:]), nil
}

// snapWriter writes one snapshot file under a temporary name.
type snapWriter struct {
	f    *os.File
	w    *bufio.Writer
	crc  uint32
	size int64
}

func newSnapWriter(path string) (*snapWriter, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create snapshot: %w", err)
	}
	w := &snapWriter{f: f, w: bufio.NewWriterSize(f, 256<<10)}
	head := binary.LittleEndian.AppendUint32([]byte(snapMagic), snapVersion)
	if _, err := w.w.Write(head); err != nil {
		f.Close()
		return nil, fmt.Errorf("write snapshot: %w", err)
	}
	return w, nil
}

func (w *snapWriter) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	w.crc = crc32.Update(w.crc, castagnoli, p[:n])
	w.size += int64(n)
	return n, err
}

// finish writes the end of the file and returns when all of it is durable under the temporary name.
func (w *snapWriter) finish(m *snapMeta) error {
	meta, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode snapshot meta: %w", err)
	}
	m.size, m.crc = w.size, w.crc
	end := append([]byte{}, meta...)
	end = binary.LittleEndian.AppendUint32(end, uint32(len(meta)))
	end = binary.LittleEndian.AppendUint64(end, uint64(w.size))
	end = binary.LittleEndian.AppendUint32(end, w.crc)
	end = binary.LittleEndian.AppendUint32(end, crc32.Checksum(end, castagnoli))
	end = append(end, snapMagic...)
	if _, err := w.w.Write(end); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	if err := w.w.Flush(); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	if err := w.f.Sync(); err != nil {
		return fmt.Errorf("sync snapshot: %w", err)
	}
	return w.f.Close()
}

// readSnapMeta reads and checks all but the data.
func readSnapMeta(path string) (*snapMeta, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open snapshot: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open snapshot: %w", err)
	}
	size := st.Size()
	if size < snapHead+snapTrailer {
		return nil, damaged("snapshot %s: %d bytes", filepath.Base(path), size)
	}
	var head [snapHead]byte
	tail := make([]byte, snapTrailer)
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	if _, err := f.ReadAt(tail, size-snapTrailer); err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	if string(head[:4]) != snapMagic || string(tail[20:]) != snapMagic {
		return nil, damaged("snapshot %s: not a snapshot", filepath.Base(path))
	}
	if v := binary.LittleEndian.Uint32(head[4:]); v != snapVersion {
		return nil, exitError(ExitTooNew, ErrTooNew, "snapshot %s: version %d, this one reads %d", filepath.Base(path), v, snapVersion)
	}
	metaLen, dataLen := int64(binary.LittleEndian.Uint32(tail)), binary.LittleEndian.Uint64(tail[4:])
	if metaLen > snapMaxMeta || dataLen > uint64(size) || snapHead+int64(dataLen)+metaLen+snapTrailer != size {
		return nil, damaged("snapshot %s: lengths %d and %d in a file of %d", filepath.Base(path), dataLen, metaLen, size)
	}
	meta := make([]byte, metaLen, metaLen+16)
	if _, err := f.ReadAt(meta, size-snapTrailer-metaLen); err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	if crc32.Checksum(append(meta, tail[:16]...), castagnoli) != binary.LittleEndian.Uint32(tail[16:]) {
		return nil, damaged("snapshot %s: checksum of its end", filepath.Base(path))
	}
	m := &snapMeta{size: int64(dataLen), crc: binary.LittleEndian.Uint32(tail[12:])}
	if err := json.Unmarshal(meta, m); err != nil {
		return nil, damaged("snapshot %s: meta: %v", filepath.Base(path), err)
	}
	return m, nil
}

// openSnapData opens the data of a snapshot after it has read all of it and checked its CRC.
func openSnapData(path string, m *snapMeta) (*os.File, io.Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("open snapshot: %w", err)
	}
	sum := crc32.New(castagnoli)
	if _, err := io.Copy(sum, io.NewSectionReader(f, snapHead, m.size)); err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("read snapshot: %w", err)
	}
	if sum.Sum32() != m.crc {
		f.Close()
		return nil, nil, damaged("snapshot %s: checksum of its data", m.ID)
	}
	return f, io.NewSectionReader(f, snapHead, m.size), nil
}

// verifySnapshot reads a whole file back from the disk, around the page cache as far as the system lets.
func verifySnapshot(path string) error {
	f, err := vfs.OS.Open(path)
	if err != nil {
		return fmt.Errorf("open snapshot: %w", err)
	}
	if d, ok := f.(vfs.CacheDropper); ok {
		err = d.DropCache()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("read snapshot back: %w", err)
	}
	m, err := readSnapMeta(path)
	if err != nil {
		return err
	}
	m.ID = filepath.Base(path)
	data, _, err := openSnapData(path, m)
	if err != nil {
		return err
	}
	return data.Close()
}
