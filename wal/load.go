package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"penstock/internal/vfs"
)

// loaded is what a folder holds, every byte of it verified. Making it only
// reads (and syncs the newest segment, when it is opened to be written).
type loaded struct {
	dir      listing
	m        mark
	doubt    error // one slot of the mark is bad, or all of it
	markLost error // all of it
	fresh    bool  // there is no log
	segs     []*segment
	loose    []Damage // of files outside the chain
	openEnd  *Damage
	lastTerm uint64
	entries  uint64
	torn     bool
	tornAt   Recovery // the fields about it
}

// load reads a folder. Without tolerate the first damage is the error; with
// it, only damage that leaves more than the entries it hit in the dark. A lost
// mark is such damage, unless noMark says that it may be: then what the files
// show is the log, and what it once held besides nobody knows.
func load(fsys vfs.FS, path string, flag int, tolerate, noMark bool) (*loaded, error) {
	dir, err := list(fsys, path)
	if err != nil {
		return nil, err
	}
	ld := &loaded{dir: dir}
	ld.m, ld.doubt, err = readMark(fsys, path)
	if errors.Is(err, errNoMark) {
		if len(dir.segments) == 0 {
			ld.fresh = true
			return ld, nil
		}
		err = &DamageError{File: filepath.Join(path, markName), Kind: DamageMark, Err: err}
	}
	var damage *DamageError
	if noMark && tolerate && errors.As(err, &damage) && len(dir.segments) > 0 {
		ld.m, ld.doubt, ld.markLost, err = mark{}, damage, damage, nil
	}
	if err != nil {
		return nil, err
	}
	c := chainLoader{fs: fsys, dir: dir, m: ld.m, doubt: ld.doubt, noMark: ld.markLost != nil, flag: flag, tolerate: tolerate}
	if err := c.load(); err != nil {
		closeLinks(c.chain)
		return nil, err
	}
	ld.loose = c.loose
	for i, r := range ld.scanAll(c.chain, flag, tolerate) {
		if r.err == nil && err == nil {
			ld.add(r)
			continue
		}
		if err == nil {
			err = r.err
			defer ld.close()
		}
		closeLinks(c.chain[i : i+1])
	}
	if err != nil {
		return nil, err
	}
	return ld, nil
}

// scanned is what the scan of one segment said.
type scanned struct {
	seg      *segment
	lastTerm uint64
	torn     verdict
	openEnd  *Damage
	err      error
}

// scanAll verifies the segments side by side: it is what a start waits for.
func (ld *loaded) scanAll(chain []link, flag int, tolerate bool) []scanned {
	out := make([]scanned, len(chain))
	var wg sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, k := range chain {
		newest := i == len(chain)-1
		one := func() {
			if newest && flag == os.O_RDWR && !k.lost() && !ld.closedAt(k.hdr) {
				out[i].err = settleFile(k.file)
			}
			if out[i].err == nil {
				out[i] = ld.scan(k, tolerate)
			}
		}
		if len(chain) == 1 {
			one()
			break
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			one()
		})
	}
	wg.Wait()
	return out
}

// closedAt tells whether the log was closed with this segment as its newest: every write of it was synced with success, so the page
// cache shows what the disk has, and where it ends is known.
func (ld *loaded) closedAt(hdr segmentHeader) bool {
	return ld.m.closed && ld.doubt == nil && ld.m.newest == hdr.number && ld.m.gen == hdr.gen && hdr.kind != kindRepair
}

// add takes over one segment, in the order of the chain.
func (ld *loaded) add(r scanned) {
	ld.segs = append(ld.segs, r.seg)
	ld.lastTerm = r.lastTerm
	ld.entries += uint64(r.seg.n)
	if r.torn.torn {
		ld.torn = true
		ld.tornAt = Recovery{
			TornBytes: int64(r.torn.tornBlocks) * blockSize, TornFile: r.seg.path, TornOffset: int64(r.seg.end) * blockSize,
		}
	}
	if r.openEnd != nil {
		ld.openEnd = r.openEnd
	}
}

func (ld *loaded) close() {
	for _, seg := range ld.segs {
		_ = seg.file.release()
	}
}

// scan verifies one segment. The file becomes the segment's, but not on error.
func (ld *loaded) scan(k link, tolerate bool) (r scanned) {
	seg := &segment{segmentHeader: k.hdr, path: k.path}
	if k.lost() {
		return ld.lose(seg, k)
	}
	sc, err := newScanner(k.file, k.path, k.hdr)
	if err != nil {
		return scanned{err: err}
	}
	sc.sealedAt, sc.noTear = k.sealedAt, ld.doubt
	if ld.m.newest == k.hdr.number && k.hdr.kind != kindRepair {
		sc.markEnd, sc.closed = ld.m.end, ld.closedAt(k.hdr)
	}
	out, err := sc.scan(k.liveEnd, nil)
	var damage *DamageError
	if tolerate && errors.As(err, &damage) {
		out, err = sc.salvage(k.liveEnd, damage)
	}
	if err != nil {
		return scanned{err: err}
	}
	seg.file = shareFile(k.file)
	seg.adopt(&out, k.rebuilt, damage)
	if k.liveEnd > 0 {
		seg.end = k.sealedAt
	}
	r = scanned{seg: seg, lastTerm: out.lastTerm, torn: out.torn}
	if out.open {
		r.openEnd = openFrom(seg, damage)
	}
	return r
}

// lose makes the segment of a lost file: all of it is damage.
func (ld *loaded) lose(seg *segment, k link) scanned {
	seg.unsound = true
	seg.end = max(k.sealedAt, 1)
	seg.offsets = []uint32{blockData}
	if k.liveEnd == 0 {
		seg.blocks = max(ld.m.end, 1)
		return scanned{seg: seg, lastTerm: seg.prevTerm, openEnd: openFrom(seg, k.rebuilt)}
	}
	seg.blocks = k.sealedAt
	n := k.liveEnd - k.hdr.start
	if n > maxLost {
		return scanned{err: k.rebuilt}
	}
	seg.n = int(n)
	seg.offsets = make([]uint32, n+1)
	for i := range seg.offsets {
		seg.offsets[i] = blockData
	}
	d := damageOf(k.rebuilt)
	d.First, d.Last = k.hdr.start, k.liveEnd-1
	seg.damage = []Damage{d}
	return scanned{seg: seg}
}

func openFrom(seg *segment, cause *DamageError) *Damage {
	d := damageOf(cause)
	d.First, d.OpenEnd = seg.next(), true
	return &d
}

// adopt takes over what a scan or a salvage found.
func (s *segment) adopt(out *found, rebuilt, cause *DamageError) {
	s.offsets, s.n, s.end = out.offsets, out.n, max(out.end, 1)
	s.damage, s.unsound = nil, out.unsound || rebuilt != nil
	if rebuilt != nil {
		s.damage = append(s.damage, damageOf(rebuilt))
	}
	if cause != nil && len(out.damage) == 0 && !out.open {
		s.damage = append(s.damage, damageOf(cause))
	}
	s.damage = append(s.damage, out.damage...)
}

// stuck is why nothing can be appended behind what was loaded, nil if it can.
func (ld *loaded) stuck() *DamageError {
	if len(ld.segs) == 0 {
		return nil
	}
	tail := ld.segs[len(ld.segs)-1]
	switch {
	case ld.openEnd != nil:
		return ld.openEnd.damageError(ld.openEnd.First)
	case len(tail.damage) > 0:
		return tail.damage[0].damageError(tail.damage[0].First)
	case tail.unsound:
		return &DamageError{File: tail.path, Kind: DamageBlock, Index: tail.next()}
	}
	return nil
}

// Inspection is what Inspect found.
type Inspection struct {
	First, Last         uint64 // as FirstIndex and LastIndex; Last is the last entry found
	LastTerm            uint64 // 0 when the last entry is damaged past knowing
	BaseIndex, BaseTerm uint64
	MarkIndex, MarkTerm uint64 // last index of the durable mark
	MarkDoubt           error  // one of the mark's two slots was bad
	Segments            int
	Spares              int      // files kept or prepared for the next segments
	Quarantined         []string // damaged files that were kept apart
	TornBytes           int64    // a torn last batch that the next start cuts off
	Damage              []Damage
}

// Inspect reads a log offline as Open with AllowDamage would, and writes
// nothing. Damage that cannot be repaired is the error. The folder must not be
// that of a live log.
func Inspect(fsys vfs.FS, dir string) (Inspection, error) {
	ld, err := load(fsys, dir, os.O_RDONLY, true, false)
	if err != nil {
		return Inspection{}, err
	}
	defer ld.close()
	if ld.fresh {
		return Inspection{}, fmt.Errorf("wal: no log in %s: %w", dir, fs.ErrNotExist)
	}
	in := Inspection{
		LastTerm: ld.lastTerm, MarkIndex: ld.m.lastIndex, MarkTerm: ld.m.lastTerm, MarkDoubt: ld.doubt,
		Segments: len(ld.segs), Spares: len(ld.dir.spares), Quarantined: ld.dir.apart, TornBytes: ld.tornAt.TornBytes,
		Damage: ld.loose,
	}
	for i, seg := range ld.segs {
		if i == 0 {
			in.BaseIndex, in.BaseTerm = seg.start-1, seg.prevTerm
		}
		in.Last = seg.next() - 1
		in.Damage = append(in.Damage, seg.damage...)
	}
	if ld.openEnd != nil {
		in.Damage = append(in.Damage, *ld.openEnd)
	}
	if in.BaseIndex > 0 || in.Last > 0 {
		in.First = in.BaseIndex + 1
	}
	return in, nil
}

// settleFile makes what the last process wrote durable, and then forgets the
// cached pages: after a failed fsync the cache may show what the disk never got.
func settleFile(f vfs.File) error {
	if err := f.Sync(); err != nil {
		return fmt.Errorf("wal: %w", err)
	}
	return dropCache(f)
}

func dropCache(f vfs.File) error {
	if d, ok := f.(vfs.CacheDropper); ok {
		if err := d.DropCache(); err != nil {
			return fmt.Errorf("wal: %w", err)
		}
	}
	return nil
}
