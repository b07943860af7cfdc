package boltcheck

import (
	"hash/fnv"
	"io"
)

const (
	magic      = 0xED0CDAED
	version    = 2
	noFreelist = ^uint64(0)
)

// meta is the root of everything. The file holds two, of which the newer good one counts.
//
//	+-------+---------+-----------+-------+-----------+----------+----------+-------+------+----------+
//	| magic | version | page size | flags | root page | sequence | freelist | pages | txid | checksum |
//	+-------+---------+-----------+-------+-----------+----------+----------+-------+------+----------+
//	  u32     u32       u32         u32     u64         u64        u64        u64     u64    u64, fnv-1a of what is before it
type meta struct {
	pageSize              uint32
	root, freelist, pages uint64
	txid                  uint64
}

const (
	metaSum  = 56
	metaSize = 64
)

// readMeta finds the page size like bbolt does: by the first page, or the first size at which there is a good second page.
func readMeta(f io.ReaderAt, size int64) (meta, error) {
	best, found := metaAt(f, 0)
	for pageSize := int64(1024); pageSize <= 1024<<14; pageSize <<= 1 {
		if found && pageSize != int64(best.pageSize) {
			continue
		}
		second, ok := metaAt(f, pageSize)
		if ok && int64(second.pageSize) == pageSize && (!found || second.txid > best.txid) {
			best, found = second, true
			break
		}
	}
	if !found {
		return meta{}, damage("neither of its two first pages is good")
	}
	if s := best.pageSize; s < 512 || s > 1024<<14 || s&(s-1) != 0 {
		return meta{}, damage("pages of %d bytes", s)
	}
	if best.pages > uint64(size)/uint64(best.pageSize) {
		return meta{}, damage("%d pages do not fit into its %d bytes", best.pages, size)
	}
	return best, nil
}

func metaAt(f io.ReaderAt, at int64) (m meta, ok bool) {
	var b [metaSize]byte
	if _, err := f.ReadAt(b[:], at+pageHeader); err != nil {
		return m, false
	}
	sum := fnv.New64a()
	sum.Write(b[:metaSum])
	if native.Uint32(b[0:]) != magic || native.Uint32(b[4:]) != version || native.Uint64(b[metaSum:]) != sum.Sum64() {
		return m, false
	}
	return meta{
		pageSize: native.Uint32(b[8:]), root: native.Uint64(b[16:]), freelist: native.Uint64(b[32:]),
		pages: native.Uint64(b[40:]), txid: native.Uint64(b[48:]),
	}, true
}
