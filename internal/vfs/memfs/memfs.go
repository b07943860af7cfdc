// Package memfs is a file system in memory that knows what a power cut would
// leave of it.
//
// It keeps, for each file, which 512-byte sectors were written since the last
// Sync and what was there before, and for each folder, which names changed
// since the last SyncDir. [FS.CrashClone] makes an independent file system of
// what is durable plus a seeded choice of what is not: any subset of unsynced
// sectors, the old or the new size of a file, and for each folder a prefix of
// its unsynced name changes (a journalling file system keeps their order).
//
// It does not model: a sector that is itself torn, reordering of name changes
// within one folder, or a disk that lies about a flush. Locks do not survive a
// clone, as they do not survive a process.
package memfs

import (
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	"penstock/internal/vfs"
)

const sectorSize = 512

// FS implements vfs.FS. The zero value is not usable: New.
type FS struct {
	// mu guards everything, also the content of files: operations are short.
	mu    sync.Mutex
	root  *node
	locks map[string]bool
	// capacity bounds the bytes of all files, 0 for no bound. A clone has none.
	capacity int64
}

// SetCapacity makes the file system as large as that: writes that would grow a
// file past it fail with ENOSPC. 0 takes the bound away.
func (f *FS) SetCapacity(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.capacity = bytes
}

// FreeBytes implements vfs.FreeSpacer.
func (f *FS) FreeBytes(string) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.free(), nil
}

func (f *FS) free() int64 {
	if f.capacity == 0 {
		return math.MaxInt64
	}
	return max(f.capacity-f.root.bytes(), 0)
}

// bytes is the size of a file, or of all files below a folder.
func (n *node) bytes() (sum int64) {
	sum = int64(len(n.data))
	for _, c := range n.entries {
		sum += c.bytes()
	}
	return sum
}

// room says whether a file may grow to size.
func (f *FS) room(n *node, size int64) bool {
	grow := size - int64(len(n.data))
	return grow <= 0 || f.capacity == 0 || grow <= f.free()
}

// node is a file or a folder.
type node struct {
	dir bool

	// File. before holds the durable content of each sector written since the
	// last sync; synced is the durable size.
	data   []byte
	before map[int64][]byte
	synced int64

	// Folder. durable is what entries were at the last SyncDir; pending are
	// the changes since, in order.
	entries map[string]*node
	durable map[string]*node
	pending []change
}

// change is one name set (or, with a nil node, removed) in a folder.
type change struct {
	name string
	node *node
	// also is a second name of the same atomic change (rename in a folder).
	also     string
	alsoNode *node
}

func newDir() *node {
	return &node{dir: true, entries: map[string]*node{}, durable: map[string]*node{}}
}

func newFile() *node { return &node{before: map[int64][]byte{}} }

// New returns an empty file system.
func New() *FS { return &FS{root: newDir(), locks: map[string]bool{}} }

// CrashClone returns the file system as a power cut now would leave it. Each
// unsynced sector survives with probability keep, and where 0 < keep < 1 the
// seed also chooses sizes and how many unsynced name changes survive; 0 keeps
// only what is durable, 1 everything (a process killed, the machine alive).
func (f *FS) CrashClone(seed uint64, keep float64) *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &cloner{rng: rand.New(rand.NewPCG(seed, 0)), keep: keep, seen: map[*node]*node{}}
	return &FS{root: c.clone(f.root), locks: map[string]bool{}}
}

type cloner struct {
	rng  *rand.Rand
	keep float64
	seen map[*node]*node
}

func (c *cloner) chance() bool {
	return c.keep >= 1 || c.keep > 0 && c.rng.Float64() < c.keep
}

func (c *cloner) clone(n *node) *node {
	if done := c.seen[n]; done != nil {
		return done
	}
	out := newFile()
	if n.dir {
		out = newDir()
	}
	c.seen[n] = out
	if n.dir {
		c.cloneDir(n, out)
	} else {
		c.cloneFile(n, out)
	}
	return out
}

func (c *cloner) cloneDir(n, out *node) {
	names := make(map[string]*node, len(n.durable))
	for name, child := range n.durable {
		names[name] = child
	}
	k := 0
	for k < len(n.pending) && c.chance() {
		k++
	}
	for _, ch := range n.pending[:k] {
		ch.apply(names)
	}
	for _, name := range sortedNames(names) { // sorted: the seed decides, not the map
		child := c.clone(names[name])
		out.entries[name], out.durable[name] = child, child
	}
}

func (c *cloner) cloneFile(n, out *node) {
	size := n.synced
	if c.chance() {
		size = int64(len(n.data))
	}
	out.data = make([]byte, size)
	copy(out.data, n.data)
	sectors := make([]int64, 0, len(n.before))
	for s := range n.before {
		sectors = append(sectors, s)
	}
	sort.Slice(sectors, func(i, j int) bool { return sectors[i] < sectors[j] })
	for _, s := range sectors {
		if c.chance() || s*sectorSize >= size {
			continue
		}
		dst := out.data[s*sectorSize : min((s+1)*sectorSize, size)]
		clear(dst)
		copy(dst, n.before[s])
	}
	out.synced = size
}

func (ch change) apply(names map[string]*node) {
	set(names, ch.name, ch.node)
	if ch.also != "" {
		set(names, ch.also, ch.alsoNode)
	}
}

func set(names map[string]*node, name string, n *node) {
	if n == nil {
		delete(names, name)
		return
	}
	names[name] = n
}

func (n *node) change(ch change) {
	ch.apply(n.entries)
	n.pending = append(n.pending, ch)
}

func sortedNames(m map[string]*node) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// lookup finds a path; parent is its folder (nil when that is missing).
func (f *FS) lookup(name string) (parent, n *node, base string) {
	clean := strings.Trim(filepath.ToSlash(filepath.Clean(name)), "/")
	if clean == "" || clean == "." {
		return nil, f.root, ""
	}
	parts := strings.Split(clean, "/")
	d := f.root
	for _, p := range parts[:len(parts)-1] {
		if d = d.entries[p]; d == nil || !d.dir {
			return nil, nil, parts[len(parts)-1]
		}
	}
	base = parts[len(parts)-1]
	return d, d.entries[base], base
}

func notExist(op, name string) error {
	return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
}

// Open implements vfs.FS.
func (f *FS) Open(name string) (vfs.File, error) { return f.OpenFile(name, os.O_RDONLY, 0) }

// Create implements vfs.FS.
func (f *FS) Create(name string) (vfs.File, error) {
	return f.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
}

// OpenFile implements vfs.FS.
func (f *FS) OpenFile(name string, flag int, _ fs.FileMode) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	parent, n, base := f.lookup(name)
	switch {
	case n == nil && (parent == nil || flag&os.O_CREATE == 0):
		return nil, notExist("open", name)
	case n == nil:
		n = newFile()
		parent.change(change{name: base, node: n})
	case n.dir:
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	case flag&os.O_CREATE != 0 && flag&os.O_EXCL != 0:
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrExist}
	case flag&os.O_TRUNC != 0:
		n.truncate(0)
	}
	return &file{fs: f, n: n, name: name, flag: flag}, nil
}

// Rename implements vfs.FS.
func (f *FS) Rename(oldname, newname string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	from, n, oldBase := f.lookup(oldname)
	to, _, newBase := f.lookup(newname)
	if n == nil || from == nil || to == nil {
		return notExist("rename", oldname)
	}
	if from == to {
		from.change(change{name: oldBase, also: newBase, alsoNode: n})
		return nil
	}
	to.change(change{name: newBase, node: n})
	from.change(change{name: oldBase})
	return nil
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	parent, n, base := f.lookup(name)
	if n == nil || parent == nil {
		return notExist("remove", name)
	}
	if n.dir && len(n.entries) > 0 {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrExist}
	}
	parent.change(change{name: base})
	return nil
}

// MkdirAll implements vfs.FS; like vfs.OS it makes the new names durable.
func (f *FS) MkdirAll(name string, _ fs.FileMode) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.root
	for _, p := range strings.Split(strings.Trim(filepath.ToSlash(filepath.Clean(name)), "/"), "/") {
		if p == "" || p == "." {
			continue
		}
		next := d.entries[p]
		if next == nil {
			next = newDir()
			d.entries[p], d.durable[p] = next, next
		}
		if !next.dir {
			return &fs.PathError{Op: "mkdir", Path: name, Err: fs.ErrExist}
		}
		d = next
	}
	return nil
}

// ReadDir implements vfs.FS.
func (f *FS) ReadDir(name string) ([]fs.DirEntry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, n, _ := f.lookup(name)
	if n == nil || !n.dir {
		return nil, notExist("readdir", name)
	}
	out := make([]fs.DirEntry, 0, len(n.entries))
	for _, base := range sortedNames(n.entries) {
		out = append(out, fs.FileInfoToDirEntry(n.entries[base].info(base)))
	}
	return out, nil
}

// Stat implements vfs.FS.
func (f *FS) Stat(name string) (fs.FileInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, n, base := f.lookup(name)
	if n == nil {
		return nil, notExist("stat", name)
	}
	return n.info(base), nil
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, n, _ := f.lookup(name)
	if n == nil || !n.dir {
		return notExist("fsync", name)
	}
	for _, ch := range n.pending {
		ch.apply(n.durable)
	}
	n.pending = nil
	return nil
}

// Lock implements vfs.FS.
func (f *FS) Lock(name string) (io.Closer, error) {
	h, err := f.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.locks[name] {
		return nil, &fs.PathError{Op: "lock", Path: name, Err: vfs.ErrLocked}
	}
	f.locks[name] = true
	return &lock{fs: f, name: name, file: h}, nil
}

type lock struct {
	fs   *FS
	name string
	file vfs.File
}

func (l *lock) Close() error {
	l.fs.mu.Lock()
	delete(l.fs.locks, l.name)
	l.fs.mu.Unlock()
	return l.file.Close()
}

// info describes a node at this moment; times are not kept.
func (n *node) info(name string) fs.FileInfo {
	return info{name: name, size: int64(len(n.data)), dir: n.dir}
}

type info struct {
	name string
	size int64
	dir  bool
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) IsDir() bool        { return i.dir }
func (i info) ModTime() time.Time { return time.Time{} }
func (i info) Sys() any           { return nil }
func (i info) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir | 0o755
	}
	return 0o644
}
