package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Exit says how a process ended.
type Exit struct {
	Code   int            // -1 when a signal ended it
	Signal syscall.Signal // 0 when it exited by itself
	At     time.Time
}

// String is for reports.
func (e Exit) String() string {
	if e.Signal != 0 {
		return "signal " + e.Signal.String()
	}
	return fmt.Sprintf("exit code %d", e.Code)
}

// Process is one child of the harness. Start it again after it ended as often as needed. Safe for concurrent use.
type Process struct {
	Name      string
	namespace string
	argv      []string
	env       []string
	logPath   string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when the current process was reaped
	exit Exit
}

// NewProcess prepares a process; nothing runs yet. Its output is appended to logPath.
func NewProcess(name, namespace, logPath string, env, argv []string) *Process {
	return &Process{Name: name, namespace: namespace, argv: argv, env: env, logPath: logPath}
}

// Start runs it; an error when it runs already.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runningLocked() {
		return fmt.Errorf("start %s: runs already", p.Name)
	}
	if err := os.MkdirAll(filepath.Dir(p.logPath), 0o755); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	defer log.Close()
	fmt.Fprintf(log, "--- harness: start %s at %s\n", p.Name, time.Now().UTC().Format(time.RFC3339Nano))
	cmd := exec.Command(p.argv[0], p.argv[1:]...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := spawn.start(cmd, p.namespace); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.cmd, p.done = cmd, make(chan struct{})
	go p.reap(cmd, p.done)
	return nil
}

func (p *Process) reap(cmd *exec.Cmd, done chan struct{}) {
	_ = cmd.Wait()
	exit := Exit{Code: cmd.ProcessState.ExitCode(), At: time.Now()}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		exit.Signal = ws.Signal()
	}
	p.mu.Lock()
	p.exit = exit
	p.mu.Unlock()
	close(done)
}

func (p *Process) runningLocked() bool {
	if p.done == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// SetEnv changes the environment of the next start.
func (p *Process) SetEnv(env []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.env = env
}

// Running tells whether the process was started and not yet reaped.
func (p *Process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runningLocked()
}

// PID is the process id, 0 when it does not run.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.runningLocked() {
		return 0
	}
	return p.cmd.Process.Pid
}

// LastExit is how the process last ended; ok is false when it never did or runs.
func (p *Process) LastExit() (exit Exit, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil || p.runningLocked() {
		return Exit{}, false
	}
	return p.exit, true
}

// ErrNotRunning is what signals to an ended process give.
var ErrNotRunning = errors.New("process does not run")

// Signal sends one signal to the process itself.
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.runningLocked() {
		return fmt.Errorf("signal %s: %w", p.Name, ErrNotRunning)
	}
	return p.cmd.Process.Signal(sig)
}

// Kill sends SIGKILL and waits until the process is reaped.
func (p *Process) Kill(ctx context.Context) (Exit, error) {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return Exit{}, err
	}
	return p.Wait(ctx)
}

// Stop sends SIGTERM, waits up to grace, then kills.
func (p *Process) Stop(ctx context.Context, grace time.Duration) (Exit, error) {
	if err := errors.Join(p.Signal(syscall.SIGTERM), p.Signal(syscall.SIGCONT)); err != nil {
		if errors.Is(err, ErrNotRunning) {
			exit, _ := p.LastExit()
			return exit, nil
		}
		return Exit{}, err
	}
	waitCtx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if exit, err := p.Wait(waitCtx); err == nil {
		return exit, nil
	}
	return p.Kill(ctx)
}

// Wait returns when the process has ended.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	if done == nil {
		return Exit{}, fmt.Errorf("wait for %s: never started", p.Name)
	}
	select {
	case <-done:
		exit, _ := p.LastExit()
		return exit, nil
	case <-ctx.Done():
		return Exit{}, fmt.Errorf("wait for %s: %w", p.Name, ctx.Err())
	}
}

// Stopped tells whether the kernel holds the process stopped (state T), which confirms a pause.
func (p *Process) Stopped() bool {
	pid := p.PID()
	if pid == 0 {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, ok := strings.Cut(string(stat), ") ")
	return ok && strings.HasPrefix(rest, "T")
}
