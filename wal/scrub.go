package wal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"penstock/internal/vfs"
)

const (
	scrubChunk   = 256 << 10 // how much is read at once in a scrub
	recheckPause = 100 * time.Millisecond
)

// Scrub reads every sealed segment from the disk once, at most bytesPerSecond
// (0: as fast as it goes), and returns what damage it found; entries in it
// answer with a *DamageError from then on, Damage tells it, and Repair takes
// it like that which Open found. The newest segment is not read: it is
// verified when the log is opened, and scrubbed once it is sealed.
//
// It ends early with the context's error, and with that of a read. One at a
// time; it may run beside anything else, and keeps the files it reads.
func (l *Log) Scrub(ctx context.Context, bytesPerSecond int64) (damage []Damage, err error) {
	if err := l.usable(); err != nil {
		return nil, err
	}
	if !l.scrubbing.CompareAndSwap(false, true) {
		return nil, errors.New("wal: a scrub is running")
	}
	defer l.scrubbing.Store(false)
	limit := rate.NewLimiter(rate.Inf, scrubChunk)
	if bytesPerSecond > 0 {
		limit = rate.NewLimiter(rate.Limit(bytesPerSecond), int(min(max(bytesPerSecond/4, blockSize), scrubChunk)))
	}
	began := time.Now()
	for number := uint64(0); ; {
		seg, next := l.scrubNext(number)
		if seg == nil {
			break
		}
		number = seg.number
		found, err := l.scrubSegment(ctx, limit, seg, next)
		if err != nil {
			return damage, err
		}
		damage = append(damage, found...)
	}
	l.metrics.scrubPasses.Inc()
	l.metrics.scrubSeconds.Set(time.Since(began).Seconds())
	l.log.Info("log scrubbed", "damages", len(damage), "took", time.Since(began).Round(time.Millisecond).String())
	return damage, nil
}

// Recheck reads the segment of one entry again, as Scrub does but at once: for
// an entry that answered with a *DamageError when it was read. The newest
// segment is sealed for it first (nothing is lost by that). An entry that is
// not in the log any more is no error.
func (l *Log) Recheck(ctx context.Context, index uint64) ([]Damage, error) {
	if err := l.seal(index); err != nil {
		return nil, err
	}
	for !l.scrubbing.CompareAndSwap(false, true) { // a scrub is running; it need not come to the end
		select {
		case <-time.After(recheckPause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	defer l.scrubbing.Store(false)
	l.mu.RLock()
	if index <= l.mu.base || index > l.mu.last {
		l.mu.RUnlock()
		return nil, nil
	}
	seg := l.findLocked(index)
	i := slices.Index(l.mu.segs, seg)
	if seg.unsound || len(seg.damage) > 0 || i == len(l.mu.segs)-1 {
		defer l.mu.RUnlock()
		return slices.Clone(seg.damage), nil
	}
	next := l.mu.segs[i+1]
	seg.file.acquire()
	l.mu.RUnlock()
	return l.scrubSegment(ctx, rate.NewLimiter(rate.Inf, scrubChunk), seg, next)
}

// seal opens a new segment when index is in the newest one.
func (l *Log) seal(index uint64) error {
	if err := l.begin(); err != nil {
		return err
	}
	defer l.end()
	tail := l.tail()
	if index < tail.start || index >= tail.next() || l.whole() != nil {
		return nil
	}
	return l.roll(0)
}

// scrubNext is the sealed segment behind a number, its file held, and the
// header of the one behind it. Segments already known to be damaged are left
// out: Damage tells them.
func (l *Log) scrubNext(number uint64) (*segment, *segment) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for i, seg := range l.mu.segs[:len(l.mu.segs)-1] {
		if seg.number > number && !seg.unsound && len(seg.damage) == 0 {
			seg.file.acquire()
			return seg, l.mu.segs[i+1]
		}
	}
	return nil, nil
}

func (l *Log) scrubSegment(ctx context.Context, limit *rate.Limiter, seg, next *segment) ([]Damage, error) {
	defer func() { _ = seg.file.release() }()
	if err := dropCache(seg.file.File); err != nil { // what is on the disk is meant
		return nil, err
	}
	slow := &slowFile{File: seg.file, ctx: ctx, limit: limit, l: l}
	cause := l.scrubHeader(slow, seg)
	sc, err := newScanner(slow, seg.path, seg.segmentHeader)
	if err != nil {
		return nil, err
	}
	k := link{hdr: seg.segmentHeader, path: seg.path, file: slow}
	if err := connect(&k, next.segmentHeader); err != nil {
		return nil, err // of memory: cannot be
	}
	sc.sealedAt = k.sealedAt
	out, err := sc.scan(k.liveEnd, nil)
	var damage *DamageError
	if errors.As(err, &damage) {
		if out, err = sc.salvage(k.liveEnd, damage); cause == nil {
			cause = damage
		}
	}
	if err != nil {
		return nil, err
	}
	if cause == nil {
		return nil, nil
	}
	return l.scrubbed(seg, &out, cause), nil
}

// scrubHeader reads block 0 again, through the name of the file.
func (l *Log) scrubHeader(f vfs.File, seg *segment) *DamageError {
	k, err := openLink(l.fs, seg.path, seg.number, seg.openFlag())
	var damage *DamageError
	if errors.As(err, &damage) {
		return damage
	}
	if err != nil {
		return nil // the scan will meet it
	}
	defer func() { _ = k.file.Close() }()
	if k.hdr != seg.segmentHeader {
		return &DamageError{File: seg.path, Kind: DamageHeader, Index: seg.start, Err: fmt.Errorf("another header than when it was opened")}
	}
	return nil
}

// scrubbed makes what was found the segment's; not when the segment was
// dropped meanwhile, and its damage with it.
func (l *Log) scrubbed(seg *segment, out *found, cause *DamageError) []Damage {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, at := range l.mu.segs {
		if at != seg || i == len(l.mu.segs)-1 {
			continue
		}
		var header *DamageError
		if cause.Kind == DamageHeader || cause.Kind == DamageMissing {
			header = cause
		}
		now := segment{segmentHeader: seg.segmentHeader}
		now.adopt(out, header, cause)
		now.cutLocked(seg.next()) // a suffix may have gone meanwhile
		seg.offsets, seg.n, seg.damage, seg.unsound = now.offsets, now.n, now.damage, true
		l.metrics.scrubDamages.Add(float64(len(seg.damage)))
		for _, d := range seg.damage {
			l.log.Error("log is damaged", "damage", d.String())
		}
		return append([]Damage(nil), seg.damage...)
	}
	return nil
}

// slowFile reads no faster than the scrub may.
type slowFile struct {
	vfs.File
	ctx   context.Context
	limit *rate.Limiter
	l     *Log
}

func (f *slowFile) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		chunk := p[n:min(len(p), n+f.limit.Burst())]
		if err := f.limit.WaitN(f.ctx, len(chunk)); err != nil {
			return n, fmt.Errorf("scrub: %w", err)
		}
		if err := f.l.usable(); err != nil {
			return n, err
		}
		k, err := f.File.ReadAt(chunk, off+int64(n))
		f.l.metrics.scrubBytes.Add(float64(k))
		if n += k; err != nil {
			return n, err
		}
	}
	return n, nil
}
