package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"penstock/internal/vfs"
)

// listing is what lies in the folder, by name only.
type listing struct {
	dir      string
	segments []uint64 // ascending
	spares   []uint64 // ascending
	leftover []string // unfinished temporary files of ours
}

func list(fsys vfs.FS, dir string) (listing, error) {
	l := listing{dir: dir}
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return l, fmt.Errorf("wal: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		if n, ok := parseName(name, segmentPrefix); ok {
			l.segments = append(l.segments, n)
		} else if n, ok := parseName(name, sparePrefix); ok {
			l.spares = append(l.spares, n)
		} else if strings.HasSuffix(name, tmpSuffix) && (strings.HasPrefix(name, sparePrefix) || strings.HasPrefix(name, markName)) {
			l.leftover = append(l.leftover, filepath.Join(dir, name))
		}
	}
	slices.Sort(l.segments)
	slices.Sort(l.spares)
	return l, nil
}

// link is one segment of the chain, opened.
type link struct {
	hdr      segmentHeader
	path     string
	file     vfs.File
	sealedAt uint32 // end mark in the next header, 0 for the newest
	liveEnd  uint64 // start of the next segment, 0 for the newest
}

func closeLinks(chain []link) {
	for _, k := range chain {
		_ = k.file.Close() // opened for recovery, nothing written
	}
}

// loadChain follows the headers from the newest segment back to the oldest
// that the mark says must be there, and returns them oldest first. A segment
// file that is not in the chain is dead: superseded by a newer header, or
// dropped below mark.first before the crash. On error it returns what it has,
// unbroken from the newest segment down; the caller closes the files.
func loadChain(fsys vfs.FS, l listing, m mark, flag int) (chain []link, err error) {
	defer func() { slices.Reverse(chain) }()
	newest := uint64(0)
	if len(l.segments) > 0 {
		newest = l.segments[len(l.segments)-1]
	}
	if m.newest > newest {
		return chain, &DamageError{
			File: filepath.Join(l.dir, segmentName(m.newest)), Kind: DamageMissing, Index: 0,
			Err: fmt.Errorf("the mark vouches for it up to index %d", m.lastIndex),
		}
	}
	for number := newest; number > 0; {
		k, err := openLink(fsys, l.dir, number, flag)
		if err != nil {
			return chain, err
		}
		chain = append(chain, k)
		if len(chain) > 1 {
			if err := connect(&chain[len(chain)-1], chain[len(chain)-2].hdr); err != nil {
				return chain, err
			}
		}
		if err := agreesWithMark(&chain[len(chain)-1], m); err != nil {
			return chain, err
		}
		if number = k.hdr.prev; number < m.first {
			break
		}
	}
	return chain, nil
}

func openLink(fsys vfs.FS, dir string, number uint64, flag int) (link, error) {
	path := filepath.Join(dir, segmentName(number))
	f, err := fsys.OpenFile(path, flag, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return link{}, &DamageError{File: path, Kind: DamageMissing, Err: err}
	}
	if err != nil {
		return link{}, fmt.Errorf("wal: %w", err)
	}
	raw := make([]byte, blockSize)
	n, err := f.ReadAt(raw, 0)
	k := link{path: path, file: f}
	switch {
	case n < blockSize && isEOF(err):
		err = &DamageError{File: path, Kind: DamageShort, Err: err}
	case n < blockSize:
		err = fmt.Errorf("wal: %w", err)
	default:
		err = k.readHeader(raw, number)
	}
	if err != nil {
		_ = f.Close()
		return link{}, err
	}
	return k, nil
}

func (k *link) readHeader(raw []byte, number uint64) error {
	err := k.hdr.decode(raw)
	if errors.Is(err, ErrTooNew) {
		return fmt.Errorf("%s: %w", k.path, err)
	}
	if err == nil && k.hdr.number != number {
		err = fmt.Errorf("header is of segment %d", k.hdr.number)
	}
	if err == nil && k.hdr.blocks > math.MaxUint32/blockData {
		err = fmt.Errorf("header names %d blocks", k.hdr.blocks)
	}
	if err != nil {
		return &DamageError{File: k.path, Kind: DamageHeader, Index: k.hdr.start, Err: err}
	}
	return nil
}

// connect seals k with what the header of the next segment says about it.
func connect(k *link, next segmentHeader) error {
	k.sealedAt, k.liveEnd = next.prevEnd, next.start
	if k.hdr.gen != next.prevGen || k.hdr.gen >= next.gen || k.hdr.start >= next.start ||
		next.prevEnd < 2 || next.prevEnd > k.hdr.blocks {
		return &DamageError{
			File: k.path, Kind: DamageConflict, Index: k.hdr.start,
			Err: fmt.Errorf("segment %d says generation %d, end %d, start before %d; this is generation %d, %d blocks, start %d",
				next.number, next.prevGen, next.prevEnd, next.start, k.hdr.gen, k.hdr.blocks, k.hdr.start),
		}
	}
	return nil
}

// agreesWithMark checks the segment that the mark vouches for.
func agreesWithMark(k *link, m mark) error {
	if k.hdr.number != m.newest {
		return nil
	}
	if k.hdr.gen != m.gen || m.end > k.hdr.blocks || k.sealedAt > 0 && k.sealedAt < m.end {
		return &DamageError{
			File: k.path, Kind: DamageConflict, Index: k.hdr.start,
			Err: fmt.Errorf("the mark says generation %d, end %d; this is generation %d, end %d of %d",
				m.gen, m.end, k.hdr.gen, k.sealedAt, k.hdr.blocks),
		}
	}
	return nil
}

// highestTag is the newest generation that block 0 of a file was written
// with, also when that write was torn. Block 0 is written first in every use,
// so nothing else in the file is newer.
func highestTag(fsys vfs.FS, path string) (uint32, error) {
	f, err := fsys.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	raw := make([]byte, blockSize)
	if n, err := f.ReadAt(raw, 0); n < blockSize {
		if isEOF(err) {
			return 0, nil
		}
		return 0, err
	}
	high := uint32(0)
	for s := range uint32(sectorsPerBlock) {
		if t, state := readTag(raw[s*sectorSize:], math.MaxUint32, s); state != sectorZero && state != sectorBad {
			high = max(high, t.gen)
		}
	}
	return high, nil
}
