package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// WorkRoot is where runs keep images and mounts.
func WorkRoot() string { return filepath.Join(os.TempDir(), "penstock-jepsen-work") }

// Lock makes sure that one harness works on this machine at a time. The lock goes with the process.
func Lock() (unlock func(), err error) {
	if err := os.MkdirAll(WorkRoot(), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(WorkRoot(), "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("another jepsen run is active on this machine (%s is locked)", f.Name())
	}
	return func() { f.Close() }, nil
}

// Leftovers names the resources of earlier runs that are still there.
func Leftovers(ctx context.Context) ([]string, error) {
	left, err := namespaces(ctx)
	if err != nil {
		return nil, err
	}
	for i := range left {
		left[i] = "namespace " + left[i]
	}
	mounts, err := mountsBelow(WorkRoot())
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		left = append(left, "mount "+m)
	}
	loops, err := loops(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range loops {
		left = append(left, "loop device "+l)
	}
	return left, nil
}

// Clean removes the leftovers: processes inside our namespaces, mounts, loop devices, namespaces (their links go with
// them), images. It returns what it removed.
func Clean(ctx context.Context) ([]string, error) {
	var removed []string
	var errs []error
	did := func(what string, err error) {
		if err != nil {
			errs = append(errs, err)
			return
		}
		removed = append(removed, what)
	}
	spaces, err := namespaces(ctx)
	if err != nil {
		return nil, err
	}
	for _, ns := range spaces {
		killInside(ctx, ns, did)
	}
	mounts, err := mountsBelow(WorkRoot())
	errs = append(errs, err)
	for _, m := range mounts {
		_, err := tool(ctx, "umount", m)
		did("mount "+m, err)
	}
	devices, err := loops(ctx)
	errs = append(errs, err)
	for _, l := range devices {
		_, err := tool(ctx, "losetup", "--detach", l)
		did("loop device "+l, err)
	}
	for _, ns := range spaces {
		_, err := tool(ctx, "ip", "netns", "del", ns)
		did("namespace "+ns, err)
	}
	entries, err := os.ReadDir(WorkRoot())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, e := range entries {
		if e.IsDir() && len(errs) == 0 { // with a mount still there, nothing below the root is safe to remove
			path := filepath.Join(WorkRoot(), e.Name())
			did("directory "+path, os.RemoveAll(path))
		}
	}
	return removed, errors.Join(errs...)
}

// killInside ends the processes of one of our namespaces, each by its id.
func killInside(ctx context.Context, namespace string, did func(string, error)) {
	out, err := tool(ctx, "ip", "netns", "pids", namespace)
	if err != nil {
		return
	}
	for _, field := range strings.Fields(out) {
		pid, err := strconv.Atoi(field)
		if err != nil || pid == os.Getpid() {
			continue
		}
		did(fmt.Sprintf("process %d of %s", pid, namespace), syscall.Kill(pid, syscall.SIGKILL))
	}
}

// mountsBelow lists mount points below dir, the deepest first.
func mountsBelow(dir string) ([]string, error) {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, line := range strings.Split(string(info), "\n") {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			found = append(found, fields[4])
		}
	}
	sort.Sort(sort.Reverse(sort.StringSlice(found)))
	return found, nil
}

// loops lists loop devices whose image is one of ours.
func loops(ctx context.Context) ([]string, error) {
	out, err := tool(ctx, "losetup", "--json", "--list")
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(out) == "" {
		return nil, nil
	}
	var list struct {
		Loops []struct {
			Name string `json:"name"`
			Back string `json:"back-file"`
			Gone bool   `json:"autoclear"` // given back already; the kernel keeps it for a copy of its mount somewhere
		} `json:"loopdevices"`
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("losetup --json: %w", err)
	}
	var found []string
	for _, l := range list.Loops {
		if l.Gone {
			continue
		}
		if strings.HasPrefix(l.Back, WorkRoot()+"/") || strings.Contains(l.Back, "/penstock-jepsen-images/") {
			found = append(found, l.Name)
		}
	}
	return found, nil
}
