package cluster

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"penstock/internal/mutant"
)

// A sealed file is a small file that is replaced whole: identity, peers, install marker.
//
//	+--------+---------+----------+------------+-----------+
//	| magic  | version | length   | crc32c     | body      |
//	| 4      | u32     | u32      | u32        | JSON      |
//	+--------+---------+----------+------------+-----------+
//
// Integers are little-endian; the CRC covers magic, version, length and body.
const (
	sealedHeader  = 16
	sealedMaxBody = 4 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sealedCRC(head, body []byte) uint32 {
	return crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, body)
}

func encodeSealed(magic string, version uint32, body []byte) []byte {
	b := make([]byte, sealedHeader, sealedHeader+len(body))
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[4:], version)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(body)))
	binary.LittleEndian.PutUint32(b[12:], sealedCRC(b[:12], body))
	return append(b, body...)
}

// decodeSealed tells damage from a newer version: the first is never read, the second is refused with its own exit code.
func decodeSealed(name, magic string, version uint32, b []byte) ([]byte, error) {
	if len(b) < sealedHeader || string(b[:4]) != magic {
		return nil, damaged("%s: not a file of this kind (%d bytes)", name, len(b))
	}
	length := binary.LittleEndian.Uint32(b[8:])
	body := b[sealedHeader:]
	if uint64(length) != uint64(len(body)) || length > sealedMaxBody {
		return nil, damaged("%s: length %d, found %d", name, length, len(body))
	}
	if got, want := sealedCRC(b[:12], body), binary.LittleEndian.Uint32(b[12:]); got != want {
		return nil, damaged("%s: checksum %08x, expected %08x", name, got, want)
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != version {
		return nil, exitError(ExitTooNew, ErrTooNew, "%s: version %d, this one reads %d", name, v, version)
	}
	return body, nil
}

// readSealed returns os.ErrNotExist as it is.
func readSealed(path, magic string, version uint32) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, sealedHeader+sealedMaxBody+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return decodeSealed(path, magic, version, b)
}

// writeSealed returns after the file and its directory entry are durable.
func writeSealed(path, magic string, version uint32, body []byte) error {
	return replaceFile(path, encodeSealed(magic, version, body))
}

func replaceFile(path string, content []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create %s: %w", tmp, err)
	}
	if _, err := f.Write(content); err != nil {
		f.Close()
		return fmt.Errorf("write %s: %w", tmp, err)
	}
	if err := f.Sync(); err != nil {
		f.Close()
		return fmt.Errorf("sync %s: %w", tmp, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("close %s: %w", tmp, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("rename %s: %w", tmp, err)
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	if mutant.On(mutant.SkipDirFsync) {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory %s: %w", dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

// removeFile removes path durably; a file that is not there is fine.
func removeFile(path string) error {
	if err := os.Remove(path); err != nil {
		if os.IsNotExist(err) {
			return nil
		}
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}
