package vfs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Both go through SyscallConn, not Fd: Fd would take the file out of
// non-blocking mode, and a concurrent Close could hand the number to another
// file in the middle of the call.

func datasync(f *os.File) error {
	return control(f, unix.Fdatasync)
}

func dropCache(f *os.File) error {
	return control(f, func(fd int) error {
		return unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED)
	})
}

func control(f *os.File, fn func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := conn.Control(func(fd uintptr) {
		for {
			if ferr = fn(int(fd)); ferr != unix.EINTR {
				return
			}
		}
	}); err != nil {
		return err
	}
	return ferr
}

// freeBytes counts what is left to a user without privileges.
func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		if err == nil {
			return int64(st.Bavail) * st.Bsize, nil
		}
		if err != unix.EINTR {
			return 0, fmt.Errorf("free space of %s: %w", dir, err)
		}
	}
}
