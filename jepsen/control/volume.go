package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Shutdown flags of FS_IOC_SHUTDOWN (include/uapi/linux/fs.h).
const (
	// ShutdownFlush commits the journal first: renames are kept, un-synced appends are torn, new files have no bytes.
	ShutdownFlush = 1
	// ShutdownDrop drops everything that was not fsynced, directory entries included: a power cut.
	ShutdownDrop = 2

	ioctlShutdown = 0x8004587d
)

// Volume is one loop-mounted file system of its own.
type Volume struct {
	// Mount is where it is mounted, FS ext4 or xfs.
	Mount, FS string
	image     string
	bytes     int64
	device    string
	mounted   bool
}

// NewVolume makes a sparse image of the given size, a loop device for it, a file system in it, and mounts that.
func NewVolume(ctx context.Context, image, mount, fs string, bytes int64) (*Volume, error) {
	v := &Volume{Mount: mount, FS: fs, image: image, bytes: bytes}
	if err := v.create(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("volume %s: %w", mount, err), v.Close(ctx))
	}
	return v, nil
}

func (v *Volume) create(ctx context.Context) error {
	for _, dir := range []string{filepath.Dir(v.image), v.Mount} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return v.disk(ctx)
}

// disk makes an empty image with a file system in it and mounts that.
func (v *Volume) disk(ctx context.Context) error {
	f, err := os.OpenFile(v.image, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(v.bytes), f.Close()); err != nil {
		return err
	}
	if err := v.attach(ctx); err != nil {
		return err
	}
	if err := v.format(ctx); err != nil {
		return err
	}
	return v.Remount(ctx)
}

// attach gives the image a loop device, and gives back the one it had. The kernel keeps that for as long as somebody uses it.
func (v *Volume) attach(ctx context.Context) error {
	out, err := tool(ctx, "losetup", "--find", "--show", v.image)
	if err != nil {
		return err
	}
	err = v.detach(ctx)
	v.device = strings.TrimSpace(out)
	return err
}

func (v *Volume) detach(ctx context.Context) error {
	if v.device == "" {
		return nil
	}
	_, err := tool(ctx, "losetup", "--detach", v.device)
	v.device = ""
	return err
}

func (v *Volume) format(ctx context.Context) error {
	args := []string{"-q", "-F", "-m", "0", "-E", "lazy_itable_init=1", v.device}
	if v.FS == "xfs" {
		args = []string{"-q", "-f", v.device}
	}
	_, err := tool(ctx, "mkfs."+v.FS, args...)
	return err
}

// Remount mounts the volume; the journal is replayed by the kernel.
//
// A container that was started meanwhile on this machine may hold a copy of the mount: then the file system lives on behind
// the unmount, shut down as it was, and the mount brings it back dead. The image gets another device in that case, and with
// it a file system that knows nothing of the old one.
func (v *Volume) Remount(ctx context.Context) error {
	if v.mounted {
		return nil
	}
	if err := v.mount(ctx); !errors.Is(err, unix.EIO) {
		return err
	}
	if err := errors.Join(v.Unmount(ctx), v.flush(), v.attach(ctx)); err != nil {
		return fmt.Errorf("remount %s from another device: %w", v.Mount, err)
	}
	return v.mount(ctx)
}

// mount mounts the device and makes sure that a file can be made.
func (v *Volume) mount(ctx context.Context) error {
	args := []string{"-t", v.FS, v.device, v.Mount}
	if v.FS == "xfs" { // which would not have two of the same id, even if one of them is dead
		args = append([]string{"-o", "nouuid"}, args...)
	}
	if _, err := tool(ctx, "mount", args...); err != nil {
		return err
	}
	v.mounted = true
	path := filepath.Join(v.Mount, ".jepsen-probe")
	f, err := os.Create(path)
	switch {
	case errors.Is(err, unix.ENOSPC): // full, not dead
		return nil
	case err != nil:
		return fmt.Errorf("mounted %s: %w", v.Mount, err)
	}
	return errors.Join(f.Close(), os.Remove(path))
}

// flush writes what the kernel still holds of the device to the image, as the last unmount does.
func (v *Volume) flush() error {
	f, err := os.Open(v.device)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetInt(int(f.Fd()), unix.BLKFLSBUF, 0)
}

// Unmount waits up to ten seconds for the last user to go: a killed process needs a moment to be reaped.
func (v *Volume) Unmount(ctx context.Context) error {
	if !v.mounted {
		return nil
	}
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if _, err = tool(ctx, "umount", v.Mount); err == nil {
			v.mounted = false
			return nil
		}
	}
	return err
}

// Shutdown cuts the power of the file system: every later call on it gives EIO. It is confirmed by such a call.
// A volume that is not mounted is refused: below its mount point lies a file system that is not ours.
func (v *Volume) Shutdown(flag uint32) error {
	if !v.mounted {
		return fmt.Errorf("shut down %s: not mounted", v.Mount)
	}
	dir, err := os.Open(v.Mount)
	if err != nil {
		return fmt.Errorf("shut down %s: %w", v.Mount, err)
	}
	defer dir.Close()
	if err := unix.IoctlSetPointerInt(int(dir.Fd()), ioctlShutdown, int(flag)); err != nil {
		return fmt.Errorf("shut down %s: FS_IOC_SHUTDOWN: %w", v.Mount, err)
	}
	probe, err := os.Create(filepath.Join(v.Mount, ".jepsen-probe"))
	if err == nil {
		probe.Close()
		return fmt.Errorf("shut down %s: a file could still be created", v.Mount)
	}
	if !errors.Is(err, unix.EIO) {
		return fmt.Errorf("shut down %s: probe: %w, want an input/output error", v.Mount, err)
	}
	return nil
}

// Sync writes everything on the volume to its device, as the kernel does by itself now and then.
func (v *Volume) Sync() error {
	if !v.mounted {
		return fmt.Errorf("sync %s: not mounted", v.Mount)
	}
	dir, err := os.Open(v.Mount)
	if err != nil {
		return fmt.Errorf("sync %s: %w", v.Mount, err)
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", v.Mount, err)
	}
	return nil
}

// Wipe replaces the file system by an empty one: a lost disk. The volume must be unmounted; it is mounted again after it.
func (v *Volume) Wipe(ctx context.Context) error {
	if v.mounted {
		return fmt.Errorf("wipe %s: still mounted", v.Mount)
	}
	if err := errors.Join(v.detach(ctx), os.Remove(v.image)); err != nil {
		return fmt.Errorf("wipe %s: %w", v.Mount, err)
	}
	return v.disk(ctx)
}

const filler = ".jepsen-filler"

// Fill takes all free space; it returns the bytes left to others, which is the confirmation.
func (v *Volume) Fill() (left int64, err error) {
	if !v.mounted {
		return 0, fmt.Errorf("fill %s: not mounted", v.Mount)
	}
	f, err := os.OpenFile(filepath.Join(v.Mount, filler), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, fmt.Errorf("fill %s: %w", v.Mount, err)
	}
	defer f.Close()
	var end int64
	for chunk := int64(64 << 20); chunk >= 4096; {
		if err := unix.Fallocate(int(f.Fd()), 0, end, chunk); err != nil {
			if !errors.Is(err, unix.ENOSPC) {
				return 0, fmt.Errorf("fill %s: %w", v.Mount, err)
			}
			chunk /= 2
			continue
		}
		end += chunk
	}
	return v.Free()
}

// Unfill gives the space back.
func (v *Volume) Unfill() error {
	err := os.Remove(filepath.Join(v.Mount, filler))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Free is the space an ordinary process could still take.
func (v *Volume) Free() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(v.Mount, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", v.Mount, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// Close unmounts, detaches and removes.
func (v *Volume) Close(ctx context.Context) error {
	var errs []error
	errs = append(errs, v.Unmount(ctx))
	errs = append(errs, v.detach(ctx))
	if err := os.Remove(v.image); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
