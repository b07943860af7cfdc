package errfs

import (
	"errors"

	"penstock/internal/vfs"
)

type file struct {
	vfs.File
	fs *FS
}

func (f *file) ask(kind Kind, off int64, size int) error {
	return f.fs.ask(Op{Kind: kind, Path: f.Name(), Offset: off, Size: size})
}

func (f *file) Read(p []byte) (int, error) {
	if err := f.ask(Read, -1, len(p)); err != nil {
		return 0, pathErr("read", f.Name(), err)
	}
	return f.File.Read(p)
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if err := f.ask(Read, off, len(p)); err != nil {
		return 0, pathErr("read", f.Name(), err)
	}
	return f.File.ReadAt(p, off)
}

func (f *file) Write(p []byte) (int, error) {
	return f.write(p, -1, f.File.Write)
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	return f.write(p, off, func(p []byte) (int, error) { return f.File.WriteAt(p, off) })
}

func (f *file) write(p []byte, off int64, do func([]byte) (int, error)) (int, error) {
	err := f.ask(Write, off, len(p))
	if err == nil {
		return do(p)
	}
	n := 0
	var short *Short
	if errors.As(err, &short) && short.Bytes < len(p) {
		n, _ = do(p[:short.Bytes])
		err = short.Err
	}
	return n, pathErr("write", f.Name(), err)
}

func (f *file) Sync() error {
	if err := f.ask(Sync, 0, 0); err != nil {
		return pathErr("fdatasync", f.Name(), err)
	}
	return f.File.Sync()
}

func (f *file) Truncate(size int64) error {
	if err := f.ask(Trunc, size, 0); err != nil {
		return pathErr("truncate", f.Name(), err)
	}
	return f.File.Truncate(size)
}

func (f *file) Close() error {
	err := f.ask(Close, 0, 0)
	// The descriptor goes in any case, as it does in the kernel.
	if cerr := f.File.Close(); err == nil {
		return cerr
	}
	return pathErr("close", f.Name(), err)
}

// DropCache passes through to files that can.
func (f *file) DropCache() error {
	if d, ok := f.File.(vfs.CacheDropper); ok {
		return d.DropCache()
	}
	return nil
}
