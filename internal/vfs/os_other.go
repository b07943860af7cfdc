//go:build !linux

package vfs

import (
	"errors"
	"os"
)

func datasync(f *os.File) error { return f.Sync() }

func dropCache(*os.File) error { return nil }

func freeBytes(string) (int64, error) { return 0, errors.ErrUnsupported }
