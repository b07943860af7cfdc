package fsm

import (
	"flag"
	"os"
	"testing"
)

// TestMain keeps the random logs short unless the command line says how many: go test ./fsm -run Random -rapid.checks=5000.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		_ = flag.Set("rapid.checks", "40") // of rapid, which is always linked in
	}
	os.Exit(m.Run())
}
