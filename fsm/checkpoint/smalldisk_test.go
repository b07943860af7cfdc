package checkpoint

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// smallDisk is a file system of 32 MiB; the test is skipped where it cannot be mounted.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=32m"); err != nil {
		t.Skipf("a small file system cannot be mounted here (as root on Linux it can): %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return dir
}
