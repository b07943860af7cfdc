// Package boltcheck reads a bbolt file and says whether bbolt can.
//
// bbolt answers most damage with a panic, part of it in goroutines of its own, where nobody can recover it. What passes here
// it opens and reads without one.
//
// It promises to read nothing but the file, to follow no number before it has checked it, and to end on every file: a page
// is visited once. Each page that can be reached must be where and what it says it is, hold its elements within itself, keep
// the order of keys, and be neither free nor reached twice. Pages that cannot be reached are not looked at, and what the
// values hold is their owner's business.
//
// It takes no lock: the caller makes sure that nobody writes to the file meanwhile.
package boltcheck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

const (
	pageHeader = 16 // id u64, flags u16, count u16, overflow u32
	element    = 16 // branch: pos u32, ksize u32, page u64; leaf: flags u32, pos u32, ksize u32, vsize u32
	bucketHead = 16 // root page u64, sequence u64

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagFreelist = 0x10
	flagBucket   = 0x01 // of a leaf element
)

// ErrDamaged is a file that bbolt cannot read.
var ErrDamaged = errors.New("not a whole bbolt file")

var native = binary.NativeEndian // as bbolt writes

// File checks the file at path. One that is missing or empty is good: bbolt makes it.
func File(path string) error { return with(path, check) }

// Metas checks that both pages that name the root are good. bbolt goes on with the older one when the newer is not, and so with what was
// there before the last commit: for some owners that is worse than no file. A crash spoils neither, as long as the disk writes a sector whole
// or not at all. A file that is missing or empty is good.
func Metas(path string) error { return with(path, checkMetas) }

// with opens the file for a check; there is nothing to check in one that is missing or empty.
func with(path string, check func(f io.ReaderAt, size int64) error) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check bbolt file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("check bbolt file: %w", err)
	}
	if info.Size() == 0 {
		return nil
	}
	if err := check(f, info.Size()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func checkMetas(f io.ReaderAt, size int64) error {
	m, err := readMeta(f, size)
	if err != nil {
		return err
	}
	for _, at := range []int64{0, int64(m.pageSize)} {
		if _, ok := metaAt(f, at); !ok {
			return damage("the root page at byte %d is bad, and the other one may be older", at)
		}
	}
	return nil
}

type checker struct {
	f    io.ReaderAt
	size int64
	meta meta
	seen []uint64 // a bit for each page that was reached
	leaf []byte   // the leaf page being looked at
}

func check(f io.ReaderAt, size int64) error {
	m, err := readMeta(f, size)
	if err != nil {
		return err
	}
	c := &checker{f: f, size: size, meta: m, seen: make([]uint64, m.pages/64+1)}
	if err := c.tree(m.root, nil, nil); err != nil {
		return err
	}
	return c.freelist()
}

func damage(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
}

// page is the bytes of one page with those it overflows into.
type page struct {
	id    uint64
	flags uint16
	count int
	b     []byte
}

// read reads page id, which is reached for the first time, into buf or new memory.
func (c *checker) read(id uint64, buf []byte) (p page, err error) {
	if err := c.reach(id); err != nil {
		return p, err
	}
	n := int64(c.meta.pageSize)
	b := grow(buf, n)
	if err := c.readAt(b, int64(id)*n); err != nil {
		return p, err
	}
	p = page{id: id, flags: native.Uint16(b[8:]), count: int(native.Uint16(b[10:])), b: b}
	if is := native.Uint64(b); is != id {
		return p, damage("page %d says it is page %d", id, is)
	}
	overflow := uint64(native.Uint32(b[12:]))
	for more := id + 1; more <= id+overflow; more++ {
		if err := c.reach(more); err != nil {
			return p, err
		}
	}
	if overflow > 0 {
		p.b = grow(b, n*int64(overflow+1))
		err = c.readAt(p.b[n:], int64(id+1)*n)
	}
	return p, err
}

// grow gives n bytes that begin with those of b.
func grow(b []byte, n int64) []byte {
	if int64(cap(b)) >= n {
		return b[:n]
	}
	return append(make([]byte, 0, n), b...)[:n]
}

func (c *checker) readAt(b []byte, at int64) error {
	_, err := c.f.ReadAt(b, at)
	if errors.Is(err, io.EOF) {
		return damage("byte %d is behind the end of the file", at+int64(len(b))-1)
	}
	return err
}

func (c *checker) reach(id uint64) error {
	if id < 2 || id >= c.meta.pages || int64(id+1)*int64(c.meta.pageSize) > c.size {
		return damage("page %d is outside of the file", id)
	}
	if c.reached(id) {
		return damage("page %d is used twice", id)
	}
	c.seen[id/64] |= 1 << (id % 64)
	return nil
}

func (c *checker) reached(id uint64) bool { return c.seen[id/64]&(1<<(id%64)) != 0 }

// tree checks the pages below id, whose keys must be in [low, high); nil means no bound.
func (c *checker) tree(id uint64, low, high []byte) error {
	p, err := c.read(id, c.leaf)
	if err != nil {
		return err
	}
	switch p.flags {
	case flagBranch:
		c.leaf = nil // this page keeps that memory
		return c.branch(p, low, high)
	case flagLeaf:
		c.leaf = p.b
		buckets, err := leaf(p, low, high)
		if err != nil {
			return err
		}
		for _, root := range buckets { // the page is not looked at any more: its memory may be used again
			if err := c.tree(root, nil, nil); err != nil {
				return err
			}
		}
		return nil
	}
	return damage("page %d is of kind %#x", id, p.flags)
}

func (c *checker) branch(p page, low, high []byte) error {
	if p.count == 0 {
		return damage("page %d is a branch of nothing", p.id)
	}
	keys := make([][]byte, p.count+1)
	for i := range p.count {
		at := pageHeader + i*element
		if at+element > len(p.b) {
			return damage("page %d has no room for %d elements", p.id, p.count)
		}
		key, _, err := p.content(at, native.Uint32(p.b[at:]), native.Uint32(p.b[at+4:]), 0)
		if err != nil {
			return err
		}
		keys[i] = key
	}
	if err := ordered(p.id, keys[:p.count], low, high); err != nil {
		return err
	}
	keys[p.count] = high
	for i := range p.count {
		child := native.Uint64(p.b[pageHeader+i*element+8:])
		if err := c.tree(child, keys[i], keys[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// leaf checks one leaf page and gives the root pages of the buckets in it.
func leaf(p page, low, high []byte) (buckets []uint64, err error) {
	var last []byte
	for i := range p.count {
		at := pageHeader + i*element
		if at+element > len(p.b) {
			return nil, damage("page %d has no room for %d elements", p.id, p.count)
		}
		flags := native.Uint32(p.b[at:])
		key, value, err := p.content(at, native.Uint32(p.b[at+4:]), native.Uint32(p.b[at+8:]), native.Uint32(p.b[at+12:]))
		if err != nil {
			return nil, err
		}
		if i > 0 && bytes.Compare(last, key) >= 0 || low != nil && bytes.Compare(key, low) < 0 ||
			high != nil && bytes.Compare(key, high) >= 0 {
			return nil, damage("page %d: key %d is out of order", p.id, i)
		}
		last = key
		switch {
		case flags > flagBucket:
			return nil, damage("page %d: element %d is of kind %#x", p.id, i, flags)
		case flags == flagBucket:
			found, err := bucket(p.id, value)
			if err != nil {
				return nil, err
			}
			buckets = append(buckets, found...)
		}
	}
	return buckets, nil
}

// bucket gives the root pages that a bucket's value leads to: one, or those of an inline page.
func bucket(id uint64, value []byte) ([]uint64, error) {
	if len(value) < bucketHead {
		return nil, damage("page %d: a bucket of %d bytes", id, len(value))
	}
	if root := native.Uint64(value); root != 0 {
		return []uint64{root}, nil
	}
	b := value[bucketHead:]
	if len(b) < pageHeader || native.Uint16(b[8:]) != flagLeaf {
		return nil, damage("page %d: an inline bucket without a page", id)
	}
	return leaf(page{id: id, flags: flagLeaf, count: int(native.Uint16(b[10:])), b: b}, nil, nil)
}

// content is key and value of the element at byte at; they begin pos behind it.
func (p page) content(at int, pos, ksize, vsize uint32) (key, value []byte, err error) {
	from := uint64(at) + uint64(pos)
	middle := from + uint64(ksize)
	to := middle + uint64(vsize)
	if from < pageHeader+uint64(p.count)*element || to > uint64(len(p.b)) {
		return nil, nil, damage("page %d: the element at byte %d lies outside of it", p.id, at)
	}
	return p.b[from:middle:middle], p.b[middle:to:to], nil
}

func ordered(id uint64, keys [][]byte, low, high []byte) error {
	for i, key := range keys {
		if i > 0 && bytes.Compare(keys[i-1], key) >= 0 || i == 0 && low != nil && bytes.Compare(key, low) < 0 ||
			high != nil && bytes.Compare(key, high) >= 0 {
			return damage("page %d: key %d is out of order", id, i)
		}
	}
	return nil
}

// freelist checks the list of free pages, if the file has one: none of them may be in use.
func (c *checker) freelist() error {
	if c.meta.freelist == noFreelist {
		return nil
	}
	p, err := c.read(c.meta.freelist, nil)
	if err != nil {
		return err
	}
	if p.flags != flagFreelist {
		return damage("page %d is of kind %#x, not a list of free pages", p.id, p.flags)
	}
	ids, count := p.b[pageHeader:], uint64(p.count)
	if count == 0xffff { // too many for the header: the first number is the count
		count, ids = native.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids)/8) {
		return damage("page %d: a list of %d free pages does not fit", p.id, count)
	}
	for i := range count {
		id := native.Uint64(ids[i*8:])
		if id < 2 || id >= c.meta.pages || c.reached(id) {
			return damage("free page %d is in use or outside of the file", id)
		}
		c.seen[id/64] |= 1 << (id % 64)
	}
	return nil
}
