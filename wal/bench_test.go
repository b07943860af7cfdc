package wal

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"penstock/internal/vfs"
)

func benchConfig(b *testing.B) Config {
	return Config{FS: vfs.OS, Logger: quiet(), Fatal: func(err error) { b.Fatal(err) }}
}

func benchEntries(first uint64, n, size int, now time.Time) []*raft.Log {
	logs := make([]*raft.Log, n)
	rng := rand.NewChaCha8([32]byte{1})
	for i := range logs {
		data := make([]byte, size)
		_, _ = rng.Read(data) // never fails
		logs[i] = &raft.Log{Index: first + uint64(i), Term: 1, Data: data, AppendedAt: now}
	}
	return logs
}

// BenchmarkAppend stores n entries of 1 KiB per call, on the real disk.
func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{1, 64, 1000} {
		b.Run(fmt.Sprintf("entries=%d", n), func(b *testing.B) {
			l, err := Open(b.TempDir(), benchConfig(b))
			if err != nil {
				b.Fatal(err)
			}
			logs := benchEntries(1, n, 1024, time.Now())
			b.SetBytes(int64(n) * 1024)
			b.ReportAllocs()
			for b.Loop() {
				if err := l.StoreLogs(logs); err != nil {
					b.Fatal(err)
				}
				for _, e := range logs {
					e.Index += uint64(n)
				}
				l.SetFloor(logs[0].Index)
				l.allow(logs[0].Index - 1)
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkEncode is the append without the disk.
func BenchmarkEncode(b *testing.B) {
	for _, n := range []int{1, 64, 1000} {
		b.Run(fmt.Sprintf("entries=%d", n), func(b *testing.B) {
			var e encoder
			logs := benchEntries(1, n, 1024, time.Now())
			b.SetBytes(int64(n) * 1024)
			b.ReportAllocs()
			for b.Loop() {
				e.encode(&segmentHeader{gen: 3, number: 7}, 1, logs)
			}
		})
	}
}

// filled makes a log of entries of 1 KiB, 64 to a batch.
func filled(b *testing.B, dir string, entries int) {
	l, err := Open(dir, benchConfig(b))
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; i < entries; i += 64 {
		if err := l.StoreLogs(benchEntries(uint64(i+1), 64, 1024, time.Now())); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkRead reads entries of 1 KiB in order: from the files, and from the
// tail cache.
func BenchmarkRead(b *testing.B) {
	const n = 64 * 500
	dir := b.TempDir()
	filled(b, dir, n)
	l, err := Open(dir, benchConfig(b))
	if err != nil {
		b.Fatal(err)
	}
	read := func(b *testing.B, from, count uint64) {
		b.SetBytes(1024)
		b.ReportAllocs()
		var e raft.Log
		for i := uint64(0); b.Loop(); i++ {
			if err := l.GetLog(from+i%count, &e); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("file", func(b *testing.B) { read(b, 1, n) })
	if err := l.StoreLogs(benchEntries(n+1, 1000, 1024, time.Now())); err != nil {
		b.Fatal(err)
	}
	b.Run("cache", func(b *testing.B) { read(b, n+1, 1000) })
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkReopen opens a log of 128 MiB in entries of 1 KiB; every byte is
// verified.
func BenchmarkReopen(b *testing.B) {
	const n = 128 << 10
	dir := b.TempDir()
	filled(b, dir, n)
	b.SetBytes(n * 1024)
	for b.Loop() {
		l, err := Open(dir, benchConfig(b))
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if got := l.Stats().Last; got != n {
			b.Fatalf("last index %d", got)
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
