package compose

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// engine is a container engine that answers, and the Compose that goes with it.
type engine struct {
	env     []string // DOCKER_HOST of a private one
	pid     int      // of a private one, 0 of one that runs already
	compose []string // the words that start Compose: v2 is a plug-in, v1 a program
}

// findEngine gives the engine that runs already (DOCKER_HOST, or the default socket), or starts one of its own on a private
// socket, which root can where dockerd is installed. Without either, and without Compose, it says what is missing.
// PENSTOCK_TEST_ENGINE=private starts one though another runs.
func findEngine(t *testing.T) (*engine, error) {
	t.Helper()
	if _, err := exec.LookPath("docker"); err != nil {
		return nil, errors.New("no docker command (Debian: docker.io)")
	}
	e := &engine{}
	switch {
	case quiet(nil, "docker", "compose", "version") == nil:
		e.compose = []string{"docker", "compose"}
	case quiet(nil, "docker-compose", "version") == nil:
		e.compose = []string{"docker-compose"}
	default:
		return nil, errors.New("no Compose, neither v2 (docker compose) nor v1 (Debian: docker-compose)")
	}
	if os.Getenv("PENSTOCK_TEST_ENGINE") != "private" && e.answers() == nil {
		return e, nil
	}
	if os.Getuid() != 0 {
		return nil, errors.New("no engine answers, and only root can start one")
	}
	if _, err := exec.LookPath("dockerd"); err != nil {
		return nil, errors.New("no engine answers, and there is no dockerd to start")
	}
	return e, e.startPrivate(t)
}

// answers asks the server, not only the client.
func (e *engine) answers() error {
	return quiet(e.env, "docker", "version", "--format", "{{.Server.Version}}")
}

// inside makes a command line run where the published ports are: the network namespace of a private engine.
func (e *engine) inside(words []string) []string {
	if e.pid == 0 {
		return words
	}
	return append([]string{"nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", e.pid), "--"}, words...)
}

// startPrivate starts dockerd with socket, data and state below a directory of its own, in a network namespace of its own:
// the bridges and firewall rules that it makes and removes are not the machine's. It copies layers instead of mounting them,
// which works on any file system.
func (e *engine) startPrivate(t *testing.T) error {
	dir, err := os.MkdirTemp("", "penstock-engine-")
	if err != nil {
		return err
	}
	logPath := filepath.Join(dir, "log")
	logFile, err := os.Create(logPath)
	if err != nil {
		return err
	}
	defer logFile.Close()
	host, config := "unix://"+filepath.Join(dir, "sock"), filepath.Join(dir, "daemon.json")
	if err := os.WriteFile(config, []byte("{}"), 0o600); err != nil { // the machine's own would contradict the flags
		return err
	}
	d := exec.Command("dockerd", "--config-file", config, "--host", host, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "--storage-driver", "vfs")
	d.Stdout, d.Stderr = logFile, logFile
	// SIGTERM, so that it ends its containers also when the test is killed.
	d.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Cloneflags: syscall.CLONE_NEWNET}
	if err := d.Start(); err != nil {
		return fmt.Errorf("start dockerd: %w", err)
	}
	e.pid = d.Process.Pid
	ended := make(chan struct{})
	go func() { _ = d.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = d.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			_ = d.Process.Kill()
			<-ended
		}
		unmountBelow(dir)
		require.NoError(t, os.RemoveAll(dir))
	})
	e.env = []string{"DOCKER_HOST=" + host}
	if err := quiet(nil, e.inside([]string{"ip", "link", "set", "lo", "up"})...); err != nil {
		return fmt.Errorf("loopback of the engine's own network: %w", err)
	}
	for deadline := time.Now().Add(60 * time.Second); ; {
		err := e.answers()
		if err == nil {
			t.Logf("started an engine of our own at %s", host)
			return nil
		}
		select {
		case <-ended:
			deadline = time.Time{}
		case <-time.After(200 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("dockerd does not work on this machine: %w\n%s", err, tailOf(logPath))
		}
	}
}

// unmountBelow releases what an engine left mounted (network namespaces).
func unmountBelow(dir string) {
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
			_ = syscall.Unmount(f[1], syscall.MNT_DETACH)
		}
	}
}

func tailOf(path string) string {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return string(b[max(0, len(b)-3000):])
}

// quiet runs a program to its end within half a minute.
func quiet(env []string, words ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
