package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// TestB43AmbiguousOutcomesAreRepeatedOnce: forced leader changes by transfer, pause and kill; every non-2xx is repeated
// with the same ids; each id is stored once, and nothing that was called certain turns out otherwise.
func TestB43AmbiguousOutcomesAreRepeatedOnce(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "keyed", channelSpec("keyed", "", fileEmitter("files", "out", "")), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "keyed", g.addresses(), 6, 3)
	for i := range scale(t, 50, 6) {
		w.waitAcks(60, 15*time.Second)
		leader := g.leader()
		switch i % 3 {
		case 0:
			status, answer := leader.post("/v1/cluster/transfer", "application/json", []byte(`{}`))
			require.Equal(t, 200, status, answer)
		case 1:
			leader.signal(syscall.SIGSTOP)
			time.Sleep(time.Duration(scale(t, 5000, 2000)) * time.Millisecond)
			leader.signal(syscall.SIGCONT)
		case 2:
			leader.kill()
			leader.start()
			leader.waitReady(20 * time.Second)
		}
	}
	w.waitAcks(60, 15*time.Second)
	acked := w.halt()
	waitDelivered(t, c, "keyed", 40*time.Second)
	stored := checkStored(t, g, "keyed", acked)
	for _, s := range stored {
		require.True(t, w.mu.sent[s.id], "%s was never sent", s.id)
	}
	t.Logf("%d acknowledged, %d stored, %d unknown outcomes", len(acked), len(stored), w.unknown.Load())
}

// TestB45AnyTwoElectTheNewestLog: a power-off staggered by 200 ms; any majority that returns elects a leader with the
// newest log, in any order, again and again.
func TestB45AnyTwoElectTheNewestLog(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "power", channelSpec("power", ""), client.PutOptions{})
	require.NoError(t, err)
	orders := [][]int{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}, {1, 0, 2}, {0, 2, 1}}
	w := startWriters(t, "power", g.addresses(), 3, 3)
	for round := range scale(t, 20, 6) {
		w.waitAcks(30, 20*time.Second)
		before, err := c.Cluster(context.Background())
		require.NoError(t, err)
		for i, p := range g.nodes {
			if i == 1 {
				time.Sleep(200 * time.Millisecond)
			}
			p.kill()
		}
		order := orders[round%len(orders)]
		acks := w.count()
		for _, i := range order[:2] {
			g.nodes[i].start()
		}
		eventually(t, 15*time.Second, "acks by two of three", func() error {
			if n := w.count() - acks; n < 30 {
				return fmt.Errorf("%d acks", n)
			}
			return nil
		})
		g.nodes[order[2]].start()
		g.nodes[order[2]].waitReady(20 * time.Second)
		after, err := c.Cluster(context.Background())
		require.NoError(t, err)
		require.LessOrEqual(t, after.Term, before.Term+5, "terms do not climb")
	}
	checkStored(t, g, "power", w.halt())
}

// TestB48ShutdownEndsInTime: idle keep-alive clients, a slow upload and a hanging webhook do not keep the process; the
// upload gets a definite answer, readiness goes false first, and a second signal speeds it up.
func TestB48ShutdownEndsInTime(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{drain: "8s"})
	c := g.client()
	hang := make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang })}
	go server.Serve(l)
	t.Cleanup(func() { close(hang); server.Close() })
	_, err = c.PutChannel(context.Background(), "stop", channelSpec("stop", "", webhookEmitter("hang", "http://"+l.Addr().String(), "")), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "stop", g.addresses(), 2, 2)
	w.waitAcks(50, 10*time.Second)

	once := stopUnderLoad(t, g, c, false)
	hurried := stopUnderLoad(t, g, c, true)
	t.Logf("stopped in %s, with a second signal in %s", once.Round(time.Millisecond), hurried.Round(time.Millisecond))
	require.Less(t, hurried, once, "the second signal speeds it up")

	// SIGTERM during start-up: a clean stop as well.
	p := g.follower()
	p.kill()
	before, err := os.Stat(p.logTo)
	require.NoError(t, err)
	p.start()
	eventually(t, 5*time.Second, "the start has begun", func() error {
		if now, err := os.Stat(p.logTo); err != nil || now.Size() == before.Size() {
			return fmt.Errorf("no line yet (%v)", err)
		}
		return nil
	})
	require.Equal(t, 0, p.term(10*time.Second), tailOf(p.logTo, 3000))
	p.start()
	p.waitReady(20 * time.Second)
	checkStored(t, g, "stop", w.halt())
}

// stopUnderLoad stops the owner of the hanging emitter with idle clients and a slow upload on it, once more when hurry is
// set, and starts it again. It gives the time the stop took.
func stopUnderLoad(t *testing.T, g *group, c *client.Client, hurry bool) time.Duration {
	t.Helper()
	waitOwned(t, c, "stop")
	ledger, err := c.Ledger(context.Background(), "stop")
	require.NoError(t, err)
	owner := g.byID(ledger.Emitters[0].Owner)
	owner.waitReady(10 * time.Second)
	for range 20 {
		conn, err := net.Dial("tcp", owner.http)
		require.NoError(t, err)
		defer conn.Close()
		fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	upload, err := net.Dial("tcp", owner.http)
	require.NoError(t, err)
	defer upload.Close()
	fmt.Fprintf(upload, "POST /v1/channels/stop/events HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{\"slow\":")
	time.Sleep(200 * time.Millisecond)

	start := time.Now()
	owner.signal(syscall.SIGTERM)
	eventually(t, 2*time.Second, "unready before the end", func() error {
		resp, err := http.Get("http://" + owner.http + "/readyz")
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusServiceUnavailable {
			return fmt.Errorf("%s", resp.Status)
		}
		return nil
	})
	select {
	case <-owner.done:
		require.Fail(t, "the process had ended when it was last seen unready")
	default:
	}
	if hurry {
		owner.signal(syscall.SIGTERM)
	}
	require.Equal(t, 0, owner.exit(10*time.Second), "drain deadline plus 2 s: %s", tailOf(owner.logTo, 3000))
	took := time.Since(start)
	answer := make([]byte, 4096)
	upload.SetReadDeadline(time.Now().Add(time.Second))
	n, _ := upload.Read(answer)
	require.Contains(t, string(answer[:n]), " 503 ", "the upload got a definite answer")
	owner.start()
	owner.waitReady(20 * time.Second)
	return took
}

// TestB49BadSettingsEndTheStartWithOneLine: each names the setting and what is allowed, within 3 s, and leaves nothing
// behind that would block the next good start.
func TestB49BadSettingsEndTheStartWithOneLine(t *testing.T) {
	t.Parallel()
	g := newGroup(t, options{})
	p := g.nodes[0]
	good, err := os.ReadFile(p.config)
	require.NoError(t, err)
	replace := func(old, new string) string {
		require.Contains(t, string(good), old)
		return strings.Replace(string(good), old, new, 1)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	advertise := func(a string) string { return replace("debug: \"\"", `debug: "", advertise: "`+a+`"`) }
	timers := func(heartbeat, election, lease string) string {
		return replace("  name: e2e\n", "  name: e2e\n  heartbeat: "+heartbeat+"\n  election: "+election+"\n  lease: "+lease+"\n")
	}
	for name, v := range map[string]struct {
		config string
		says   []string // the key, the value, what is allowed
	}{
		"advertise 0.0.0.0":      {advertise("0.0.0.0:7071"), []string{"node.advertise", `"0.0.0.0:7071"`, "want a name or address"}},
		"advertise [::]":         {advertise("[::]:7071"), []string{"node.advertise", `"[::]:7071"`, "want a name or address"}},
		"advertise empty":        {advertise(""), []string{"node.advertise", `""`, "want host:port"}},
		"advertise no host":      {advertise(":7071"), []string{"node.advertise", `":7071"`, "want a name or address"}},
		"advertise unknown":      {advertise("no-such-host.invalid:7071"), []string{"node.advertise", `"no-such-host.invalid:7071"`, "want a name that resolves"}},
		"bare number":            {replace("drain: 10s", "drain: 30"), []string{"drain", `"30"`, "unit"}},
		"unknown unit":           {replace("drain: 10s", "drain: 5seconds"), []string{"drain", `"5seconds"`, "units h, m, s"}},
		"negative":               {replace("drain: 10s", "drain: -1s"), []string{"drain", `"-1s"`, "negative"}},
		"zero":                   {replace("drain: 10s", "drain: 0"), []string{"drain", `"0"`, "1s to 1h"}},
		"heartbeat 30s lease 1s": {timers("30s", "30s", "1s"), []string{"cluster.lease", `"1s"`, "15s to 30s"}},
		"lease over heartbeat":   {timers("1s", "1s", "30s"), []string{"cluster.lease", `"30s"`, "500ms to 1s"}},
		"election too short":     {timers("2s", "1s", "2s"), []string{"cluster.election", `"1s"`, "at least cluster.heartbeat (2s)"}},
		"unknown key":            {replace("drain: 10s", "drian: 10s"), []string{"drian", `"10s"`, "drain"}},
		"port in use":            {strings.Replace(string(good), p.http, taken.Addr().String(), 1), []string{"node.http", taken.Addr().String(), "in use"}},
		"storage s3":             {replace("storage: clustered", "storage: s3"), []string{"wal.storage", `"s3"`, "want clustered or disk"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(p.config, []byte(v.config), 0o600))
			require.NoError(t, os.WriteFile(p.logTo, nil, 0o600))
			p.start()
			require.NotZero(t, p.exit(3*time.Second))
			_, said, found := strings.Cut("\n"+tailOf(p.logTo, 4000), "\npenstock: ")
			require.True(t, found, tailOf(p.logTo, 4000))
			require.Equal(t, 1, strings.Count(said, "\n"), "one line: %s", said)
			for _, part := range v.says {
				require.Contains(t, said, part)
			}
		})
	}
	require.NoError(t, os.WriteFile(p.config, good, 0o600))
	for _, n := range g.nodes {
		n.start()
	}
	for _, n := range g.nodes {
		n.waitReady(20 * time.Second)
	}
}

// TestS05LeftOverLockDoesNotBlock: after SIGKILL the lock is free, whoever has the old pid now; a second live process on
// the same directory is refused with exit 12.
func TestS05LeftOverLockDoesNotBlock(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{nodes: 1, single: true})
	p := g.nodes[0]
	second := command("server", "--config", p.config)
	out, _ := second.CombinedOutput()
	require.Equal(t, 12, second.ProcessState.ExitCode(), "%s", out)
	require.NoError(t, p.client().Ready(context.Background()), "the first is undisturbed")
	p.kill()
	// This very process takes over the pid that a lock file might name.
	for _, f := range []string{"lock", "LOCK", "penstock.lock"} {
		if _, err := os.Stat(p.dir + "/" + f); err == nil {
			require.NoError(t, os.WriteFile(p.dir+"/"+f, fmt.Appendf(nil, "%d\n", os.Getpid()), 0o600))
		}
	}
	p.start()
	p.waitReady(10 * time.Second)
}
