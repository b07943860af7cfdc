package wal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"penstock/internal/vfs"
	"penstock/internal/vfs/memfs"
)

// raceEnabled: the race detector makes these ten times slower and finds
// nothing in them, so under it they take samples. PENSTOCK_FULL=1 does all.
var raceEnabled bool

func full() bool { return os.Getenv("PENSTOCK_FULL") == "1" }

// flatFS is a read-only folder over byte slices that the test changes between
// two looks: no copy, no lock.
type flatFS struct {
	vfs.FS // anything else is a nil dereference, and a failed test
	files  image
}

type flatFile struct {
	vfs.File
	name string
	b    []byte
}

func (f flatFS) Open(name string) (vfs.File, error) { return f.OpenFile(name, os.O_RDONLY, 0) }

func (f flatFS) OpenFile(name string, flag int, _ fs.FileMode) (vfs.File, error) {
	b, ok := f.files[filepath.Base(name)]
	if !ok || flag != os.O_RDONLY {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &flatFile{name: filepath.Base(name), b: b}, nil
}

func (f flatFS) ReadDir(string) (list []fs.DirEntry, err error) {
	for name, b := range f.files {
		list = append(list, fs.FileInfoToDirEntry(flatInfo{name, len(b)}))
	}
	return list, nil
}

type flatInfo struct {
	name string
	size int
}

func (i flatInfo) Name() string       { return i.name }
func (i flatInfo) Size() int64        { return int64(i.size) }
func (i flatInfo) Mode() fs.FileMode  { return 0o600 }
func (i flatInfo) ModTime() time.Time { return time.Time{} }
func (i flatInfo) IsDir() bool        { return false }
func (i flatInfo) Sys() any           { return nil }

func (f *flatFile) Stat() (fs.FileInfo, error) { return flatInfo{f.name, len(f.b)}, nil }
func (f *flatFile) Close() error               { return nil }
func (f *flatFile) Name() string               { return f.name }

func (f *flatFile) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(f.b)) {
		return 0, io.EOF
	}
	n := copy(p, f.b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *flatFile) Read(p []byte) (int, error) {
	if len(f.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, f.b)
	f.b = f.b[n:]
	return n, nil
}

// specimen is a log of three segments and 96 KiB: payloads of nothing, of
// zeros and of more than a block; the oldest segment and the newest were used
// before, and a suffix was truncated. The last batch is one that no mark
// covers, everything else is covered. want is the list of writes.
type specimen struct {
	files  image
	want   map[uint64]*raft.Log
	base   uint64
	last   uint64
	marked uint64 // last index that the mark vouches for
	newest string

	// Of classifySegment, one for each goroutine.
	chain []link
	good  []*segment
	mark  mark
}

func newSpecimen(t *testing.T) *specimen {
	t.Helper()
	fsys := memfs.New()
	cfg := testConfig(t, fsys)
	cfg.Spares = 8
	l, err := Open(testDir, cfg)
	require.NoError(t, err)
	sp := &specimen{want: map[uint64]*raft.Log{}}
	store := func(term uint64, sizes ...int) {
		var logs []*raft.Log
		for _, size := range sizes {
			sp.last++
			e := entry(sp.last, term, max(size, -size))
			if size < 0 {
				clear(e.Data)
			}
			if size%3 == 1 {
				e.Extensions = []byte("extension")
			}
			logs = append(logs, e)
			sp.want[sp.last] = e
		}
		require.NoError(t, l.StoreLogs(logs))
	}
	for range 40 { // several segments, to be used again
		store(1, 3000, 900)
	}
	l.SetFloor(sp.last)
	require.NoError(t, l.DeleteRange(1, sp.last-1))
	require.NoError(t, l.tidy())
	chain := func() int { return l.Stats().Segments }
	store(2, 7000) // rolls
	for !l.tailIsRecycled(t) {
		store(2, 7000)
	}
	store(2, 10)
	store(2, 10)
	l.SetFloor(sp.last)
	require.NoError(t, l.DeleteRange(1, sp.last-1))
	require.NoError(t, l.tidy())
	require.Equal(t, 1, chain())
	store(2, 0, 100, -600, 5000)
	store(2, -4096, 7000) // rolls
	store(2, 300, 300, 200)
	store(2, 50)
	cut := sp.last - 2
	l.mu.floor = 0 // it would keep them
	require.NoError(t, l.DeleteRange(cut, sp.last))
	for ; sp.last >= cut; sp.last-- {
		delete(sp.want, sp.last)
	}
	store(3, 1, 0, -700)
	store(3, 9000, 10)
	_, err = l.markNow(false)
	require.NoError(t, err)
	sp.marked = sp.last
	store(3, 0, 4500, -100)
	require.Equal(t, 3, chain())
	require.True(t, l.tailIsRecycled(t))
	sp.base, _ = l.Base()
	for i := range sp.want {
		if i <= sp.base {
			delete(sp.want, i)
		}
	}
	sp.newest = filepath.Base(l.tail().path)
	sp.files = image{}
	for name, b := range takeImage(t, fsys) {
		if _, ok := parseName(name, segmentPrefix); ok || name == markName {
			sp.files[name] = b
		}
	}
	require.NoError(t, l.Close())
	size := 0
	for _, b := range sp.files {
		size += len(b)
	}
	require.GreaterOrEqual(t, size, 64<<10)
	return sp
}

func (sp *specimen) names() (names []string) {
	for name := range sp.files {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// private is a copy for one goroutine.
func (sp *specimen) private() *specimen {
	c := *sp
	c.files = image{}
	for name, b := range sp.files {
		c.files[name] = bytes.Clone(b)
	}
	return &c
}

// outcome of one look at a changed log.
type outcome string

const (
	identical outcome = "identical"
	torn      outcome = "torn"
	damaged   outcome = "damage that can be repaired"
	inDoubt   outcome = "damage with an open end"
	refused   outcome = "refused"
)

// classify opens the changed log the strict way, and when that says damage the
// tolerant way, and holds both against the list of writes. An error means that
// the log came back shorter, longer or other without saying so.
func (sp *specimen) classify() (outcome, error) {
	fsys := flatFS{files: sp.files}
	ld, err := load(fsys, testDir, os.O_RDONLY, false, false)
	if err == nil {
		if err := sp.compare(ld); err == nil {
			return identical, nil
		}
		// Torn: only what no mark covers may be missing, whole.
		last := ld.segs[len(ld.segs)-1].next() - 1
		if last != sp.marked {
			return "", fmt.Errorf("silently ends at %d", last)
		}
		return torn, sp.compareUpTo(ld, last)
	}
	var damage *DamageError
	if !errors.As(err, &damage) {
		return "", fmt.Errorf("neither good nor damaged: %w", err)
	}
	ld, err = load(fsys, testDir, os.O_RDONLY, true, false)
	if errors.As(err, &damage) {
		return refused, nil
	}
	if err != nil {
		return "", err
	}
	if len(ld.loose) == 0 && ld.stuck() == nil {
		n := 0
		for _, seg := range ld.segs {
			n += len(seg.damage)
		}
		if n == 0 {
			return "", fmt.Errorf("the strict look says %w, the tolerant one nothing", err)
		}
	}
	if err := sp.compare(ld); err != nil {
		return "", err
	}
	if ld.openEnd != nil {
		return inDoubt, nil
	}
	return damaged, nil
}

// look reads the unchanged log, for classifySegment.
func (sp *specimen) look() error {
	c := chainLoader{fs: flatFS{files: sp.files}, flag: os.O_RDONLY}
	c.m, _, _ = readMark(c.fs, testDir)
	c.dir, _ = list(c.fs, testDir)
	if err := c.load(); err != nil {
		return err
	}
	sp.chain, sp.mark = c.chain, c.m
	for _, k := range c.chain {
		ld := &loaded{m: sp.mark}
		r := ld.scan(k, false)
		if r.err != nil {
			return r.err
		}
		sp.good = append(sp.good, r.seg)
	}
	return nil
}

// classifySegment is classify when only the record blocks of one segment
// changed: headers and mark are what they were, so the chain is too, and the
// verdicts on the other segments. at is the byte.
func (sp *specimen) classifySegment(name string, at int) (outcome, error) {
	i := slices.IndexFunc(sp.chain, func(k link) bool { return filepath.Base(k.path) == name })
	k, good := sp.chain[i], sp.good[i]
	ld := &loaded{m: sp.mark}
	r := ld.scan(k, false)
	if r.err == nil {
		switch {
		case r.seg.n != good.n || !slices.Equal(r.seg.offsets, good.offsets) || r.torn.torn:
			return "", errors.New("another extent, and not a word")
		case at < (int(good.offsets[good.n])+blockData-1)/blockData*blockSize:
			return "", errors.New("in a batch, and not a word")
		}
		return identical, nil
	}
	var damage *DamageError
	if !errors.As(r.err, &damage) {
		return "", fmt.Errorf("neither good nor damaged: %w", r.err)
	}
	if r = ld.scan(k, true); r.err != nil {
		return refused, nil
	}
	seg := r.seg
	if len(seg.damage) == 0 && r.openEnd == nil {
		return "", fmt.Errorf("the strict look says %w, the tolerant one nothing", damage)
	}
	for index := seg.start; index < seg.next(); index++ {
		if err := sp.compareEntry(seg, index); err != nil {
			return "", err
		}
	}
	switch {
	case r.openEnd != nil && r.openEnd.First <= seg.next():
		return inDoubt, nil
	case seg.n != good.n:
		return "", fmt.Errorf("ends at %d, want %d", seg.next(), good.next())
	}
	return damaged, nil
}

func (sp *specimen) compare(ld *loaded) error { return sp.compareUpTo(ld, sp.last) }

// compareUpTo: each entry up to last reads as it was written, or is in a
// damage, of which what it says is true; and nothing else is there.
func (sp *specimen) compareUpTo(ld *loaded, last uint64) error {
	if len(ld.segs) == 0 || ld.segs[0].start != sp.base+1 {
		return errors.New("another base")
	}
	next := sp.base + 1
	for i, seg := range ld.segs {
		if seg.start != next {
			return fmt.Errorf("segment starts at %d, want %d", seg.start, next)
		}
		for ; next < seg.next(); next++ {
			if err := sp.compareEntry(seg, next); err != nil {
				return err
			}
		}
		if i == len(ld.segs)-1 && next <= last && (ld.openEnd == nil || ld.openEnd.First > next) {
			return fmt.Errorf("ends at %d, want %d", next-1, last)
		}
	}
	if next > last+1 {
		return fmt.Errorf("goes on to %d, want %d", next-1, last)
	}
	return nil
}

func (sp *specimen) compareEntry(seg *segment, index uint64) error {
	want := sp.want[index]
	if want == nil {
		return fmt.Errorf("entry %d was never written, or is dead", index)
	}
	if d := seg.damagedAt(index); d != nil {
		if d.Known && (d.Term != want.Term || d.PayloadCRC != PayloadCRC(want)) {
			return fmt.Errorf("entry %d is said to be another", index)
		}
		return nil
	}
	pos, end := seg.span(index)
	h, payload, err := readRecord(seg.file, seg.path, index, pos, end)
	if err != nil {
		return err
	}
	if h.term != want.Term || h.typ != want.Type || int(h.dataLen) != len(want.Data) ||
		!bytes.Equal(payload[:h.dataLen], want.Data) || !bytes.Equal(payload[h.dataLen:], want.Extensions) {
		return fmt.Errorf("entry %d is another", index)
	}
	return nil
}

// each runs fn for 0..n-1 on all processors, each with its own copy, and
// counts the outcomes.
func (sp *specimen) each(t *testing.T, n, step int, fn func(sp *specimen, i int) (outcome, error)) map[outcome]int {
	t.Helper()
	if raceEnabled && !full() {
		step *= 151
	}
	defer debug.SetGCPercent(debug.SetGCPercent(1000)) // much garbage, little of it lives
	var mu sync.Mutex
	var wg sync.WaitGroup
	total := map[outcome]int{}
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		wg.Go(func() {
			mine, counts := sp.private(), map[outcome]int{}
			if err := mine.look(); err != nil {
				t.Error(err)
				return
			}
			for i := w * step; i < n; i += workers * step {
				out, err := fn(mine, i)
				if err != nil {
					t.Errorf("at %d: %v", i, err)
					return
				}
				counts[out]++
			}
			mu.Lock()
			defer mu.Unlock()
			for out, k := range counts {
				total[out] += k
			}
		})
	}
	wg.Wait()
	return total
}

// TestEachFlippedBitOfALogIsClassified (Shows 1): every single bit of every
// file of the log, against the list of writes. In record blocks one in sixteen
// is looked at with the whole folder, the others with their segment alone.
func TestEachFlippedBitOfALogIsClassified(t *testing.T) {
	sp := newSpecimen(t)
	out, err := sp.classify()
	require.NoError(t, err)
	require.Equal(t, identical, out)
	for _, name := range sp.names() {
		counts := sp.each(t, 8*len(sp.files[name]), 1, func(sp *specimen, bit int) (outcome, error) {
			b := sp.files[name]
			b[bit/8] ^= 1 << (bit % 8)
			defer func() { b[bit/8] ^= 1 << (bit % 8) }()
			if name != markName && bit/8 >= blockSize && bit%16 != 7 {
				return sp.classifySegment(name, bit/8)
			}
			return sp.classify()
		})
		t.Log(name, counts)
		require.Zero(t, counts[torn], "a flipped bit is never a torn write")
		require.Zero(t, counts[refused], name)
		require.Equal(t, name == markName, counts[damaged]+counts[inDoubt] == 0)
	}
}

// TestEachTruncationOfALogIsClassified: every file, cut to every length, and
// with zeros from every byte on.
func TestEachTruncationOfALogIsClassified(t *testing.T) {
	sp := newSpecimen(t)
	for _, name := range sp.names() {
		n := len(sp.files[name])
		counts := sp.each(t, n, 1, func(sp *specimen, size int) (outcome, error) {
			whole := sp.files[name]
			sp.files[name] = whole[:size]
			defer func() { sp.files[name] = whole }()
			return sp.classify()
		})
		t.Log(name, "cut short", counts)
		require.Zero(t, counts[torn], "no crash makes a segment shorter")
		require.False(t, name == sp.newest && counts[identical] > 0)
		require.Equal(t, name == markName, counts[refused] > 0)

		counts = sp.each(t, n, 1, func(sp *specimen, from int) (outcome, error) {
			whole := sp.files[name]
			sp.files[name] = append(bytes.Clone(whole[:from]), make([]byte, len(whole)-from)...)
			defer func() { sp.files[name] = whole }()
			out, err := sp.classify()
			if out == torn && name != sp.newest {
				err = errors.New("torn in a segment that was sealed")
			}
			return out, err
		})
		t.Log(name, "zeros to the end", counts)
		require.Equal(t, name == sp.newest, counts[torn] > 0)
		require.Equal(t, name == markName, counts[refused] > 0)
	}
}

// TestEachLostFileOfALogIsClassified: P2 names it; a lost mark alone is
// refused, since nobody knows then what else is lost.
func TestEachLostFileOfALogIsClassified(t *testing.T) {
	sp := newSpecimen(t)
	for _, name := range sp.names() {
		mine := sp.private()
		delete(mine.files, name)
		out, err := mine.classify()
		require.NoError(t, err, name)
		switch name {
		case markName:
			require.Equal(t, refused, out)
		case sp.newest:
			require.Equal(t, inDoubt, out)
		default:
			require.Equal(t, damaged, out, name)
		}
		require.True(t, strings.HasPrefix(name, segmentPrefix) || name == markName)
	}
}
