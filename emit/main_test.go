package emit

import (
	"flag"
	"io"
	"log"
	"testing"

	"go.uber.org/goleak"
)

// TestMain lets the table over real sockets run side by side: its rows mostly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "32")
	goleak.VerifyTestMain(m)
}

// quiet is a logger for servers whose complaints are expected.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
