package memfs

import (
	"io"
	"io/fs"
	"os"
	"syscall"
)

// file is an open handle; pos belongs to Read, Write and Seek.
type file struct {
	fs     *FS
	n      *node
	name   string
	flag   int
	pos    int64
	closed bool
}

// touch remembers the durable content of the sectors in [from, to) that were
// not written since the last sync.
func (n *node) touch(from, to int64) {
	for s := from / sectorSize; s*sectorSize < to; s++ {
		if _, ok := n.before[s]; ok {
			continue
		}
		var old []byte
		if lo := s * sectorSize; lo < int64(len(n.data)) {
			old = append(old, n.data[lo:min(lo+sectorSize, int64(len(n.data)))]...)
		}
		n.before[s] = old
	}
}

func (n *node) truncate(size int64) {
	switch cur := int64(len(n.data)); {
	case size < cur:
		n.touch(size, cur)
		n.data = n.data[:size:size]
	case size > cur:
		n.data = append(n.data, make([]byte, size-cur)...)
	}
}

func (n *node) writeAt(p []byte, off int64) {
	end := off + int64(len(p))
	n.touch(off, end)
	if end > int64(len(n.data)) {
		n.truncate(end)
	}
	copy(n.data[off:], p)
}

func (f *file) enter(op string) (func(), error) {
	f.fs.mu.Lock()
	if f.closed {
		f.fs.mu.Unlock()
		return nil, &fs.PathError{Op: op, Path: f.name, Err: fs.ErrClosed}
	}
	return f.fs.mu.Unlock, nil
}

func (f *file) writable() bool { return f.flag&(os.O_WRONLY|os.O_RDWR) != 0 }

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	leave, err := f.enter("read")
	if err != nil {
		return 0, err
	}
	defer leave()
	return f.n.readAt(p, off)
}

func (n *node) readAt(p []byte, off int64) (int, error) {
	if off >= int64(len(n.data)) {
		return 0, io.EOF
	}
	k := copy(p, n.data[off:])
	if k < len(p) {
		return k, io.EOF
	}
	return k, nil
}

func (f *file) Read(p []byte) (int, error) {
	leave, err := f.enter("read")
	if err != nil {
		return 0, err
	}
	defer leave()
	n, err := f.n.readAt(p, f.pos)
	f.pos += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	leave, err := f.enter("write")
	if err != nil {
		return 0, err
	}
	defer leave()
	if !f.writable() {
		return 0, &fs.PathError{Op: "write", Path: f.name, Err: fs.ErrPermission}
	}
	if !f.fs.room(f.n, off+int64(len(p))) {
		return 0, &fs.PathError{Op: "write", Path: f.name, Err: syscall.ENOSPC}
	}
	f.n.writeAt(p, off)
	return len(p), nil
}

func (f *file) Write(p []byte) (int, error) {
	leave, err := f.enter("write")
	if err != nil {
		return 0, err
	}
	defer leave()
	if !f.writable() {
		return 0, &fs.PathError{Op: "write", Path: f.name, Err: fs.ErrPermission}
	}
	if f.flag&os.O_APPEND != 0 {
		f.pos = int64(len(f.n.data))
	}
	if !f.fs.room(f.n, f.pos+int64(len(p))) {
		return 0, &fs.PathError{Op: "write", Path: f.name, Err: syscall.ENOSPC}
	}
	f.n.writeAt(p, f.pos)
	f.pos += int64(len(p))
	return len(p), nil
}

func (f *file) Seek(offset int64, whence int) (int64, error) {
	leave, err := f.enter("seek")
	if err != nil {
		return 0, err
	}
	defer leave()
	switch whence {
	case io.SeekCurrent:
		offset += f.pos
	case io.SeekEnd:
		offset += int64(len(f.n.data))
	}
	if offset < 0 {
		return 0, &fs.PathError{Op: "seek", Path: f.name, Err: fs.ErrInvalid}
	}
	f.pos = offset
	return offset, nil
}

func (f *file) Sync() error {
	leave, err := f.enter("fdatasync")
	if err != nil {
		return err
	}
	defer leave()
	clear(f.n.before)
	f.n.synced = int64(len(f.n.data))
	return nil
}

func (f *file) Truncate(size int64) error {
	leave, err := f.enter("truncate")
	if err != nil {
		return err
	}
	defer leave()
	if size < 0 || !f.writable() {
		return &fs.PathError{Op: "truncate", Path: f.name, Err: fs.ErrInvalid}
	}
	f.n.truncate(size)
	return nil
}

func (f *file) Stat() (fs.FileInfo, error) {
	leave, err := f.enter("stat")
	if err != nil {
		return nil, err
	}
	defer leave()
	return f.n.info(f.name), nil
}

func (f *file) Name() string { return f.name }

func (f *file) Close() error {
	leave, err := f.enter("close")
	if err != nil {
		return err
	}
	defer leave()
	f.closed = true
	return nil
}
