//go:build !linux

package vfs

import "os"

func datasync(f *os.File) error { return f.Sync() }

func dropCache(*os.File) error { return nil }
