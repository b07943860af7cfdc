package control

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// volume makes a volume for real, or skips: that takes root, a loop device and the tools.
func volume(t *testing.T, fs string) *Volume {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("LEFT OUT: loop devices need root")
	}
	for _, name := range []string{"losetup", "mkfs." + fs, "unshare"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip("LEFT OUT: " + name + " is not installed (make jepsen-deps installs it)")
		}
	}
	loop, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skip("LEFT OUT: this machine lends no loop devices: ", err)
	}
	loop.Close()
	dir := t.TempDir()
	v, err := NewVolume(t.Context(), filepath.Join(dir, "image"), filepath.Join(dir, "mount"), fs, 320<<20)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Close(context.Background())) })
	return v
}

func synced(t *testing.T, v *Volume, name, text string) {
	t.Helper()
	f, err := os.Create(filepath.Join(v.Mount, name))
	require.NoError(t, err)
	_, err = f.WriteString(text)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
}

// Containers that start on the machine copy its mounts. A volume held so must come back from a power cut all the same, with
// what was synced, and a new disk must be empty.
func TestAVolumeComesBackWhileACopyOfItsMountIsHeld(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs"} {
		t.Run(fs, func(t *testing.T) {
			v := volume(t, fs)
			synced(t, v, "kept", "one")
			holder := exec.Command("unshare", "--mount", "--propagation", "private", "sleep", "60")
			require.NoError(t, holder.Start())
			t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
			own, err := os.Readlink("/proc/self/ns/mnt")
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				other, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(holder.Process.Pid), "ns/mnt"))
				return err == nil && other != own
			}, 10*time.Second, 10*time.Millisecond)

			require.NoError(t, v.Shutdown(ShutdownDrop))
			require.NoError(t, v.Unmount(t.Context()))
			require.NoError(t, v.Remount(t.Context()))
			text, err := os.ReadFile(filepath.Join(v.Mount, "kept"))
			require.NoError(t, err)
			require.Equal(t, "one", string(text))
			synced(t, v, "after", "two")

			require.NoError(t, v.Unmount(t.Context()))
			require.NoError(t, v.Wipe(t.Context()))
			_, err = os.Stat(filepath.Join(v.Mount, "kept"))
			require.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}
