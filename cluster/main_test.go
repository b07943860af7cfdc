package cluster

import (
	"flag"
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
	flag.Parse()
	if given := flag.Lookup("test.parallel"); given.Value.String() == given.DefValue {
		flag.Set("test.parallel", "4") // the tests of several nodes wait for timers most of the time
	}
	// Raft leaves a future unanswered when it is shut down in the wrong moment (hashicorp/raft#498); nothing can end its wait.
	// memberlist's Shutdown does not wait for a probe under way, which ends by itself at its time-out.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/hashicorp/raft.(*deferError).Error"),
		goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).triggerFunc"))
}
