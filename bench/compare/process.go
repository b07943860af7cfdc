package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is one server of a system.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	log  string
}

// start runs a command whose output goes to a file; it dies with this process.
func start(log string, name string, args ...string) (*process, error) {
	f, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{}), log: log}
	p.cmd.Stdout, p.cmd.Stderr = f, f
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// self runs this program again as a peer.
func self(dir, name string, args ...string) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(filepath.Join(dir, name+".log"), exe, append([]string{"peer"}, args...)...)
}

// freePorts asks the system for ports nobody has, all at once so that they differ.
func freePorts(n int) ([]string, error) {
	var out []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		out = append(out, l.Addr().String())
	}
	return out, nil
}

func port(addr string) int {
	_, p, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(p)
	return n
}

// usage is what processes have used so far.
type usage struct {
	cpu  float64 // seconds, user and system
	peak int64   // largest resident set of one of them since resetPeak, bytes
}

const clockTicks = 100 // USER_HZ, on every Linux Go runs on

func usageOf(processes []*process) (usage, error) {
	var u usage
	for _, p := range processes {
		proc := fmt.Sprintf("/proc/%d/", p.cmd.Process.Pid)
		stat, err := os.ReadFile(proc + "stat")
		if err != nil {
			return u, err
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 13 {
			return u, fmt.Errorf("%sstat: %q", proc, stat)
		}
		user, _ := strconv.ParseFloat(fields[11], 64)
		system, _ := strconv.ParseFloat(fields[12], 64)
		u.cpu += (user + system) / clockTicks
		peak, err := field(proc+"status", "VmHWM:")
		if err != nil {
			return u, err
		}
		u.peak = max(u.peak, peak<<10)
	}
	return u, nil
}

// resetPeak makes the present resident set the largest. Where that is not allowed the peak is that of the process's life.
func resetPeak(processes []*process) {
	for _, p := range processes {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.cmd.Process.Pid), []byte("5"), 0)
	}
}

func field(file, name string) (int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s: no %s", file, name)
}

// diskWritten is how many bytes went to the device that holds dir, whoever wrote them. What a process is charged with (write_bytes) is no
// measure: a write into a large folio of the page cache is charged as the whole of it, 1 MiB for 4 KiB, and only the 4 KiB are written.
func diskWritten(dir string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, err
	}
	b, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(b))
	if len(fields) < 7 {
		return 0, fmt.Errorf("block device statistics: %q", b)
	}
	sectors, err := strconv.ParseInt(fields[6], 10, 64)
	return sectors * 512, err
}

// eventually repeats f until it is content.
func eventually(within time.Duration, what string, f func() error) error {
	deadline := time.Now().Add(within)
	for {
		err := f()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %s: %s: %w", within, what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
