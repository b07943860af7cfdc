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
	segments []uint64 // ascending; those that a finished repair stands for included
	spares   []uint64 // ascending
	repairs  []uint64 // finished repairs that have not taken their place yet
	apart    []string // quarantined files
	leftover []string // unfinished temporary files of ours
}

// pathOf is the file of a segment: its finished repair when there is one.
func (l *listing) pathOf(number uint64) string {
	if slices.Contains(l.repairs, number) {
		return filepath.Join(l.dir, repairName(number))
	}
	return filepath.Join(l.dir, segmentName(number))
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
		} else if n, ok := parseName(name, repairPrefix); ok {
			l.repairs = append(l.repairs, n)
		} else if strings.HasPrefix(name, lostPrefix) {
			l.apart = append(l.apart, filepath.Join(dir, name))
		} else if strings.HasSuffix(name, tmpSuffix) && slices.ContainsFunc([]string{sparePrefix, repairPrefix, markName, reserveName},
			func(p string) bool { return strings.HasPrefix(name, p) }) {
			l.leftover = append(l.leftover, filepath.Join(dir, name))
		}
	}
	l.segments = append(l.segments, l.repairs...)
	slices.Sort(l.segments)
	l.segments = slices.Compact(l.segments)
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
	// rebuilt: the header is bad, this one is from its copy elsewhere; with no
	// file, it is lost whole.
	rebuilt *DamageError
}

func (k *link) lost() bool { return k.file == nil }

func closeLinks(chain []link) {
	for _, k := range chain {
		if k.file != nil {
			_ = k.file.Close() // opened for recovery, nothing written
		}
	}
}

// chainLoader follows the headers from the newest segment back to the oldest
// that the mark says must be there.
type chainLoader struct {
	fs       vfs.FS
	dir      listing
	m        mark
	doubt    error
	noMark   bool // m is empty: the chain ends where there are no more files
	flag     int
	tolerate bool // go on with the copies of headers that are bad or missing

	chain []link   // newest first while it is made, then oldest first
	loose []Damage // of files outside the chain
}

// load fills chain. A segment file that is not in it is dead: superseded by a
// newer header, or dropped below mark.first before the crash. On error chain
// is what there is, unbroken from the newest segment down; the caller closes
// the files.
func (c *chainLoader) load() error {
	number, err := c.newest()
	for err == nil && number > 0 {
		var k link
		if k, err = c.link(number); err != nil {
			break
		}
		c.chain = append(c.chain, k)
		at := &c.chain[len(c.chain)-1]
		if len(c.chain) > 1 {
			err = connect(at, c.chain[len(c.chain)-2].hdr)
		}
		if err == nil {
			err = agreesWithMark(at, c.m)
		}
		if number = k.hdr.prev; number < c.m.first || c.noMark && !slices.Contains(c.dir.segments, number) {
			break
		}
	}
	slices.Reverse(c.chain)
	return err
}

// newest is the number to start from. A newer file than the mark names holds
// nothing that was acked (append.go, markRolled): with a bad header it can be
// left out.
func (c *chainLoader) newest() (uint64, error) {
	newest := uint64(0)
	if n := len(c.dir.segments); n > 0 {
		newest = c.dir.segments[n-1]
	}
	if !c.tolerate || c.doubt != nil || newest <= c.m.newest {
		return max(newest, c.m.newest), nil
	}
	k, err := openLink(c.fs, c.dir.pathOf(newest), newest, os.O_RDONLY)
	var damage *DamageError
	if errors.As(err, &damage) && damage.Kind != DamageMissing {
		c.loose = append(c.loose, damageOf(damage))
		return c.m.newest, nil
	}
	closeLinks([]link{k})
	return newest, nil
}

// link opens one segment, or rebuilds it from the copy of its header.
func (c *chainLoader) link(number uint64) (link, error) {
	path := c.dir.pathOf(number)
	k, err := openLink(c.fs, path, number, c.flag)
	var damage *DamageError
	if !errors.As(err, &damage) {
		return k, err
	}
	if number == c.m.newest && len(c.chain) == 0 && damage.Kind == DamageMissing {
		damage.Err = fmt.Errorf("the mark vouches for it up to index %d", c.m.lastIndex)
	}
	known, gen := c.m.head, c.m.gen
	if len(c.chain) > 0 {
		next := c.chain[len(c.chain)-1].hdr
		known, gen = next.prevCopy, next.prevGen
	} else if number != c.m.newest {
		known.start = 0
	}
	if !c.tolerate || known.start == 0 {
		return link{}, damage
	}
	k = link{path: path, rebuilt: damage, hdr: known.header(number, gen, 0)}
	if damage.Kind == DamageMissing {
		return k, nil
	}
	f, err := c.fs.OpenFile(path, c.flag, 0)
	if err != nil {
		return link{}, fmt.Errorf("wal: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		return link{}, errors.Join(fmt.Errorf("wal: %w", err), f.Close())
	}
	if k.hdr.blocks = uint32(min(st.Size()/blockSize, maxBlocks)); k.hdr.blocks < 2 {
		return k, f.Close()
	}
	k.file = f
	return k, nil
}

func openLink(fsys vfs.FS, path string, number uint64, flag int) (link, error) {
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
	if err == nil && k.hdr.blocks > maxBlocks {
		err = fmt.Errorf("header names %d blocks", k.hdr.blocks)
	}
	if err != nil {
		return &DamageError{File: k.path, Kind: DamageHeader, Index: k.hdr.start, Err: err}
	}
	return nil
}

// maxBlocks bounds what a header may say: a position counts in 32 bits.
const maxBlocks = math.MaxUint32 / blockData

// connect seals k with what the header of the next segment says about it.
func connect(k *link, next segmentHeader) error {
	k.sealedAt, k.liveEnd = next.prevEnd, next.start
	anew := k.hdr.kind == kindRepair || k.rebuilt != nil && !k.lost()
	if k.hdr.gen != next.prevGen || k.hdr.gen >= next.gen || k.hdr.start >= next.start ||
		next.prevEnd < 2 || !anew && !k.lost() && next.prevEnd > k.hdr.blocks {
		return &DamageError{
			File: k.path, Kind: DamageConflict, Index: k.hdr.start,
			Err: fmt.Errorf("segment %d says generation %d, end %d, start before %d; this is generation %d, %d blocks, start %d",
				next.number, next.prevGen, next.prevEnd, next.start, k.hdr.gen, k.hdr.blocks, k.hdr.start),
		}
	}
	if anew {
		k.sealedAt = k.hdr.blocks // its live entries end before next.start in any case
	}
	return nil
}

// agreesWithMark checks the segment that the mark vouches for.
func agreesWithMark(k *link, m mark) error {
	if k.hdr.number != m.newest {
		return nil
	}
	anew := k.hdr.kind == kindRepair || k.rebuilt != nil
	if k.hdr.gen != m.gen || !anew && (m.end > k.hdr.blocks || k.sealedAt > 0 && k.sealedAt < m.end) {
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
