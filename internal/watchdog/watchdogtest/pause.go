// Package watchdogtest stops a real process while it waits for its disk.
//
// It promises that the process was stopped as a whole and went on afterwards, with its operation still outstanding for a
// moment. It does not know what a watch is; whoever counts the pause ends the process, and fails the test.
package watchdogtest

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	child   = "PENSTOCK_TEST_PAUSED_PROCESS"
	stalled = "the disk is asked"
	// Limit is a good limit for the watch under test, and Pause is how long the process is stopped.
	Limit = time.Second
	Pause = Limit + time.Second/2
)

// Run runs operation in a process of its own, which is this test again, and stops that for longer than Limit while the
// operation is in disk. disk returns a moment after the process goes on. The test fails if the process does.
func Run(t *testing.T, operation func(disk func())) {
	t.Helper()
	if os.Getenv(child) != "" {
		operation(waitForParent)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1")
	answer, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	cmd.Stderr = cmd.Stdout
	check(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }() // when a check below fails
	lines, all := bufio.NewReader(out), &bytes.Buffer{}
	for {
		line, err := lines.ReadString('\n')
		all.WriteString(line)
		if strings.Contains(line, stalled) {
			break
		}
		if err != nil {
			t.Fatalf("the process ended early:\n%s", all)
		}
	}
	check(t, cmd.Process.Signal(syscall.SIGSTOP))
	time.Sleep(Pause)
	check(t, cmd.Process.Signal(syscall.SIGCONT))
	time.Sleep(Limit / 4) // time for a timer that was due during the pause
	check(t, answer.Close())
	_, err = io.Copy(all, lines)
	check(t, err)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("the process did not survive its pause: %v\n%s", err, all)
	}
	if !strings.Contains(all.String(), "--- PASS: "+t.Name()) {
		t.Fatalf("the process did not run the test:\n%s", all)
	}
}

// waitForParent is a disk that answers once stdin is closed.
func waitForParent() {
	_, _ = os.Stdout.WriteString(stalled + "\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
