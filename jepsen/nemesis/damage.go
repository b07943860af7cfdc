package nemesis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"penstock/jepsen/control"
)

func damageFaults() []Fault {
	return []Fault{
		{Name: "bitflip", Nodes: 1, Leader: true, Alone: true, Damage: true, What: "the node is killed, one to three bits of a log or snapshot file are flipped, it is started again",
			Confirmed: "the changed bytes were read back", begin: damage(flip)},
		{Name: "truncate", Nodes: 1, Leader: true, Alone: true, Damage: true, What: "the node is killed, a log or snapshot file is cut short, it is started again",
			Confirmed: "the file's new size was read back", begin: damage(cut)},
		{Name: "flip-pair", Nodes: -1, Alone: true, Damage: true, What: "A is paused while B and C commit; B is killed and bits of its log are flipped, C is paused, A resumed, B started: A and B must not agree on less than was committed; then C comes back",
			Confirmed: "the changed bytes were read back", begin: flipPair},
		{Name: "stale", Nodes: 1, Alone: true, Damage: true, What: "the node's log and snapshot files are copied; later it is killed, the copies are put back, it is started again",
			Confirmed: "the files were put back", begin: stale, end: putBack},
		{Name: "lost-disk", Nodes: 1, Leader: true, Alone: true, Damage: true, What: "the node's data volume is made anew; under its old id it must be refused (exit code 11), then it joins under a new one",
			Confirmed: "exit code 11 was seen", begin: loseDisk},
		{Name: "replace-all", Nodes: -1, Alone: true, Damage: true, Bound: replaceBound, What: "while destinations refuse, so that deliveries stay pending, and the log is cut behind snapshots, every node loses its data volume in turn and joins anew; each that joined leads and hands its state to the next",
			Confirmed: "exit code 11 was seen of each", begin: replaceAll},
	}
}

// victims lists the files that damage may touch: segments of the log and snapshots, not the identity or the locks.
func victims(n *control.Node) ([]string, error) {
	var files []string
	err := filepath.WalkDir(n.DataDir(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(n.DataDir(), path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		if (strings.Contains(rel, "wal") || strings.Contains(rel, "snap")) && info.Size() > 0 && !strings.Contains(rel, "lock") &&
			!strings.Contains(rel, "spare-") && !strings.Contains(rel, "quarantine-") && !strings.Contains(rel, "reserve") && !strings.HasSuffix(rel, ".damaged") {
			files = append(files, path)
		}
		return nil
	})
	if err == nil && len(files) == 0 {
		err = errors.New("no log or snapshot file found")
	}
	slices.Sort(files)
	return files, err
}

// pick prefers what hurts: a segment of the log in three of four cases, a snapshot in one of eight, else anything.
func pick(a *Act, files []string) string {
	want := ""
	switch n := a.Rand.IntN(8); {
	case n < 6:
		want = "/wal/"
	case n < 7:
		want = ".snap"
	}
	var some []string
	for _, f := range files {
		if strings.Contains(f, want) && (want != "/wal/" || strings.HasSuffix(f, ".seg")) {
			some = append(some, f)
		}
	}
	if len(some) == 0 {
		some = files
	}
	return some[a.Rand.IntN(len(some))]
}

func killFor(ctx context.Context, a *Act, n *control.Node) error {
	a.later(func(ctx context.Context) error { return restart(ctx, a, n) })
	if !n.Process.Running() {
		return nil
	}
	_, err := n.Process.Kill(ctx)
	return err
}

func damage(do func(a *Act, path string) (string, error)) func(context.Context, *Act) error {
	return func(ctx context.Context, a *Act) error {
		n := a.Nodes[0]
		a.Hold = min(a.Hold, time.Second)
		if err := killFor(ctx, a, n); err != nil {
			return err
		}
		files, err := victims(n)
		if err != nil {
			return err
		}
		path := pick(a, files)
		what, err := do(a, path)
		if err != nil {
			return err
		}
		a.confirm("%s: %s", filepath.Base(path), what)
		return nil
	}
}

// flipPair: a majority is left that together holds everything, but only if the damaged node knows what it lost.
func flipPair(ctx context.Context, a *Act) error {
	late, victim, others := a.Nodes[:(len(a.Nodes)-1)/2], a.Nodes[len(a.Nodes)-1], a.Nodes[(len(a.Nodes)-1)/2:len(a.Nodes)-1]
	a.later(func(ctx context.Context) error {
		_ = each(a.Nodes, func(n *control.Node) error { return n.Process.Signal(syscall.SIGCONT) })
		return restart(ctx, a, victim)
	})
	step := max(a.Hold/4, time.Second)
	a.Hold = 0
	if err := each(late, func(n *control.Node) error { return pauseOne(a, n) }); err != nil {
		return err
	}
	time.Sleep(2 * step)
	if _, err := victim.Process.Kill(ctx); err != nil {
		return err
	}
	path, err := newestSegment(victim)
	if err != nil {
		return err
	}
	what, err := flipAfter(a, path, 0.85) // near the end: above what the state was checkpointed at
	if err != nil {
		return err
	}
	a.confirm("%s of %s: %s", filepath.Base(path), victim.Host, what)
	if err := each(others, func(n *control.Node) error { return pauseOne(a, n) }); err != nil {
		return err
	}
	if err := each(late, func(n *control.Node) error { return n.Process.Signal(syscall.SIGCONT) }); err != nil {
		return err
	}
	if err := restart(ctx, a, victim); err != nil {
		return err
	}
	time.Sleep(3 * step)
	return nil
}

// newestSegment is the segment of the log that was written last.
func newestSegment(n *control.Node) (string, error) {
	files, err := victims(n)
	if err != nil {
		return "", err
	}
	var newest string
	var at time.Time
	for _, path := range files {
		info, err := os.Stat(path)
		if err == nil && strings.Contains(path, "/wal/") && info.Size() > 1<<20 && info.ModTime().After(at) {
			newest, at = path, info.ModTime()
		}
	}
	if newest == "" {
		return "", errors.New("no segment found")
	}
	return newest, nil
}

func flip(a *Act, path string) (string, error) { return flipAfter(a, path, 0) }

// flipAfter flips bits behind the given part of the used bytes.
func flipAfter(a *Act, path string, part float64) (string, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	used, err := usedBytes(f)
	if err != nil {
		return "", err
	}
	var at []int64
	for range 1 + a.Rand.IntN(3) {
		from := int64(part * float64(used))
		offset := from + a.Rand.Int64N(used-from)
		var b [1]byte
		if _, err := f.ReadAt(b[:], offset); err != nil {
			return "", err
		}
		b[0] ^= 1 << a.Rand.IntN(8)
		if _, err := f.WriteAt(b[:], offset); err != nil {
			return "", err
		}
		at = append(at, offset)
	}
	return fmt.Sprintf("bits flipped in bytes %v of %d", at, used), f.Sync()
}

// usedBytes is the size without the zeros a file was filled ahead with: a flip in there would damage nothing.
func usedBytes(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 1<<16)
	for end := info.Size(); end > 0; {
		start := max(0, end-int64(len(buf)))
		n, err := f.ReadAt(buf[:end-start], start)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for i := n - 1; i >= 0; i-- {
			if buf[i] != 0 {
				return start + int64(i) + 1, nil
			}
		}
		end = start
	}
	return max(1, info.Size()), nil
}

func cut(a *Act, path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	used, err := usedBytes(f)
	if err != nil {
		return "", err
	}
	size := a.Rand.Int64N(used)
	if err := errors.Join(f.Truncate(size), f.Sync()); err != nil {
		return "", err
	}
	return fmt.Sprintf("cut from %d used bytes to %d", used, size), nil
}

func (a *Act) staleDir() string { return filepath.Join(a.TmpDir, fmt.Sprintf("stale-%d", a.ID)) }

func stale(_ context.Context, a *Act) error {
	n := a.Nodes[0]
	files, err := victims(n)
	if err != nil {
		return err
	}
	for _, path := range files {
		rel, _ := filepath.Rel(n.DataDir(), path)
		if err := copyFile(path, filepath.Join(a.staleDir(), rel)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func putBack(ctx context.Context, a *Act) error {
	n := a.Nodes[0]
	if err := killFor(ctx, a, n); err != nil {
		return err
	}
	now, err := victims(n)
	if err != nil {
		return err
	}
	for _, path := range now {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	count := 0
	err = filepath.WalkDir(a.staleDir(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(a.staleDir(), path)
		count++
		return copyFile(path, filepath.Join(n.DataDir(), rel))
	})
	if err != nil {
		return err
	}
	a.confirm("%d files of %v ago put back", count, a.Hold.Round(time.Second))
	return os.RemoveAll(a.staleDir())
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}
