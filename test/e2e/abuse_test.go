package e2e

import (
	"bytes"
	"context"
	le "encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// abuse is a cluster with tokens, an honest producer, and one who is not.
type abuse struct {
	*group
	k      *keys
	t      *testing.T
	honest atomic.Int64 // events acknowledged to the honest producer
	base   float64      // of them a second, while nobody does anything
}

// attackFrom is another address of the loopback network than that of the honest.
var attackFrom = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}

func (a *abuse) dial(addr string) (net.Conn, error) {
	return (&net.Dialer{LocalAddr: attackFrom, Timeout: 5 * time.Second}).Dial("tcp", addr)
}

// produce sends 100 events a second through all nodes until the test ends.
func (a *abuse) produce() {
	c, err := client.New(client.Config{Addresses: a.addresses(), Token: a.k.tokens["producer"]})
	require.NoError(a.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			tick := time.NewTicker(40 * time.Millisecond)
			defer tick.Stop()
			for i := 0; ; i++ {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
				if _, err := c.Send(ctx, "orders", batch(fmt.Sprintf("honest-%d", w), i, 1), batchType, client.SendOptions{}); err == nil {
					a.honest.Add(1)
				}
			}
		})
	}
	a.t.Cleanup(func() { cancel(); wg.Wait(); c.Close() })
}

// rate is that of the honest producer over a while.
func (a *abuse) rate(d time.Duration) float64 {
	before, start := a.honest.Load(), time.Now()
	time.Sleep(d) // a rate is over time
	return float64(a.honest.Load()-before) / time.Since(start).Seconds()
}

// row runs one row of the table while the honest producer works: it must keep half of its rate.
func (a *abuse) row(name string, attack func(t *testing.T, stop <-chan struct{})) {
	a.t.Run(name, func(t *testing.T) {
		stop, measured := make(chan struct{}), make(chan float64, 1)
		go func() {
			measured <- a.rate(time.Duration(scale(t, 10, 2)) * time.Second)
			close(stop)
		}()
		attack(t, stop)
		<-stop
		rate := <-measured
		t.Logf("honest producer: %.0f events a second, %.0f alone", rate, a.base)
		// Half of it; in the short form, on a machine that does other things as well, a quarter of what it has alone right after.
		share, alone := 0.5, a.base
		if os.Getenv("PENSTOCK_FULL") == "" {
			share = 0.25
		}
		if rate < share*alone {
			alone = min(alone, a.rate(2*time.Second))
		}
		require.GreaterOrEqual(t, rate, share*alone, "the honest producer lost too much of its rate to the attack (%.0f right after)", alone)
	})
}

func until(stop <-chan struct{}, do func(i int)) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
			do(i)
		}
	}
}

// raw sends bytes on a connection of its own and gives the first line of the answer, "" when it is closed without one.
func (a *abuse) raw(t *testing.T, addr string, send ...[]byte) string {
	t.Helper()
	c, err := a.dial(addr)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	go func() {
		for _, b := range send {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}()
	b := make([]byte, 4096)
	n, err := io.ReadAtLeast(c, b, 12)
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Errorf("%s: no answer and no end within 20 s", addr)
	}
	line, _, _ := bytes.Cut(b[:n], []byte("\r\n"))
	return string(line)
}

// TestAbuse is rows 1, 3, 7, 8, 9, 10, 14, 16, 17 and 18 of the vulnerabilities of our peers (bombs also in TestB53): each is tried by
// somebody from another address while an honest producer works.
func TestAbuse(t *testing.T) {
	g, k := startGuarded(t, options{}, oneOfEach)
	a := &abuse{group: g, k: k, t: t}
	_, err := g.client().PutChannel(context.Background(), "orders", channelSpec("orders", ""), client.PutOptions{})
	require.NoError(t, err)
	a.produce()
	a.rate(time.Second)
	a.base = a.rate(2 * time.Second)
	require.Greater(t, a.base, 10.0)
	before, err := g.client().Cluster(context.Background())
	require.NoError(t, err)

	a.row("1 hostile names", a.hostileNames)
	a.row("3 bombs before authentication", a.bombsUnknown)
	a.row("7 protocol abuse", a.protocolAbuse)
	a.row("8 connections that say nothing", a.slowloris)
	a.row("9 deep JSON", a.deepJSON)
	a.row("10 nobody holds what is scarce", a.nobodyHolds)
	a.row("14 frames before the handshake", a.frames)
	a.row("16 wrong types", a.wrongTypes)
	a.row("17 labels", a.labels)
	a.row("18 bodies without bound", a.bigBodies)

	after, err := g.client().Cluster(context.Background())
	require.NoError(t, err)
	require.Equal(t, before.Term, after.Term, "no election")
	for _, p := range g.nodes {
		_, text := p.ask(k.tokens["viewer"], "GET", "/metrics", "")
		require.Contains(t, text, "\npenstock_node_panics_total 0\n", p.id)
		a.linesAreJSON(p.logTo)
	}
	ledger, err := g.client().Ledger(context.Background(), "orders")
	require.NoError(t, err)
	require.True(t, ledger.Balanced)
	require.GreaterOrEqual(t, ledger.Accepted, uint64(a.honest.Load()))
}

func (a *abuse) linesAreJSON(path string) {
	b, err := os.ReadFile(path)
	require.NoError(a.t, err)
	for line := range bytes.Lines(b) {
		require.True(a.t, json.Valid(line), "%s: %q", path, line)
	}
}

// Row 1: names that come with events never become file names, and never break a line of a dead letter or of the log.
func (a *abuse) hostileNames(t *testing.T, stop <-chan struct{}) {
	ctx, c := context.Background(), a.client()
	refused := webhookEmitter("hook", "http://127.0.0.1:1/", `"retry":{"max_attempts":1}`)
	_, err := c.PutChannel(ctx, "hostile", channelSpec("hostile", "", fileEmitter("files", "out", ""), refused), client.PutOptions{})
	require.NoError(t, err)
	names := []string{
		"../../../../evil", "/etc/evil", "evil\x00evil", "evil\nevil\r\n{\"level\":\"ERROR\"}", strings.Repeat("evil", 1000), "evil\u202eexe.evil", "..%2f..%2fevil",
		"evil;rm -rf /", "${file:/etc/passwd}evil", "CON.evil", "ｅvil／..／evil", "\ufeffevil", "-evil", ".evil",
	}
	accepted := 0
	for i, name := range names {
		body, err := json.Marshal([]map[string]any{{"specversion": "1.0", "id": name + fmt.Sprint(i), "source": name, "type": name, "subject": name, "partitionkey": name, "data": name}})
		require.NoError(t, err)
		status, answer := a.nodes[i%3].post("/v1/channels/hostile/events", batchType, body)
		require.Contains(t, []int{200, 400}, status, answer)
		if status == 200 {
			accepted++
		}
		req, err := http.NewRequest("GET", "http://"+a.nodes[0].http+"/v1/channels/hostile/offsets", nil)
		require.NoError(t, err)
		req.URL.Path += "/" + name + "/" + name
		req.Header.Set("Authorization", "Bearer "+a.k.tokens["viewer"])
		status, answer = roundTrip(t, req)
		require.Contains(t, []int{301, 307, 400, 404, 405}, status, "%q: %s", name, answer)
	}
	require.Greater(t, accepted, 5)
	eventually(t, 20*time.Second, "files are written, and some of the webhook's are dead", func() error {
		l, err := c.Ledger(ctx, "hostile")
		if err != nil {
			return err
		}
		for _, e := range l.Emitters {
			if e.Emitter == "files" && e.Pending > 0 || e.Emitter == "hook" && e.Dead < 3 {
				return fmt.Errorf("%+v", e)
			}
		}
		return nil
	})
	for _, p := range a.nodes {
		for _, dir := range []string{p.dir, p.dlq} {
			require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err == nil && strings.Contains(strings.TrimPrefix(path, a.dir), "vil") {
					t.Errorf("a name became a file: %q", path)
				}
				if err == nil && strings.HasSuffix(path, ".jsonl") {
					a.linesAreJSON(path)
				}
				return err
			}))
		}
	}
	<-stop
}

// Row 3, and what goes before it: whoever is nobody is answered before a byte of the body is decoded.
func (a *abuse) bombsUnknown(t *testing.T, stop <-chan struct{}) {
	bomb := gzipOf(t, 64<<20)
	rss := a.nodes[0].rss()
	until(stop, func(i int) {
		for _, token := range []string{"", "pst_wrong_wrong_wrong_wrong_wrong"} {
			status, answer := a.bomb(t, a.nodes[0], token, "gzip", bomb)
			require.Equal(t, 401, status, answer)
		}
	})
	require.Less(t, a.nodes[0].rss()-rss, int64(64<<20))
}

// Row 7: HTTP/2 where none is spoken, chunk extensions, endless headers, and tokens of a megabyte.
func (a *abuse) protocolAbuse(t *testing.T, stop <-chan struct{}) {
	p := a.nodes[0].http
	rss := a.nodes[0].rss()
	preface := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	continuation := bytes.Repeat([]byte{0, 0, 1, 9, 0, 0, 0, 0, 1, 'x'}, 100_000) // CONTINUATION of a stream, without an end
	head := "POST /v1/channels/orders/events HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer " + a.k.tokens["producer"] + "\r\n"
	until(stop, func(i int) {
		require.NotContains(t, a.raw(t, p, preface, continuation), " 200 ")
		require.NotContains(t, a.raw(t, p, []byte("GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n")), " 101 ")
		extensions := strings.Repeat("1;"+strings.Repeat("e", 4000)+"\r\n1\r\n", 500)
		require.NotContains(t, a.raw(t, p, []byte(head+"Transfer-Encoding: chunked\r\n\r\n"), []byte(extensions), []byte("0\r\n\r\n")), " 200 ")
		huge := bytes.Repeat([]byte("X-A: "+strings.Repeat("a", 1000)+"\r\n"), 64<<10)
		require.Contains(t, []string{"HTTP/1.1 431 Request Header Fields Too Large", ""}, a.raw(t, p, []byte("GET /healthz HTTP/1.1\r\nHost: x\r\n"), huge))
		dots := a.raw(t, p, []byte("GET /v1/cluster HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "), bytes.Repeat([]byte("."), 1<<20), []byte("\r\n\r\n"))
		require.Contains(t, []string{"HTTP/1.1 431 Request Header Fields Too Large", ""}, dots)
		require.Contains(t, a.raw(t, p, []byte("GET /v1/cluster HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+strings.Repeat(".", 50_000)+"\r\n\r\n")), " 401 ")
	})
	require.Less(t, a.nodes[0].rss()-rss, int64(96<<20))
}

// Row 8: thousands of connections to the clients' port and to Raft's that say nothing, or a byte now and then.
func (a *abuse) slowloris(t *testing.T, stop <-chan struct{}) {
	p := a.nodes[0]
	leader := a.leader()
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	for i := range 1500 {
		for _, addr := range []string{p.http, leader.raft, leader.gossip} {
			c, err := a.dial(addr)
			if err != nil {
				continue // it does not take any more of them
			}
			held = append(held, c)
			if addr == p.http {
				fmt.Fprintf(c, "POST /v1/channels/orders/events HTTP/1.1\r\nHost: x%d\r\nX-", i)
			}
		}
	}
	<-stop
	// The honest still get new connections, and health answers.
	status, answer := p.ask("", "GET", "/healthz", "")
	require.Equal(t, 200, status, answer)
	// A header that does not come is given up.
	c, err := net.Dial("tcp", p.http)
	require.NoError(t, err)
	defer c.Close()
	fmt.Fprint(c, "GET /healthz HTTP/1.1\r\n")
	require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err = io.ReadAll(c)
	require.False(t, os.IsTimeout(err), "closed within 20 s")
}

// Row 9: nested JSON and very many keys, on every route that reads JSON.
func (a *abuse) deepJSON(t *testing.T, stop <-chan struct{}) {
	deep := func(n int, open, shut string) string { return strings.Repeat(open, n) + strings.Repeat(shut, n) }
	keys := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"k%d":1,`, i)
		}
		return "{" + b.String() + `"z":1}`
	}
	root := a.k.tokens["root"]
	until(stop, func(i int) {
		p := a.nodes[i%3]
		for _, body := range []string{deep(500_000, "[", "]"), deep(150_000, `{"a":`, "}"), deep(1_000_000, "[", "")} {
			start := time.Now()
			status, answer := p.ask(root, "POST", "/v1/channels/orders/events", body)
			require.Equal(t, 400, status, answer)
			require.Less(t, time.Since(start), 5*time.Second)
		}
		for _, route := range []string{"PUT /v1/channels/deep", "POST /v1/cluster/members", "POST /v1/dlq/replay", "POST /v1/emitters/a/b/pause"} {
			method, path, _ := strings.Cut(route, " ")
			for _, body := range []string{deep(30_000, "[", "]"), deep(10_000, `{"a":`, "}"), `{"name":` + deep(20_000, "[", "]") + "}", keys(4000)} {
				status, answer := p.ask(root, method, path, body)
				require.Contains(t, []int{400, 404, 413}, status, "%s %.40s: %s", route, body, answer)
			}
		}
	})
}

// Row 10: however many unknown callers ask for what only a few may do at once, those who may do it are answered.
func (a *abuse) nobodyHolds(t *testing.T, stop <-chan struct{}) {
	p := a.nodes[1]
	paths := []string{
		"GET /v1/events/none", "GET /v1/channels/orders/events?wait=60s", "POST /v1/dlq/replay", "POST /v1/cluster/transfer",
		"POST /v1/cluster/snapshot", "DELETE /v1/cluster/members/n1", "GET /v1/dlq/export", "POST /v1/channels/orders/events",
	}
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			until(stop, func(i int) {
				method, path, _ := strings.Cut(paths[(w+i)%len(paths)], " ")
				// A body that never comes to its end.
				line := a.raw(t, p.http, fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{", method, path))
				if !strings.Contains(line, " 401 ") {
					t.Errorf("%s %s: %q", method, path, line)
				}
				time.Sleep(50 * time.Millisecond) // the flood is of those at once, not of the machine
			})
		})
	}
	until(stop, func(int) {
		start := time.Now()
		status, answer := p.ask(a.k.tokens["viewer"], "GET", "/v1/events/none", "")
		require.Equal(t, 404, status, answer)
		status, answer = p.ask(a.k.tokens["operator"], "POST", "/v1/dlq/replay", `{"ids":["none"]}`)
		require.Equal(t, 200, status, answer)
		require.Less(t, time.Since(start), 10*time.Second)
	})
	wg.Wait()
}

// peerHeader is the header of a connection between nodes, docs/format/cluster.md.
func peerHeader(kind byte, cluster []byte, from, to string) []byte {
	b := make([]byte, 30, 30+len(from)+len(to))
	copy(b, "PSTK")
	b[4], b[5] = 1, kind
	copy(b[8:24], cluster)
	b[24], b[25] = byte(len(from)), byte(len(to))
	b = append(append(b, from...), to...)
	table := crc32.MakeTable(crc32.Castagnoli)
	le.LittleEndian.PutUint32(b[26:], crc32.Update(crc32.Checksum(b[:26], table), table, b[30:]))
	return b
}

// Row 14: whatever comes to the ports between nodes before a header that names this cluster and node is not looked at.
func (a *abuse) frames(t *testing.T, stop <-chan struct{}) {
	random := rand.New(rand.NewPCG(1, 2))
	leader := a.leader()
	accepted := func() uint64 {
		l, err := a.client().Ledger(context.Background(), "orders")
		require.NoError(t, err)
		return l.Accepted
	}
	from := accepted()
	request := func(method, body string) []byte {
		b := le.LittleEndian.AppendUint32(nil, uint32(16+len(method)+len(body)))
		b = append(b, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0x10, 0x27, 0, 0, byte(len(method)), 0, 0)
		return append(append(b, method...), body...)
	}
	until(stop, func(i int) {
		junk := make([]byte, 1+random.IntN(8192))
		for j := range junk {
			junk[j] = byte(random.Uint32())
		}
		for _, send := range [][]byte{
			junk, append([]byte("PSTK"), junk...), []byte("GET / HTTP/1.1\r\n\r\n"), request("cluster.propose", "x"),
			append(peerHeader(2, bytes.Repeat([]byte{7}, 16), "n2", leader.id), request("cluster.propose", "x")...),
			append(peerHeader(1, make([]byte, 16), "n2", leader.id), junk...),
			append(peerHeader(2, make([]byte, 16), "", leader.id), request("cluster.member", `{"op":"remove","id":"n2"}`)...),
			append(peerHeader(9, make([]byte, 16), "n2", leader.id), junk...),
		} {
			for _, addr := range []string{leader.raft, leader.gossip} {
				c, err := a.dial(addr)
				if err != nil {
					continue
				}
				_ = c.SetDeadline(time.Now().Add(10 * time.Second))
				_, _ = c.Write(send)
				_ = c.(*net.TCPConn).CloseWrite()
				_, err = io.Copy(io.Discard, c)
				if ne, ok := err.(net.Error); ok && ne.Timeout() {
					t.Errorf("%s keeps the connection open after %.40q", addr, send)
				}
				c.Close()
			}
		}
	})
	require.Len(t, mustCluster(t, a.group).Members, 3)
	require.LessOrEqual(t, accepted()-from, uint64(a.honest.Load()), "nothing but the honest producer's events came in")
}

func mustCluster(t *testing.T, g *group) client.Cluster {
	s, err := g.client().Cluster(context.Background())
	require.NoError(t, err)
	return s
}

// Row 16: every field of every administrator's request with a value of another type.
func (a *abuse) wrongTypes(t *testing.T, stop <-chan struct{}) {
	values := []string{`null`, `true`, `-1`, `1e999`, `18446744073709551616`, `""`, `"` + strings.Repeat("x", 5000) + `"`, `[]`, `[[]]`, `[null]`, `{}`, `{"":{}}`, `"\ud800"`, `"\u0000"`}
	routes := map[string][]string{
		"PUT /v1/channels/typed":      {"name", "semantics", "order", "dedup", "retention", "emitters", "types"},
		"POST /v1/cluster/members":    {"id", "suffrage"},
		"POST /v1/cluster/transfer":   {"to"},
		"POST /v1/dlq/replay":         {"ids", "reason", "force", "dry_run", "to"},
		"POST /v1/dlq/discard":        {"ids", "reason"},
		"POST /v1/emitters/a/b/pause": {"reason"},
	}
	root := a.k.tokens["root"]
	until(stop, func(int) {
		for route, fields := range routes {
			method, path, _ := strings.Cut(route, " ")
			for _, f := range append(fields, "unknown") {
				for i, v := range values {
					if f == "to" && strings.HasSuffix(path, "transfer") && (v == `null` || v == `""`) {
						continue // that means: to anybody
					}
					status, answer := a.nodes[i%3].ask(root, method, path, fmt.Sprintf(`{%q:%s}`, f, v))
					require.True(t, status < 500 || status == 503 || status == 504, "%s {%q:%.40s}: %d %s", route, f, v, status, answer)
				}
			}
			for _, body := range append(values, "", "{", "\x00", "[1", "nul") {
				if strings.HasSuffix(path, "transfer") && (body == "" || body == "{}" || body == "null") {
					continue
				}
				status, answer := a.nodes[0].ask(root, method, path, body)
				require.True(t, status < 500 || status == 503 || status == 504, "%s %.40s: %d %s", route, body, status, answer)
			}
		}
	})
}

// Row 17: nothing that a request carries becomes a label.
func (a *abuse) labels(t *testing.T, stop <-chan struct{}) {
	p := a.nodes[2]
	count := func() int {
		_, text := p.ask(a.k.tokens["viewer"], "GET", "/metrics", "")
		n := 0
		for line := range strings.SplitSeq(text, "\n") {
			if line != "" && line[0] != '#' {
				n++
			}
		}
		return n
	}
	a.raw(t, p.http, []byte("M GET HTTP/1.1\r\n\r\n"))
	before := count()
	until(stop, func(i int) {
		p.ask("", fmt.Sprintf("M%d", i), fmt.Sprintf("/path/%d", i), "")
		p.ask(fmt.Sprintf("pst_%040d", i), "GET", fmt.Sprintf("/v1/channels/c%d/events", i), "")
		p.ask(a.k.tokens["root"], "GET", fmt.Sprintf("/v1/channels/c%d/ledger?stale=%d", i, i%2), "")
		p.ask(a.k.tokens["viewer"], "POST", fmt.Sprintf("/v1/channels/c%d/events", i), "{}")
	})
	require.Less(t, count()-before, 200, "series follow routes and status codes only")
}

// Row 18: a body of 16 MiB to every route, of those who may and of nobody.
func (a *abuse) bigBodies(t *testing.T, stop <-chan struct{}) {
	p := a.nodes[0]
	rss := p.rss()
	body := strings.Repeat(" ", 16<<20)
	routes := matrix(t)
	until(stop, func(int) {
		for route := range routes {
			method, path, _ := strings.Cut(route, " ")
			path = strings.NewReplacer("{channel}", "big", "{source}", "s", "{partition}", "p", "{id...}", "none", "{id}", "none", "{emitter}", "none").Replace(path)
			if method == http.MethodDelete || strings.HasSuffix(path, "snapshot") {
				continue // no body is read
			}
			for _, token := range []string{"", a.k.tokens["root"]} {
				head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", method, path, len(body))
				if token != "" {
					head += "Authorization: Bearer " + token + "\r\n"
				}
				line := a.raw(t, p.http, []byte(head+"\r\n"), []byte(body))
				if method != http.MethodGet && line != "" {
					want := map[bool]string{true: " 401 ", false: " 4"}[token == ""]
					require.Contains(t, line, want, "%s", route)
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	require.Less(t, p.rss()-rss, int64(128<<20))
}
