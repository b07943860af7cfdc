package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/event"
)

// receiver is a webhook destination: it keeps what it gets and answers what it is told.
type receiver struct {
	t      *testing.T
	addr   string
	server *http.Server
	mu     struct {
		sync.Mutex
		status int
		got    []received
		held   chan struct{} // while not nil, answers wait for its close
	}
}

type received struct {
	header http.Header
	body   []byte
	status int
}

func startReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{t: t, addr: freeAddr(t)}
	r.mu.status = http.StatusOK
	r.listen()
	t.Cleanup(r.close)
	return r
}

// listen makes the destination reachable; close makes it refuse connections.
func (r *receiver) listen() {
	r.t.Helper()
	l, err := net.Listen("tcp", r.addr)
	require.NoError(r.t, err)
	r.server = &http.Server{Handler: r}
	go r.server.Serve(l)
}

func (r *receiver) close() { _ = r.server.Close() }

func (r *receiver) url() string { return "http://" + r.addr + "/hook" }

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	r.mu.Lock()
	status, held := r.mu.status, r.mu.held
	if err == nil {
		r.mu.got = append(r.mu.got, received{header: req.Header.Clone(), body: body, status: status})
	}
	r.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-req.Context().Done():
		}
	}
	w.WriteHeader(status)
}

func (r *receiver) answer(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.status = status
}

// hold makes the answers wait until release is called.
func (r *receiver) hold() (release func()) {
	held := make(chan struct{})
	r.mu.Lock()
	r.mu.held = held
	r.mu.Unlock()
	return sync.OnceFunc(func() {
		r.mu.Lock()
		r.mu.held = nil
		r.mu.Unlock()
		close(held)
	})
}

func (r *receiver) all() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]received{}, r.mu.got...)
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.mu.got)
}

// channelSpec is a channel's JSON with the given emitters.
func channelSpec(name, extra string, emitters ...string) []byte {
	if extra != "" {
		extra = ", " + extra
	}
	return fmt.Appendf(nil, `{"name":%q,"semantics":"at-least-once","order":"none"%s,"emitters":[%s]}`, name, extra, strings.Join(emitters, ","))
}

func webhookEmitter(name, url, extra string) string {
	if extra != "" {
		extra = ", " + extra
	}
	return fmt.Sprintf(`{"name":%q,"kind":"webhook","webhook":{"url":%q}%s}`, name, url, extra)
}

func fileEmitter(name, dir, extra string) string {
	if extra != "" {
		extra = ", " + extra
	}
	return fmt.Sprintf(`{"name":%q,"kind":"file","file":{"directory":%q}%s}`, name, dir, extra)
}

// deliveredFiles reads the files of a file emitter, united by name over all nodes, and gives the events by id with how often each stands there.
func deliveredFiles(t *testing.T, g *group, dir string) map[string]int {
	t.Helper()
	byName := map[string]string{}
	for _, p := range g.nodes {
		names, err := filepath.Glob(filepath.Join(p.dir, dir, "*.ndjson"))
		require.NoError(t, err)
		for _, n := range names {
			byName[filepath.Base(n)] = n
		}
	}
	ids := map[string]int{}
	for _, path := range byName {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		for line := range strings.SplitSeq(strings.TrimRight(string(b), "\n"), "\n") {
			e, err := event.ParseStructured([]byte(line))
			require.NoError(t, err, "%s", path)
			ids[e.ID]++
		}
	}
	return ids
}
