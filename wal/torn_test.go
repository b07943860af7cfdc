package wal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"penstock/internal/vfs"
	"penstock/internal/vfs/memfs"
)

// image is a folder's files, to be changed byte by byte.
type image map[string][]byte

func takeImage(t testing.TB, fsys vfs.FS) image {
	t.Helper()
	img := image{}
	dir, err := fsys.ReadDir(testDir)
	require.NoError(t, err)
	for _, e := range dir {
		if strings.HasSuffix(e.Name(), tmpSuffix) {
			continue // the preparer is at it
		}
		img[e.Name()], err = vfs.ReadFile(fsys, filepath.Join(testDir, e.Name()))
		require.NoError(t, err)
	}
	return img
}

// put makes a fresh file system of the image, all of it durable.
func (img image) put(t testing.TB) *memfs.FS {
	t.Helper()
	fsys := memfs.New()
	require.NoError(t, fsys.MkdirAll(testDir, 0o700))
	for name, b := range img {
		f, err := fsys.OpenFile(filepath.Join(testDir, name), os.O_RDWR|os.O_CREATE, 0o600)
		require.NoError(t, err)
		_, err = f.Write(b)
		require.NoError(t, err)
		require.NoError(t, f.Sync())
		require.NoError(t, f.Close())
	}
	require.NoError(t, fsys.SyncDir(testDir))
	return fsys
}

func (img image) with(name string, change func(b []byte) []byte) image {
	out := image{}
	for n, b := range img {
		out[n] = b
	}
	out[name] = change(append([]byte(nil), img[name]...))
	return out
}

// open opens the image and compares with the model; the error is Open's, or
// says how the log differs.
func (img image) open(t testing.TB, m *model) (rec Recovery, err error) {
	t.Helper()
	l, err := Open(testDir, testConfig(t, img.put(t)))
	if err != nil {
		return Recovery{}, err
	}
	defer func() { require.NoError(t, l.Close()) }()
	if err := m.check(l, ^uint64(0)); err != nil {
		return l.Recovery(), fmt.Errorf("silently different: %w", err)
	}
	return l.Recovery(), nil
}

// threeSegments is a log of three segments with payloads of nothing, of zeros
// and of more than a block, with a truncated suffix in it; a last batch follows
// that no mark covers.
func threeSegments(t testing.TB) (before, after image, m, mAfter *model) {
	t.Helper()
	fsys := memfs.New()
	l, err := Open(testDir, testConfig(t, fsys))
	require.NoError(t, err)
	m = newModel()
	store := func(term uint64, sizes ...int) {
		var logs []*raft.Log
		for i, size := range sizes {
			e := entry(m.last+1+uint64(i), term, max(size, -size))
			if size < 0 {
				clear(e.Data)
			}
			logs = append(logs, e)
		}
		require.NoError(t, l.StoreLogs(logs))
		m.store(logs)
	}
	store(1, 0, 100, -600, 5000)
	store(1, -4096, 7000)
	store(1, 300, 300, 9000) // rolls
	require.NoError(t, l.DeleteRange(8, 9))
	m.cut(8)
	store(2, 4000, -5000, 0)
	before = takeImage(t, fsys)
	mAfter = m.clone()
	logs := entries(m.last+1, m.last+3, 2, 2500)
	require.NoError(t, l.StoreLogs(logs))
	mAfter.store(logs)
	after = takeImage(t, fsys)
	require.NoError(t, l.Close())
	require.Equal(t, 3, l.Stats().Segments)
	return before, after, m, mAfter
}

// tail is the name of the newest segment and the extent of its last batch.
func lastBatch(before, after image) (name string, from, to int) {
	for n, b := range after {
		if _, ok := parseName(n, segmentPrefix); !ok || string(before[n]) == string(b) {
			continue
		}
		name = n
		for from = 0; b[from] == before[n][from]; from++ {
		}
		for to = len(b); b[to-1] == before[n][to-1]; to-- {
		}
	}
	return name, from / blockSize * blockSize, (to + blockSize - 1) / blockSize * blockSize
}

// rawSegment lets a test change single bytes of a segment and scan it again,
// without the rest of Open.
type rawSegment struct {
	f   vfs.File
	hdr segmentHeader
}

func newRawSegment(t testing.TB, content []byte) *rawSegment {
	t.Helper()
	f, err := memfs.New().Create("/seg")
	require.NoError(t, err)
	r := &rawSegment{f: f}
	r.write(t, 0, content)
	require.NoError(t, r.hdr.decode(content))
	return r
}

func (r *rawSegment) write(t testing.TB, at int, b []byte) {
	t.Helper()
	_, err := r.f.WriteAt(b, int64(at))
	require.NoError(t, err)
}

func (r *rawSegment) scan(t testing.TB) (found, error) {
	t.Helper()
	s, err := newScanner(r.f, "seg", r.hdr)
	require.NoError(t, err)
	return s.scan(0, nil)
}

// TestRecoverDropsTornTail tears the last batch at every byte. A sector is
// judged by its tag; a cut inside the eight bytes of a tag, which no disk with
// whole sectors makes, is refused rather than guessed.
func TestRecoverDropsTornTail(t *testing.T) {
	before, after, _, _ := threeSegments(t)
	name, from, to := lastBatch(before, after)
	require.Equal(t, 2*blockSize, to-from)
	raw := newRawSegment(t, after[name])
	whole, err := raw.scan(t)
	require.NoError(t, err)
	torn := 0
	for cut := to - 1; cut >= from; cut-- {
		raw.write(t, cut, before[name][cut:cut+1])
		got, err := raw.scan(t)
		switch {
		case string(before[name][cut:to]) == string(after[name][cut:to]):
			require.NoError(t, err, "cut at %d", cut)
			require.Equal(t, whole.n, got.n)
		case cut%sectorSize > sectorData && err != nil:
			var damage *DamageError
			require.ErrorAs(t, err, &damage, "cut at %d", cut)
		default:
			require.NoError(t, err, "cut at %d", cut)
			require.Equal(t, whole.n-3, got.n)
			if got.torn.torn {
				torn++
			}
		}
	}
	require.NotZero(t, torn)
}

// TestOpenGoesOnBehindATornTail: after the cut the log takes entries, and a
// second start finds them; what was torn off stays away.
func TestOpenGoesOnBehindATornTail(t *testing.T) {
	before, after, m, _ := threeSegments(t)
	name, from, to := lastBatch(before, after)
	for cut := from + sectorSize; cut < to; cut += sectorSize {
		fsys := after.with(name, func(b []byte) []byte {
			copy(b[cut:], before[name][cut:])
			return b
		}).put(t)
		m := m.clone()
		for range 2 {
			l, err := Open(testDir, testConfig(t, fsys))
			require.NoError(t, err)
			require.NoError(t, m.check(l, ^uint64(0)))
			logs := entries(m.last+1, m.last+2, 7, 700)
			require.NoError(t, l.StoreLogs(logs))
			m.store(logs)
			require.NoError(t, m.check(l, ^uint64(0)))
			require.NoError(t, l.Close())
		}
	}
}

// TestRecoverDropsAnySubsetOfSectors: whatever subset of the last batch's
// sectors reached the disk, the log is the old one or the new one.
func TestRecoverDropsAnySubsetOfSectors(t *testing.T) {
	before, after, m, mAfter := threeSegments(t)
	name, from, to := lastBatch(before, after)
	n := (to - from) / sectorSize
	step := uint64(397)
	for set := uint64(0); set < 1<<n; set += step {
		img := after.with(name, func(b []byte) []byte {
			for s := range n {
				if set>>s&1 == 0 {
					at := from + s*sectorSize
					copy(b[at:at+sectorSize], before[name][at:])
				}
			}
			return b
		})
		_, err := img.open(t, m)
		if set == 1<<n-1 {
			_, err = img.open(t, mAfter)
		}
		require.NoError(t, err, "sectors %b", set)
	}
}

// TestTornBatchBelowTheMarkIsDamage: the same tear, once the mark vouches for
// the batch, is damage (I10).
func TestTornBatchBelowTheMarkIsDamage(t *testing.T) {
	before, after, m, mAfter := threeSegments(t)
	name, from, to := lastBatch(before, after)
	fsys := after.put(t)
	l, err := Open(testDir, testConfig(t, fsys)) // Open writes the mark
	require.NoError(t, err)
	require.NoError(t, mAfter.check(l, ^uint64(0)))
	require.NoError(t, l.Close())
	marked := takeImage(t, fsys)
	for cut := from; cut < to; cut += sectorSize {
		img := marked.with(name, func(b []byte) []byte {
			copy(b[cut:], before[name][cut:])
			return b
		})
		_, err := img.open(t, m)
		var damage *DamageError
		require.ErrorAs(t, err, &damage, "cut at %d", cut)
		require.Equal(t, m.last+1, damage.Index)
	}
}

// TestFlippedBitIsNeverSilent flips sampled bits of every file: the log is
// identical, or Open names the damage; it never comes back shorter or other.
func TestFlippedBitIsNeverSilent(t *testing.T) {
	before, after, _, m := threeSegments(t)
	name, from, to := lastBatch(before, after)
	step := 1999
	if testing.Short() {
		step = 9973
	}
	damaged := map[DamageKind]int{}
	for file, content := range after {
		for bit := 3; bit < 8*len(content); bit += step {
			flipped := after.with(file, func(b []byte) []byte {
				b[bit/8] ^= 1 << (bit % 8)
				return b
			})
			_, err := flipped.open(t, m)
			var damage *DamageError
			if err != nil {
				require.True(t, errors.As(err, &damage), "%s bit %d: %v", file, bit, err)
				require.Equal(t, file, filepath.Base(damage.File))
				damaged[damage.Kind]++
			}
			inLast := file == name && bit/8 >= from && bit/8 < to
			require.False(t, inLast && err == nil, "flip in the last batch at %d passed", bit/8)
		}
	}
	require.NotZero(t, damaged[DamageBlock])
	t.Log(damaged)
}

// TestEveryBitOfALastBatchIsGuarded is exhaustive where it matters most: the
// batch that no mark covers must not pass for torn.
func TestEveryBitOfALastBatchIsGuarded(t *testing.T) {
	fsys := memfs.New()
	l, err := Open(testDir, testConfig(t, fsys))
	require.NoError(t, err)
	require.NoError(t, l.StoreLogs(entries(1, 3, 1, 100)))
	name := filepath.Base(l.tail().path)
	require.NoError(t, l.Close())
	raw, err := vfs.ReadFile(fsys, filepath.Join(testDir, name))
	require.NoError(t, err)
	seg := newRawSegment(t, raw)
	for bit := blockSize * 8; bit < 2*blockSize*8; bit++ {
		seg.write(t, bit/8, []byte{raw[bit/8] ^ 1<<(bit%8)})
		_, err = seg.scan(t)
		var damage *DamageError
		require.ErrorAs(t, err, &damage, "bit %d", bit)
		seg.write(t, bit/8, raw[bit/8:bit/8+1])
	}
}

// TestLostFileIsDamage: each file of the log, missing or cut short.
func TestLostFileIsDamage(t *testing.T) {
	_, after, _, m := threeSegments(t)
	for name := range after {
		if _, ok := parseName(name, segmentPrefix); !ok && name != markName {
			continue
		}
		gone := after.with(name, func([]byte) []byte { return nil })
		delete(gone, name)
		_, err := gone.open(t, m)
		var damage *DamageError
		require.ErrorAs(t, err, &damage, name)
		require.Equal(t, name, filepath.Base(damage.File))
		for _, size := range []int{0, 1, 4095, 4096, 5000, 8192, len(after[name]) - 1} {
			_, err := after.with(name, func(b []byte) []byte { return b[:min(size, len(b))] }).open(t, m)
			if err != nil {
				require.ErrorAs(t, err, &damage, "%s cut to %d: %v", name, size, err)
			}
		}
	}
}

// TestNewerFormatIsTooNewNotDamaged: version 2, with a right preamble.
func TestNewerFormatIsTooNewNotDamaged(t *testing.T) {
	_, after, _, m := threeSegments(t)
	for name := range after {
		if _, ok := parseName(name, segmentPrefix); !ok && name != markName {
			continue
		}
		newer := after.with(name, func(b []byte) []byte {
			for at := 0; at < len(b) && (at == 0 || name == markName); at += blockSize {
				le.PutUint32(b[at+8:], 2)
				le.PutUint32(b[at+12:], crcOf(b[at:at+12]))
			}
			return b
		})
		_, err := newer.open(t, m)
		require.ErrorIs(t, err, ErrTooNew, name)
		var damage *DamageError
		require.False(t, errors.As(err, &damage))
	}
}
