package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// measureDisk finds how many writes with fdatasync the disk takes in a second: one writer, and three at once, each overwriting a file
// that is there. It is the limit of anything that is durable.
func measureDisk(dir string, out map[string][]float64) error {
	for _, kib := range []int{4, 256} {
		for _, writers := range []int{1, 3} {
			rate, err := syncRate(dir, kib<<10, writers, 700*time.Millisecond)
			if err != nil {
				return err
			}
			k := fmt.Sprintf("%d KiB, %d at once", kib, writers)
			out[k] = append(out[k], rate)
		}
	}
	return nil
}

func syncRate(dir string, size, writers int, d time.Duration) (float64, error) {
	const fileBytes = 16 << 20
	var count atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, writers)
	var files []*os.File
	for i := range writers {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("sync%d", i)))
		if err != nil {
			return 0, err
		}
		defer os.Remove(f.Name())
		defer f.Close()
		if _, err := f.Write(make([]byte, fileBytes)); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		files = append(files, f)
	}
	data, begin := noise(size), time.Now()
	for _, f := range files {
		wg.Go(func() {
			for at := int64(0); time.Since(begin) < d; at = (at + int64(size)) % fileBytes {
				if _, err := f.WriteAt(data, at); err != nil {
					errs <- err
					return
				}
				if err := syscall.Fdatasync(int(f.Fd())); err != nil {
					errs <- err
					return
				}
				count.Add(1)
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return 0, err
	default:
	}
	return float64(count.Load()) / time.Since(begin).Seconds(), nil
}
