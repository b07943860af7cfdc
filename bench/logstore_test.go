package bench

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	raftwal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"

	"penstock/wal"
)

// store is a raft.LogStore that is closed.
type store interface {
	raft.LogStore
	io.Closer
}

type peer struct {
	name string
	open func(dir string) (store, error)
}

// peers are the log stores, each with its defaults. All of them return from
// StoreLogs only after an fsync.
func peers() []peer {
	return []peer{
		{"penstock", func(dir string) (store, error) {
			return wal.Open(dir, wal.Config{Logger: slog.New(slog.DiscardHandler)})
		}},
		{"raft-wal", openRaftWAL},
		{"raft-boltdb", func(dir string) (store, error) {
			return raftboltdb.New(raftboltdb.Options{Path: filepath.Join(dir, "raft.db")})
		}},
	}
}

// openRaftWAL: its Close leaves the bbolt file of its metadata open and locked
// (v0.4.0), so that the next Open in the process would wait for ever.
func openRaftWAL(dir string) (store, error) {
	meta := &metadb.BoltMetaDB{}
	s, err := raftwal.Open(dir, raftwal.WithMetaStore(meta))
	if err != nil {
		return nil, err
	}
	return closeBoth{s, meta}, nil
}

type closeBoth struct {
	*raftwal.WAL
	meta io.Closer
}

func (c closeBoth) Close() error { return errors.Join(c.WAL.Close(), c.meta.Close()) }

// dir is a folder on the disk to measure: PENSTOCK_BENCH_DIR, or the usual one
// for temporary files.
func dir(b *testing.B) string {
	b.Helper()
	d, err := os.MkdirTemp(os.Getenv("PENSTOCK_BENCH_DIR"), "penstock-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(d) })
	return d
}

func entries(first uint64, n, size int) []*raft.Log {
	rng := rand.NewChaCha8([32]byte{1})
	logs := make([]*raft.Log, n)
	for i := range logs {
		data := make([]byte, size)
		_, _ = rng.Read(data) // never fails
		logs[i] = &raft.Log{Index: first + uint64(i), Term: 1, Type: raft.LogCommand, Data: data, AppendedAt: time.Unix(1e9, 0)}
	}
	return logs
}

func open(b *testing.B, p peer, dir string) store {
	b.Helper()
	s, err := p.open(dir)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// settle waits until a store that was just made has prepared what it prepares
// ahead, so that this is not measured as part of the first appends.
func settle(s store) {
	for l, ok := s.(*wal.Log); ok && l.Stats().Spares == 0; {
		time.Sleep(time.Millisecond)
	}
}

// keep is how many bytes of log stay behind a compaction, which is done each
// half of that, as Raft does behind its snapshots.
const keep = 128 << 20

// BenchmarkLogStoreAppend stores n entries in one call, again and again, with
// prefixes removed behind them.
func BenchmarkLogStoreAppend(b *testing.B) {
	for _, row := range []struct{ n, size int }{{1, 1024}, {64, 1024}, {1000, 1024}, {1, 256 << 10}} {
		for _, p := range peers() {
			b.Run(fmt.Sprintf("entries=%d/bytes=%d/%s", row.n, row.size, p.name), func(b *testing.B) {
				s := open(b, p, dir(b))
				defer func() { _ = s.Close() }()
				logs := entries(1, row.n, row.size)
				retained := 0
				settle(s)
				b.SetBytes(int64(row.n * row.size))
				b.ReportAllocs()
				for b.Loop() {
					if err := s.StoreLogs(logs); err != nil {
						b.Fatal(err)
					}
					last := logs[row.n-1].Index
					next := make([]*raft.Log, row.n) // a store may keep what it was given
					for i, e := range logs {
						c := *e
						c.Index = last + 1 + uint64(i)
						next[i] = &c
					}
					logs = next
					if retained += row.n * row.size; retained >= keep*3/2 {
						first, err := s.FirstIndex() // as Raft does
						if err != nil {
							b.Fatal(err)
						}
						to := last - uint64(keep/row.size)
						if l, ok := s.(*wal.Log); ok {
							l.SetFloor(to + 2)
						}
						if err := s.DeleteRange(first, to); err != nil {
							b.Fatal(err)
						}
						retained -= keep / 2
					}
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N), "us/call")
			})
		}
	}
}

const filled = 32 << 10 // entries of 1 KiB

func fill(b *testing.B, p peer, dir string) {
	b.Helper()
	s := open(b, p, dir)
	for i := 0; i < filled; i += 512 {
		if err := s.StoreLogs(entries(uint64(i+1), 512, 1024)); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkLogStoreRead reads entries of 1 KiB in order from a store that was
// just opened (no cache of what was stored). Penstock verifies two CRCs each
// time; the others verify none.
func BenchmarkLogStoreRead(b *testing.B) {
	for _, p := range peers() {
		b.Run(p.name, func(b *testing.B) {
			d := dir(b)
			fill(b, p, d)
			s := open(b, p, d)
			defer func() { _ = s.Close() }()
			var e raft.Log
			b.SetBytes(1024)
			b.ReportAllocs()
			for i := uint64(0); b.Loop(); i++ {
				if err := s.GetLog(1+i%filled, &e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLogStoreReopen opens a store of 32 MiB. Penstock reads and verifies
// all of it; raft-wal its newest segment; raft-boltdb its first pages.
func BenchmarkLogStoreReopen(b *testing.B) {
	for _, p := range peers() {
		b.Run(p.name, func(b *testing.B) {
			d := dir(b)
			fill(b, p, d)
			b.SetBytes(filled * 1024)
			for b.Loop() {
				s := open(b, p, d)
				if last, err := s.LastIndex(); err != nil || last != filled {
					b.Fatal(last, err)
				}
				b.StopTimer()
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
