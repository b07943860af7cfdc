package cluster

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain puts the nodes' directories into memory where there is such a place: elections then take the time that the timers say, whatever
// the disk of the machine is busy with.
func TestMain(m *testing.M) {
	if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() && os.Getenv("TMPDIR") == "" {
		os.Setenv("TMPDIR", "/dev/shm")
	}
	goleak.VerifyTestMain(m)
}
