package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// binary is the penstock under test, built once for the run (or given by PENSTOCK_BINARY).
var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if b := os.Getenv("PENSTOCK_BINARY"); b != "" {
			binary = b
			return m.Run()
		}
		dir, err := os.MkdirTemp("", "penstock-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "penstock")
		build := exec.Command("go", "build", "-o", binary, "penstock/cmd/penstock")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// options say how a cluster differs from three default nodes.
type options struct {
	nodes  int
	single bool
	drain  string
	// segmentBytes and snapshotBytes make log go early, so that a short test sees it.
	segmentBytes, snapshotBytes string
	maxBytes                    string // of the log
	trailing                    int
	env                         []string
	// more is added to each node's configuration, {id} being its id; token is what the clients of the group show.
	more, token string
}

// group is a cluster of real processes.
type group struct {
	t     *testing.T
	opts  options
	dir   string
	nodes []*proc
	seeds []string
}

// proc is one penstock server.
type proc struct {
	g                       *group
	id                      string
	http, raft, gossip      string
	dir, dlq, config, logTo string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	code int
}

// startGroup starts a cluster and waits until each node is ready.
func startGroup(t *testing.T, opts options) *group {
	t.Helper()
	g := newGroup(t, opts)
	for _, p := range g.nodes {
		p.start()
	}
	for _, p := range g.nodes {
		p.waitReady(20 * time.Second)
	}
	return g
}

// newGroup lays out a cluster without starting it. At the end of the test everything is killed; a failed test shows the logs.
func newGroup(t *testing.T, opts options) *group {
	t.Helper()
	if opts.nodes == 0 {
		opts.nodes = 3
	}
	if opts.drain == "" {
		opts.drain = "10s"
	}
	if opts.segmentBytes == "" {
		opts.segmentBytes = "4MiB" // a segment is filled with zeros when it is made: many clusters on one small disk
	}
	g := &group{t: t, opts: opts, dir: t.TempDir()}
	for i := range opts.nodes {
		g.nodes = append(g.nodes, g.layout(fmt.Sprintf("n%d", i+1)))
		g.seeds = append(g.seeds, g.nodes[i].gossip)
	}
	for _, p := range g.nodes {
		p.writeConfig(g.seeds)
	}
	t.Cleanup(func() {
		for _, p := range g.nodes {
			p.kill()
		}
		if t.Failed() {
			for _, p := range g.nodes {
				t.Logf("--- log of %s\n%s", p.id, tailOf(p.logTo, 6000))
			}
		}
	})
	return g
}

func (g *group) layout(id string) *proc {
	p := &proc{g: g, id: id, http: freeAddr(g.t), raft: freeAddr(g.t), gossip: freeAddr(g.t)}
	p.dir = filepath.Join(g.dir, id)
	p.dlq = filepath.Join(g.dir, id+"-dlq")
	p.config = filepath.Join(g.dir, id+".yaml")
	p.logTo = filepath.Join(g.dir, id+".log")
	return p
}

// add lays out one more node that joins through the seeds of the others.
func (g *group) add(id string) *proc {
	p := g.layout(id)
	p.writeConfig(append(append([]string{}, g.seeds...), p.gossip))
	g.nodes = append(g.nodes, p)
	return p
}

func (p *proc) writeConfig(seeds []string) {
	var b strings.Builder
	fmt.Fprintf(&b, "node: {id: %s, data_dir: %s, http: %q, raft: %q, gossip: %q, debug: \"\"}\n", p.id, p.dir, p.http, p.raft, p.gossip)
	fmt.Fprintf(&b, "cluster:\n  name: e2e\n")
	if !p.g.opts.single {
		fmt.Fprintf(&b, "  seeds: [%s]\n", quoted(seeds))
	}
	if n := p.g.opts.trailing; n > 0 {
		fmt.Fprintf(&b, "  trailing_entries: %d\n", n)
	}
	if s := p.g.opts.snapshotBytes; s != "" {
		fmt.Fprintf(&b, "  snapshot_bytes: %s\n", s)
	}
	storage := "clustered"
	if p.g.opts.single {
		storage = "disk"
	}
	fmt.Fprintf(&b, "wal:\n  storage: %s\n", storage)
	fmt.Fprintf(&b, "  segment_bytes: %s\n", p.g.opts.segmentBytes)
	if s := p.g.opts.maxBytes; s != "" {
		fmt.Fprintf(&b, "  max_bytes: %s\n", s)
	}
	fmt.Fprintf(&b, "dead_letter: {directory: %s}\ndrain: %s\n", p.dlq, p.g.opts.drain)
	b.WriteString(strings.ReplaceAll(p.g.opts.more, "{id}", p.id))
	require.NoError(p.g.t, os.WriteFile(p.config, []byte(b.String()), 0o600))
}

func quoted(list []string) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = fmt.Sprintf("%q", s)
	}
	return strings.Join(out, ", ")
}

// start runs the process; its output is appended to its log.
func (p *proc) start() {
	p.g.t.Helper()
	logFile, err := os.OpenFile(p.logTo, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(p.g.t, err)
	cmd := exec.Command(binary, "server", "--config", p.config)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.Env = append(os.Environ(), p.g.opts.env...)
	// The process must not outlive the test, however the test ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(p.g.t, cmd.Start())
	done := make(chan struct{})
	p.mu.Lock()
	p.cmd, p.done = cmd, done
	p.mu.Unlock()
	go func() {
		_ = cmd.Wait()
		logFile.Close()
		p.mu.Lock()
		p.code = cmd.ProcessState.ExitCode()
		p.mu.Unlock()
		close(done)
	}()
}

// kill is SIGKILL; it returns when the process is gone.
func (p *proc) kill() {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Kill()
	<-done
}

func (p *proc) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NoError(p.g.t, p.cmd.Process.Signal(s))
}

// exit waits for the process to end by itself and gives its exit code.
func (p *proc) exit(within time.Duration) int {
	p.g.t.Helper()
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	select {
	case <-done:
	case <-time.After(within):
		require.FailNow(p.g.t, "process still runs", "%s after %s\n%s", p.id, within, tailOf(p.logTo, 3000))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.code
}

// term is SIGTERM and the wait for the end.
func (p *proc) term(within time.Duration) int {
	p.g.t.Helper()
	p.signal(syscall.SIGTERM)
	return p.exit(within)
}

func (p *proc) waitReady(within time.Duration) {
	p.g.t.Helper()
	c := p.client()
	eventually(p.g.t, within, "node "+p.id+" ready", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		return c.Ready(ctx)
	})
}

// client asks this node alone.
func (p *proc) client() *client.Client {
	return p.clientAs(p.g.opts.token)
}

// clientAs asks this node alone, with that token.
func (p *proc) clientAs(token string) *client.Client {
	p.g.t.Helper()
	c, err := client.New(client.Config{Addresses: []string{p.http}, Token: token})
	require.NoError(p.g.t, err)
	p.g.t.Cleanup(c.Close)
	return c
}

func newClient(t *testing.T, addresses ...string) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Addresses: addresses})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// client asks any node.
func (g *group) client() *client.Client {
	c, err := client.New(client.Config{Addresses: g.addresses(), Token: g.opts.token})
	require.NoError(g.t, err)
	g.t.Cleanup(c.Close)
	return c
}

func (g *group) addresses() []string {
	var out []string
	for _, p := range g.nodes {
		out = append(out, p.http)
	}
	return out
}

// leader is the process that leads, as a majority of the nodes that answer see it.
func (g *group) leader() *proc {
	g.t.Helper()
	var found *proc
	eventually(g.t, 15*time.Second, "a leader", func() error {
		votes := map[string]int{}
		for _, p := range g.nodes {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			s, err := p.client().Cluster(ctx)
			cancel()
			if err == nil && s.Leader != "" {
				votes[s.Leader]++
			}
		}
		for _, p := range g.nodes {
			if votes[p.id] > len(g.nodes)/2 || votes[p.id] > 0 && len(votes) == 1 {
				found = p
				return nil
			}
		}
		return fmt.Errorf("leaders seen: %v", votes)
	})
	return found
}

func (g *group) follower() *proc {
	l := g.leader()
	for _, p := range g.nodes {
		if p != l {
			return p
		}
	}
	return nil
}

// nextPort hands out ports below the range that the kernel gives outgoing connections, so that none is taken between the
// look and the start of the process that is to listen.
var nextPort atomic.Int64

func init() { nextPort.Store(int64(10_000 + os.Getpid()%997*20)) }

func freeAddr(t *testing.T) string {
	t.Helper()
	for range 10_000 {
		port := 10_000 + nextPort.Add(1)%22_000
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		l, err := net.Listen("tcp", addr)
		if err == nil {
			l.Close()
			return addr
		}
	}
	require.FailNow(t, "no free port")
	return ""
}

// eventually asks until f is content. It is for what another process does in its own time; the bound is the claim.
func eventually(t *testing.T, within time.Duration, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			require.FailNow(t, "not within "+within.String()+": "+what, "%v", err)
		}
		time.Sleep(25 * time.Millisecond)
	}
}

func tailOf(path string, n int) string {
	b, _ := os.ReadFile(path)
	if len(b) > n {
		b = b[len(b)-n:]
	}
	return string(bytes.ToValidUTF8(b, []byte("?")))
}

// run runs a penstock verb and gives its output; it fails the test on another exit code than want.
func (g *group) run(want int, stdin string, args ...string) (stdout, stderr string) {
	g.t.Helper()
	return runPenstock(g.t, want, stdin, append([]string{"--addr", strings.Join(g.addresses(), ",")}, args...)...)
}

func runPenstock(t *testing.T, want int, stdin string, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	_ = cmd.Run()
	require.Equal(t, want, cmd.ProcessState.ExitCode(), "penstock %s\nstdout: %s\nstderr: %s", strings.Join(args, " "), tailOfString(out.String()), tailOfString(errs.String()))
	return out.String(), errs.String()
}

func tailOfString(s string) string {
	if len(s) > 3000 {
		return "..." + s[len(s)-3000:]
	}
	return s
}

// freePortBase gives a base from which the ports of three dev nodes (base, base+1, base+2, then 10 further each) are free.
func freePortBase(t *testing.T) string {
	t.Helper()
next:
	for base := 17000 + os.Getpid()%1000*30; base < 60000; base += 40 {
		for i := range 3 {
			for j := range 4 {
				l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", base+10*i+j))
				if err != nil {
					continue next
				}
				l.Close()
			}
		}
		return fmt.Sprint(base)
	}
	require.FailNow(t, "no free ports")
	return ""
}

// post sends a raw request to the node and gives status and body; it fails the test when there is no answer at all.
func (p *proc) post(path, contentType string, body []byte) (status int, answer string) {
	p.g.t.Helper()
	return p.do(http.MethodPost, path, contentType, body)
}

func (p *proc) do(method, path, contentType string, body []byte) (status int, answer string) {
	p.g.t.Helper()
	req, err := http.NewRequest(method, "http://"+p.http+path, bytes.NewReader(body))
	require.NoError(p.g.t, err)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if p.g.opts.token != "" {
		req.Header.Set("Authorization", "Bearer "+p.g.opts.token)
	}
	return roundTrip(p.g.t, req)
}

// roundTrip gives the answer to a request on a connection of its own.
func roundTrip(t *testing.T, req *http.Request) (status int, answer string) {
	t.Helper()
	resp, err := (&http.Client{Timeout: 30 * time.Second}).Do(req)
	require.NoError(t, err, "%s %s", req.Method, req.URL)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b)
}
