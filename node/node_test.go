package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"penstock/cluster"
	"penstock/dlq"
	"penstock/fsm"
	"penstock/internal/spec"
	"penstock/node/config"
	"penstock/wal"
)

// memberlist's Shutdown does not wait for a probe under way, which ends by itself at its time-out.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).triggerFunc"))
}

func freeAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// single is the configuration of a cluster of one.
func single(t *testing.T) config.Config {
	c := config.Default()
	c.Node.ID, c.Node.DataDir, c.Node.Debug = "n1", t.TempDir(), ""
	c.Node.HTTP, c.Node.Raft, c.Node.Gossip = freeAddr(t), freeAddr(t), freeAddr(t)
	c.WAL.Storage, c.WAL.SegmentBytes = config.StorageDisk, 1<<20
	c.Drain = spec.Duration(10 * time.Second)
	return c
}

// running is a node that runs in this process.
type running struct {
	t      *testing.T
	cfg    config.Config
	stop   context.CancelFunc
	hurry  chan struct{}
	done   chan error
	stdout bytes.Buffer
	log    bytes.Buffer
}

// start runs a node and waits until it is ready.
func start(t *testing.T, cfg config.Config) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, cfg: cfg, stop: cancel, hurry: make(chan struct{}), done: make(chan error, 1)}
	ready := make(chan Info, 1)
	go func() {
		r.done <- Run(ctx, cfg, Options{
			Logger: slog.New(slog.NewTextHandler(&r.log, nil)), Stdout: &r.stdout, Hurry: r.hurry, Ready: func(i Info) { ready <- i },
			Fatal: func(code int, err error) { t.Errorf("fatal %d: %v", code, err) },
		})
	}()
	select {
	case info := <-ready:
		require.Equal(t, Info{NodeID: "n1", HTTP: cfg.Node.HTTP}, info)
	case err := <-r.done:
		require.NoError(t, err, "the node ended before it was ready")
	case <-time.After(20 * time.Second):
		require.Fail(t, "not ready")
	}
	return r
}

// wait is what Run returned.
func (r *running) wait() error {
	r.t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(30 * time.Second):
		require.Fail(r.t, "the node does not stop")
		return nil
	}
}

func (r *running) request(method, path, contentType string, body io.Reader) (int, string) {
	r.t.Helper()
	req, err := http.NewRequest(method, "http://"+r.cfg.Node.HTTP+path, body)
	require.NoError(r.t, err)
	req.Header.Set("Content-Type", contentType)
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	return resp.StatusCode, string(b)
}

func (r *running) putChannel(name string) {
	r.t.Helper()
	code, body := r.request("PUT", "/v1/channels/"+name, "application/json",
		strings.NewReader(`{"semantics":"at-least-once","order":"none","emitters":[{"name":"out","kind":"stdout"}]}`))
	require.Equal(r.t, 200, code, body)
}

func (r *running) marker() bool {
	_, err := os.Stat(filepath.Join(r.cfg.Node.DataDir, cleanStopName))
	return err == nil
}

func TestANodeThatStopsCleanKeepsWhatItAcknowledged(t *testing.T) {
	cfg := single(t)
	r := start(t, cfg)
	require.False(t, r.marker(), "a running node has no marker")
	r.putChannel("orders")
	code, body := r.request("POST", "/v1/channels/orders/events", "application/x-ndjson", strings.NewReader("1\n2\n3\n"))
	require.Equal(t, 200, code, body)
	r.stop()
	require.NoError(t, r.wait())
	require.True(t, r.marker())
	require.Contains(t, r.log.String(), `msg="node started"`)
	require.Contains(t, r.log.String(), "fresh=true")
	require.NotContains(t, r.log.String(), "unclean=", "the first start follows no stop")

	r = start(t, cfg)
	require.False(t, r.marker(), "a crash from here on counts as unclean")
	code, body = r.request("GET", "/v1/channels/orders/ledger", "", nil)
	require.Equal(t, 200, code)
	var ledger struct {
		Accepted uint64
		Balanced bool
	}
	require.NoError(t, json.Unmarshal([]byte(body), &ledger))
	require.Equal(t, uint64(3), ledger.Accepted)
	require.True(t, ledger.Balanced)
	_, metrics := r.request("GET", "/metrics", "", nil)
	require.Contains(t, metrics, `penstock_fsm_ledger_balanced{channel="orders"} 1`)
	require.Contains(t, metrics, `penstock_fsm_accepted_events_total{channel="orders"} 3`)
	r.stop()
	require.NoError(t, r.wait())
	require.Contains(t, r.log.String(), "unclean=false")
	require.NotContains(t, r.log.String(), "fresh=")
}

// A short drain has to cut sooner, not to fail: an upload that never ends costs its client a 503 and the node nothing.
func TestAnUploadThatNeverEndsDoesNotFailADrain(t *testing.T) {
	for name, end := range map[string]struct {
		drain time.Duration
		act   func(*running)
	}{
		"short drain":   {time.Second, func(r *running) { r.stop() }},
		"second signal": {time.Minute, func(r *running) { r.stop(); close(r.hurry) }},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := single(t)
			cfg.Drain = spec.Duration(end.drain)
			r := start(t, cfg)
			r.putChannel("orders")
			upload, w := io.Pipe()
			defer w.Close()
			type result struct {
				code int
				body string
			}
			got := make(chan result, 1)
			go func() {
				code, body := r.request("POST", "/v1/channels/orders/events", "application/x-ndjson", upload)
				got <- result{code, body}
			}()
			_, err := io.WriteString(w, "1\n") // returns once the request is on its way
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				_, body := r.request("GET", "/metrics", "", nil)
				return strings.Contains(body, `penstock_node_in_flight_requests 1`)
			}, 5*time.Second, 5*time.Millisecond)
			begin := time.Now()
			end.act(r)
			answer := <-got
			require.Equal(t, 503, answer.code, answer.body)
			require.Contains(t, answer.body, `"committed":"no"`)
			require.NoError(t, r.wait())
			require.True(t, r.marker())
			require.Less(t, time.Since(begin), 10*time.Second)
		})
	}
}

func TestADirectoryInUseIsRefused(t *testing.T) {
	cfg := single(t)
	r := start(t, cfg)
	second := cfg
	second.Node.HTTP, second.Node.Raft, second.Node.Gossip = freeAddr(t), freeAddr(t), freeAddr(t)
	err := Run(context.Background(), second, Options{Logger: slog.New(slog.DiscardHandler)})
	require.Equal(t, ExitInUse, ExitCode(err), "%v", err)
	r.stop()
	require.NoError(t, r.wait())
}

func TestAPortInUseEndsTheStartAndGivesEverythingBack(t *testing.T) {
	cfg := single(t)
	l, err := net.Listen("tcp", cfg.Node.HTTP)
	require.NoError(t, err)
	err = Run(context.Background(), cfg, Options{Logger: slog.New(slog.DiscardHandler)})
	require.ErrorContains(t, err, "node.http")
	require.Equal(t, 1, ExitCode(err))
	require.NoError(t, l.Close())
	r := start(t, cfg) // the lock, the ports and the files are free
	r.stop()
	require.NoError(t, r.wait())
}

// opened is a node whose parts are open and that serves nothing.
func opened(t *testing.T, cfg config.Config) *Node {
	n, err := open(cfg, Options{Logger: slog.New(slog.DiscardHandler), Stdout: io.Discard, Fatal: func(code int, err error) {
		t.Errorf("fatal %d: %v", code, err)
	}}.withDefaults(cfg))
	require.NoError(t, err)
	return n
}

// A listener that fails ends the node, but not what it has accepted.
func TestAFailedListenerIsDrainedLikeASignal(t *testing.T) {
	cfg := single(t)
	n := opened(t, cfg)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	broken := errors.New("too many open files, for good")
	err = n.serve(context.Background(), &failing{Listener: l, err: broken})
	require.ErrorIs(t, err, broken)
	require.Equal(t, 1, ExitCode(err))
	require.FileExists(t, filepath.Join(cfg.Node.DataDir, cleanStopName), "nothing was left undone")
}

type failing struct {
	net.Listener
	err error
}

func (f *failing) Accept() (net.Conn, error) { return nil, f.err }

func TestADrainThatCannotCommitOutcomesFailsWithoutAMarker(t *testing.T) {
	cfg := single(t)
	cfg.Drain = spec.Duration(50 * time.Millisecond)
	n := opened(t, cfg)
	never := make(chan struct{})
	err := n.drain(&http.Server{}, func() {}, never)
	require.Equal(t, ExitDrainFailed, ExitCode(err))
	require.ErrorContains(t, err, "commit known outcomes")
	require.NoFileExists(t, filepath.Join(cfg.Node.DataDir, cleanStopName))
	lock, err := cluster.LockDir(cfg.Node.DataDir)
	require.NoError(t, err, "the directory is given up all the same")
	require.NoError(t, lock.Unlock())
}

func TestADrainBeforeTheNodeIsReadyIsClean(t *testing.T) {
	cfg := single(t)
	cfg.WAL.Storage, cfg.Cluster.Seeds = config.StorageClustered, []string{cfg.Node.Gossip, freeAddr(t)} // a peer that never comes
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg, Options{Logger: slog.New(slog.DiscardHandler)}) }()
	require.Eventually(t, func() bool {
		resp, err := http.Get("http://" + cfg.Node.HTTP + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == 503
	}, 10*time.Second, 10*time.Millisecond)
	cancel()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		require.Fail(t, "it does not stop")
	}
	require.FileExists(t, filepath.Join(cfg.Node.DataDir, cleanStopName))
	http.DefaultClient.CloseIdleConnections()
}

// The marker says that nothing was left undone, so it is written when everything is closed, and while the directory is still
// this node's: the next one takes it away when it locks the directory.
func TestTheMarkerIsWrittenBeforeTheDirectoryIsGivenUp(t *testing.T) {
	cfg := single(t)
	n := opened(t, cfg)
	require.NoError(t, n.closeParts())
	_, err := cluster.LockDir(cfg.Node.DataDir)
	require.Error(t, err, "closed, and still locked")
	require.NoFileExists(t, filepath.Join(cfg.Node.DataDir, cleanStopName))
	require.NoError(t, n.leave(nil))
	clean, err := takeCleanStop(cfg.Node.DataDir)
	require.NoError(t, err)
	require.True(t, clean)
	lock, err := cluster.LockDir(cfg.Node.DataDir)
	require.NoError(t, err)
	require.NoError(t, lock.Unlock())
}

func TestTheMarkerIsTakenOnce(t *testing.T) {
	dir := t.TempDir()
	clean, err := takeCleanStop(dir)
	require.NoError(t, err)
	require.False(t, clean)
	require.NoError(t, leaveCleanStop(dir))
	require.NoError(t, leaveCleanStop(dir))
	clean, err = takeCleanStop(dir)
	require.NoError(t, err)
	require.True(t, clean)
	clean, err = takeCleanStop(dir)
	require.NoError(t, err)
	require.False(t, clean)
	require.Error(t, leaveCleanStop(filepath.Join(dir, "none")))
}

func TestExitCodesSayWhatHappened(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{exitWith(ExitDrainFailed, "drain failed", errors.New("x")), 14},
		{fmt.Errorf("wrapped: %w", &ExitError{Code: ExitDiskFault, Err: errors.New("x")}), 10},
		{startError("data directory", &cluster.ExitError{Code: cluster.ExitInUse, Err: cluster.ErrInUse}), 12},
		{startError("cluster", fmt.Errorf("x: %w", &cluster.ExitError{Code: cluster.ExitForeign, Err: cluster.ErrWiped})), 11},
		{startError("log", fmt.Errorf("x: %w", wal.ErrTooNew)), 13},
		{startError("state", errors.New("x")), 1},
		{startError("state", fmt.Errorf("%w: %w", errors.New("malformed"), errState)), 10},
		{startError("state", fmt.Errorf("x: %w", &fsm.ErrTooNew{Version: 9})), 13},
		{startError("state", &os.PathError{Op: "read", Path: "fsm.db", Err: syscall.EIO}), 10},
		{startError("dead letters", fmt.Errorf("x: %w", dlq.ErrForeign)), 11},
		{errors.Join(errors.New("serve HTTP"), exitWith(ExitDrainFailed, "drain failed", errors.New("x"))), 14},
	} {
		require.Equal(t, c.code, ExitCode(c.err), "%v", c.err)
	}
}

func TestFilesOfALaterVersionAreTooNewWhicheverTheyAre(t *testing.T) {
	for _, too := range tooNew {
		require.Equal(t, ExitTooNew, ExitCode(startError("x", fmt.Errorf("y: %w", too))), "%v", too)
	}
}
