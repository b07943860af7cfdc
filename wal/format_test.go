package wal

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"penstock/internal/vfs"
	"penstock/internal/vfs/memfs"
)

// TestNotFoundIsRaftsOwn: raft compares with ==, so it must not be wrapped.
func TestNotFoundIsRaftsOwn(t *testing.T) {
	l := mustOpen(t, memfs.New())
	require.True(t, l.GetLog(1, new(raft.Log)) == raft.ErrLogNotFound) //nolint:errorlint // the point
}

// TestTagFlipsAreNoticed: one or two flipped bits never make a right tag of
// another. The check is linear, so flips are noticed whatever the tag was; a
// few tags are tried anyway.
func TestTagFlipsAreNoticed(t *testing.T) {
	sec := make([]byte, sectorSize)
	for _, want := range []tag{{1, 1}, {2, 7}, {0xfffffffe, 0xfffe}, {1 << 20, 300}} {
		for _, sector := range []uint32{0, 8, 131071} {
			flip := func(bit int) { sec[sectorData+bit/8] ^= 1 << (bit % 8) }
			putTag(sec, want, want.seed(), sector)
			got, state := readTag(sec, want.gen, sector)
			require.Equal(t, sectorCurrent, state)
			require.Equal(t, want, got)
			for a := range 64 {
				flip(a)
				for b := a; b < 64; b++ {
					if b > a {
						flip(b)
					}
					_, state := readTag(sec, math.MaxUint32, sector)
					require.True(t, state == sectorBad || state == sectorZero && le.Uint64(sec[sectorData:]) == 0,
						"tag %v sector %d bits %d and %d", want, sector, a, b)
					if b > a {
						flip(b)
					}
				}
				flip(a)
			}
			_, state = readTag(sec, want.gen, sector+1)
			require.Equal(t, sectorBad, state, "a sector in the wrong place")
			_, state = readTag(sec, want.gen+1, sector)
			require.Equal(t, sectorOld, state)
			_, state = readTag(sec, want.gen-1, sector)
			require.Equal(t, sectorBad, state, "newer than its segment")
		}
	}
}

// TestTagCheckIsACRC32C: as docs/format/wal.md says, folded to 16 bits.
func TestTagCheckIsACRC32C(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := tag{gen: rapid.Uint32().Draw(rt, "gen"), start: rapid.Uint16().Draw(rt, "start")}
		sector := rapid.Uint32().Draw(rt, "sector")
		b := le.AppendUint32(le.AppendUint16(le.AppendUint32(nil, want.gen), want.start), sector)
		c := crcOf(b)
		require.Equal(rt, uint16(c>>16)^uint16(c), tagCheck(want.seed(), sector))
	})
}

func TestScatterAndGatherAreInverse(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		raw := make([]byte, 5*blockSize)
		pos := rapid.IntRange(0, 2*blockData).Draw(rt, "pos")
		src := rapid.SliceOfN(rapid.Byte(), 0, 2*blockData).Draw(rt, "src")
		scatter(raw, pos, src)
		got := make([]byte, len(src))
		gather(got, raw, pos)
		require.True(rt, string(src) == string(got))
		require.Equal(rt, crcOf(src), crcSpan(raw, pos, len(src)))
		for b := range 5 {
			require.True(rt, isZero(raw[b*blockSize:b*blockSize+blockHeaderSize]), "block headers are stepped over")
			for s := range sectorsPerBlock {
				at := b*blockSize + s*sectorSize + sectorData
				require.True(rt, isZero(raw[at:at+tagSize]), "tags are stepped over")
			}
		}
	})
}

func TestRecordHeaderComesBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := raft.Log{
			Index: rapid.Uint64().Draw(rt, "index"), Term: rapid.Uint64().Draw(rt, "term"),
			Type:       raft.LogType(rapid.IntRange(0, 254).Draw(rt, "type")),
			Data:       rapid.SliceOfN(rapid.Byte(), 1, 50).Draw(rt, "data"),
			Extensions: rapid.SliceOfN(rapid.Byte(), 1, 50).Draw(rt, "ext"),
		}
		if rapid.Bool().Draw(rt, "time") {
			want.AppendedAt = time.Unix(rapid.Int64Range(-1e11, 1e11).Draw(rt, "s"), rapid.Int64Range(0, 999999999).Draw(rt, "ns"))
		}
		h := headerOf(&want)
		var b [recordHeaderSize]byte
		h.encode(&b)
		var back recordHeader
		require.NoError(rt, back.decode(&b))
		require.Equal(rt, h, back)
		var got raft.Log
		back.fill(&got, append(append([]byte(nil), want.Data...), want.Extensions...))
		require.True(rt, got.AppendedAt.Equal(want.AppendedAt))
		got.AppendedAt = want.AppendedAt
		require.Equal(rt, want, got)
		bit := rapid.IntRange(0, 8*recordHeaderSize-1).Draw(rt, "bit")
		b[bit/8] ^= 1 << (bit % 8)
		require.Error(rt, back.decode(&b), "bit %d", bit)
	})
}

func TestZeroIsNeverAValidType(t *testing.T) {
	var h recordHeader
	require.Error(t, h.decode(new([recordHeaderSize]byte)))
	_, ok := openBlock(make([]byte, blockSize), 0, tag{}, 0)
	require.False(t, ok)
	require.Error(t, new(segmentHeader).decode(make([]byte, blockSize)))
	require.Error(t, new(mark).decode(make([]byte, blockSize)))
}

func TestOversizedEntriesAreRefusedBeforeAnythingIsWritten(t *testing.T) {
	l := mustOpen(t, memfs.New())
	require.Error(t, l.StoreLog(&raft.Log{Index: 1, Type: 255}))
	require.ErrorIs(t, l.StoreLog(&raft.Log{Index: 1, Data: make([]byte, MaxEntryBytes+1)}), ErrTooLarge)
	require.NoError(t, l.StoreLog(entry(1, 1, 10)))
}

// FuzzSegmentScan writes a patch over a segment and scans it: no panic, never
// an allocation by an unchecked length, and never fewer entries without an
// error. With seal the block's CRC is made right again, so that the record
// decoder behind it meets the patch; then what it accepts must be consistent.
func FuzzSegmentScan(f *testing.F) {
	_, after, _, _ := threeSegments(f)
	content := after[segmentName(1)]
	f.Add(uint32(blockSize+blockHeaderSize+12), []byte{0xff, 0xff, 0xff, 0xff}, true)
	f.Add(uint32(blockSize+24), []byte{9}, true)
	f.Add(uint32(3), []byte{1, 2, 3}, false)
	f.Fuzz(func(t *testing.T, at uint32, patch []byte, seal bool) {
		b := append([]byte(nil), content...)
		at %= uint32(len(b))
		n := copy(b[at:], patch)
		if block := b[at/blockSize*blockSize:]; seal && at >= blockSize {
			le.PutUint32(block, crcOf(block[4:blockSize]))
		}
		raw := newRawSegment(t, content)
		raw.write(t, 0, b)
		if at < blockSize && raw.hdr.decode(b) != nil || raw.hdr.blocks > 1024 {
			return
		}
		out, err := raw.scan(t)
		if err == nil && out.n > 0 {
			require.Len(t, out.offsets, out.n+1)
		}
		if !seal && string(b[at:int(at)+n]) != string(content[at:int(at)+n]) && at >= blockSize && err == nil {
			whole, err := newRawSegment(t, content).scan(t)
			require.NoError(t, err)
			// A patch may clear a whole tag, which one flipped bit cannot.
			require.True(t, whole.n == out.n || out.torn.torn, "shortened without a word")
		}
	})
}

var update = flag.Bool("update", false, "write the fixture again (only for a format that was never released)")

// fixture is the log in testdata/format/v1: a roll, a truncated suffix,
// entries of several types, with and without payload, extensions and time.
func fixture(t *testing.T, fsys vfs.FS, dir string) []*raft.Log {
	t.Helper()
	cfg := testConfig(t, fsys)
	cfg.SegmentBytes = 4 * blockSize
	l, err := Open(dir, cfg)
	require.NoError(t, err)
	var want []*raft.Log
	store := func(logs ...*raft.Log) {
		require.NoError(t, l.StoreLogs(logs))
		want = append(want, logs...)
	}
	at := time.Unix(1700000000, 987654321)
	store(&raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: []byte("configuration"), AppendedAt: at})
	store(&raft.Log{Index: 2, Term: 2, Type: raft.LogNoop}, entry(3, 2, 6000),
		&raft.Log{Index: 4, Term: 2, Data: []byte("data"), Extensions: []byte("extensions"), AppendedAt: at.Add(time.Hour)})
	store(entry(5, 2, 9000)) // rolls
	require.NoError(t, l.DeleteRange(5, 5))
	want = want[:4]
	store(&raft.Log{Index: 5, Term: 3, Type: raft.LogBarrier}, &raft.Log{Index: 6, Term: 3, Data: make([]byte, 700)})
	require.NoError(t, l.Close())
	return want
}

// TestFormatV1DecodesForEver opens the committed bytes. If it fails, the
// format changed: give it a new version, do not write the fixture again.
func TestFormatV1DecodesForEver(t *testing.T) {
	golden := filepath.Join("testdata", "format", "v1")
	if *update {
		require.NoError(t, os.RemoveAll(golden))
		fixture(t, vfs.OS, golden)
		for _, name := range []string{lockName, spareName(4)} {
			require.NoError(t, os.Remove(filepath.Join(golden, name)))
		}
	}
	want := fixture(t, memfs.New(), testDir)
	fsys := memfs.New()
	require.NoError(t, fsys.MkdirAll(testDir, 0o700))
	names, err := os.ReadDir(golden)
	require.NoError(t, err)
	for _, e := range names {
		b, err := os.ReadFile(filepath.Join(golden, e.Name()))
		require.NoError(t, err)
		require.NoError(t, vfs.WriteFileAtomic(fsys, filepath.Join(testDir, e.Name()), b, 0o600))
	}
	var got []string
	require.NoError(t, Walk(fsys, testDir, func(r Record) error {
		got = append(got, describe(r.Index, r.Term, r.Type, r.Data, r.Extensions, r.AppendedAt))
		return nil
	}))
	var wanted []string
	for _, e := range want {
		wanted = append(wanted, describe(e.Index, e.Term, e.Type, e.Data, e.Extensions, e.AppendedAt))
	}
	require.Equal(t, strings.Join(wanted, "\n"), strings.Join(got, "\n"))
	l := mustOpen(t, fsys)
	requireRange(t, l, 1, 6)
	for _, e := range want {
		requireEntry(t, l, e)
	}
	require.NoError(t, l.StoreLog(entry(7, 4, 100)))
}

func describe(index, term uint64, typ raft.LogType, data, ext []byte, at time.Time) string {
	when := "never"
	if !at.IsZero() {
		when = at.UTC().Format(time.RFC3339Nano)
	}
	return fmt.Sprintf("%d %d %v %08x/%d %q %s", index, term, typ, crcOf(data), len(data), ext, when)
}
