package compose

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// penstock is the binary under test: PENSTOCK_BINARY, or one that is built here.
func penstock(t *testing.T) string {
	t.Helper()
	path, err := buildOnce()
	require.NoError(t, err)
	return path
}

var buildOnce = sync.OnceValues(func() (string, error) {
	if b := os.Getenv("PENSTOCK_BINARY"); b != "" {
		return b, nil
	}
	path, err := filepath.Abs(filepath.Join(root, "bin", fmt.Sprintf("penstock-compose-test-%d", os.Getpid())))
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", path, "penstock/cmd/penstock")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if os.Getenv("PENSTOCK_BINARY") == "" {
		if path, err := buildOnce(); err == nil {
			_ = os.Remove(path)
		}
	}
	os.Exit(code)
}

// project is one Compose project of three nodes. Everything it makes carries its name.
type project struct {
	t      *testing.T
	engine *engine
	name   string
	binary string
	addrs  map[string]string // node -> published address
	begun  time.Time
	// secrets is the directory of the tokens; the verbs show the admin's.
	secrets string
}

// step says how far the test is.
func (p *project) step(what string) {
	p.t.Logf("%5.1fs %s", time.Since(p.begun).Seconds(), what)
}

// newProject makes the image as `make image` does, and starts nothing yet. At the end all of it is removed, and looked for.
func newProject(t *testing.T, e *engine) *project {
	t.Helper()
	p := &project{t: t, engine: e, binary: penstock(t), addrs: map[string]string{}, begun: time.Now()}
	p.name = fmt.Sprintf("penstock-test-%d-%04x", os.Getpid(), rand.Uint32()&0xffff)
	for _, n := range nodes {
		p.addrs[n] = freeAddr(t)
	}
	p.secrets = filepath.Join(t.TempDir(), "secrets")
	require.NoError(t, quiet(nil, filepath.Join(root, "deploy/compose/make-tokens.sh"), p.secrets, p.binary))
	tree := "bin/image-" + p.name
	t.Cleanup(func() { p.remove(filepath.Join(root, tree)) })
	p.must(p.output("make", "-C", root, "image-of-binary", "IMAGE="+p.name, "TREE="+tree, "BINARY="+p.binary, "VERSION=test"))
	return p
}

func (p *project) env() []string {
	env := append(os.Environ(), p.engine.env...)
	env = append(env, "PENSTOCK_IMAGE="+p.name+":test", "COMPOSE_PROJECT_NAME="+p.name, "PENSTOCK_SECRETS="+p.secrets, "PENSTOCK_TOKEN_FILE="+p.token("admin"))
	for _, n := range nodes {
		_, port, _ := net.SplitHostPort(p.addrs[n])
		env = append(env, "PENSTOCK_PORT_"+strings.ToUpper(n)+"="+port)
	}
	return env
}

// token is the file with the token of that name.
func (p *project) token(name string) string { return filepath.Join(p.secrets, name+".token") }

// output runs a program on the project with a bound, and gives its standard output.
func (p *project) output(words ...string) (string, error) { return p.feed("", words...) }

func (p *project) feed(stdin string, words ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	all := p.engine.inside(words)
	cmd := exec.CommandContext(ctx, all[0], all[1:]...)
	cmd.Env = p.env()
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w\n%s%s", strings.Join(words, " "), err, last(out.String()), last(errs.String()))
	}
	return out.String(), nil
}

func last(s string) string { return s[max(0, len(s)-2000):] }

func (p *project) must(out string, err error) string {
	p.t.Helper()
	require.NoError(p.t, err)
	return out
}

// compose runs one Compose command of the project.
func (p *project) compose(words ...string) (string, error) {
	return p.output(append(append([]string{}, p.engine.compose...), append([]string{"-f", filepath.Join(root, "docker-compose.yml")}, words...)...)...)
}

func (p *project) docker(words ...string) (string, error) {
	out, err := p.output(append([]string{"docker"}, words...)...)
	return strings.TrimSpace(out), err
}

// run runs a verb of the binary at the published ports of some nodes (all: none named).
func (p *project) run(stdin string, at []string, words ...string) (string, error) {
	return p.feed(stdin, append([]string{p.binary, "--addr", p.addr(at...)}, words...)...)
}

func (p *project) addr(at ...string) string {
	if len(at) == 0 {
		at = nodes
	}
	var list []string
	for _, n := range at {
		list = append(list, p.addrs[n])
	}
	return strings.Join(list, ",")
}

// id is the container of a node.
func (p *project) id(node string) string {
	p.t.Helper()
	id := p.must(p.docker("ps", "-aq", "--no-trunc", "--filter", "label=com.docker.compose.project="+p.name, "--filter", "label=com.docker.compose.service="+node))
	require.Len(p.t, id, 64, "container of %s: %q", node, id)
	return id
}

func (p *project) inspect(node, format string) string {
	p.t.Helper()
	return p.must(p.docker("inspect", "--format", format, p.id(node)))
}

func (p *project) waitReady(at ...string) {
	p.t.Helper()
	p.must(p.run("", at, "health", "--ready", "--wait", "90s", "--timeout", "5s"))
}

// remove takes everything of the project away, whatever state it is in, and fails the test when something is left.
func (p *project) remove(tree string) {
	if p.t.Failed() {
		for _, n := range nodes {
			if out, err := p.compose("logs", "--tail", "40", n); err == nil {
				p.t.Logf("--- log of %s\n%s", n, out)
			}
		}
	}
	_, err := p.compose("--profile", "metrics", "down", "--volumes", "--timeout", "5")
	require.NoError(p.t, err)
	_, _ = p.docker("image", "rm", "--force", p.name+":test", p.name+":latest")
	require.NoError(p.t, os.RemoveAll(tree))
	label := "label=com.docker.compose.project=" + p.name
	for _, list := range [][]string{
		{"ps", "-aq", "--filter", label}, {"network", "ls", "-q", "--filter", label}, {"volume", "ls", "-q", "--filter", label}, {"images", "-q", p.name},
	} {
		require.Empty(p.t, p.must(p.docker(list...)), "left behind: docker %v", list)
	}
}

// decode reads what a verb printed with --output json.
func decode[T any](p *project, out string) T {
	p.t.Helper()
	var v T
	require.NoError(p.t, json.Unmarshal([]byte(out), &v), out)
	return v
}

// freeAddr is a loopback address below the range that the kernel gives outgoing connections.
func freeAddr(t *testing.T) string {
	t.Helper()
	for range 1000 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(12_000))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
	require.FailNow(t, "no free port")
	return ""
}

// eventually asks until f is content.
func eventually(t *testing.T, within time.Duration, what string, f func() error) {
	t.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(100 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			require.FailNow(t, "not within "+within.String()+": "+what, "%v", err)
		}
	}
}
