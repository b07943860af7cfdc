package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// TestB08HugeBodiesAreRefusedEarly: over the limit is 413 at once, just under it is stored whole, memory stays bounded, no
// election, and a light producer goes on.
func TestB08HugeBodiesAreRefusedEarly(t *testing.T) {
	g := startGroup(t, options{})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "big", channelSpec("big", ""), client.PutOptions{})
	require.NoError(t, err)
	leader, follower := g.leader(), g.follower()
	before, err := leader.client().Cluster(context.Background())
	require.NoError(t, err)

	light := startLight(t, g, "big")
	time.Sleep(2 * time.Second)
	baseline := light.p99()
	rssBefore := map[string]int64{}
	for _, p := range []*proc{leader, follower} {
		rssBefore[p.id] = p.rss()
	}
	peak := map[string]int64{}
	sizes := int64(scale(t, 300<<20, 60<<20))
	for _, p := range []*proc{leader, follower} {
		for _, form := range []string{"one event", "many events", "chunked"} {
			crossed, status := postHuge(t, p, form, sizes)
			require.Equal(t, 413, status, "%s to %s", form, p.id)
			require.Less(t, crossed, 2*time.Second, "%s: 413 within 2 s", form)
			peak[p.id] = max(peak[p.id], p.rss()-rssBefore[p.id])
		}
	}
	for id, rise := range peak {
		t.Logf("%s: resident memory rose by %d KiB", id, rise>>10)
		require.Less(t, rise, int64(64<<20), "memory stays bounded")
	}
	// Just under the limit: stored whole.
	var body strings.Builder
	for i := 0; body.Len() < 4<<20-300<<10; i++ {
		fmt.Fprintf(&body, "{\"n\":%d,\"pad\":%q}\n", i, strings.Repeat("p", 1000))
	}
	n := strings.Count(body.String(), "\n")
	seen := len(tailAll(t, follower, "big"))
	status, answer := follower.post("/v1/channels/big/events", "application/x-ndjson", []byte(body.String()))
	require.Equal(t, 200, status, answer)
	light.stop()
	waitApplied(t, g)
	require.GreaterOrEqual(t, len(tailAll(t, follower, "big")), seen+n)
	after, err := leader.client().Cluster(context.Background())
	require.NoError(t, err)
	require.Equal(t, before.Term, after.Term, "no election")
	t.Logf("light producer: p99 %s alone, %s beside the huge bodies", baseline, light.p99())
	require.Less(t, light.p99(), 3*baseline+200*time.Millisecond)
}

// postHuge sends a body over the limit and gives the time from crossing the limit to the answer.
func postHuge(t *testing.T, p *proc, form string, size int64) (time.Duration, int) {
	t.Helper()
	const limit = 4 << 20
	conn, err := net.Dial("tcp", p.http)
	require.NoError(t, err)
	defer conn.Close()
	contentType, chunked := "application/json", form == "chunked"
	unit := strings.Repeat("x", 64<<10)
	head, foot := `{"pad":"`, `"}`
	if form == "many events" {
		contentType, head, foot = "application/x-ndjson", "", ""
		unit = strings.Repeat("{\"small\":true}\n", 4400)
	}
	length := fmt.Sprintf("Content-Length: %d", size)
	if chunked {
		length = "Transfer-Encoding: chunked"
	}
	fmt.Fprintf(conn, "POST /v1/channels/big/events HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\n%s\r\n\r\n", contentType, length)
	answered := make(chan int, 1)
	go func() {
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			answered <- 0
			return
		}
		io.Copy(io.Discard, resp.Body)
		answered <- resp.StatusCode
	}()
	var sent int64
	crossed := time.Now()
	write := func(s string) bool {
		if chunked {
			s = fmt.Sprintf("%x\r\n%s\r\n", len(s), s)
		}
		conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
		n, err := io.WriteString(conn, s)
		if sent < limit && sent+int64(n) >= limit {
			crossed = time.Now()
		}
		sent += int64(n)
		return err == nil
	}
	go func() {
		ok := write(head)
		for ok && sent < size {
			ok = write(unit)
		}
		if ok {
			write(foot)
		}
	}()
	select {
	case status := <-answered:
		return time.Since(crossed), status
	case <-time.After(20 * time.Second):
		return 20 * time.Second, 0
	}
}

// rss is the resident memory of the process in bytes.
func (p *proc) rss() int64 {
	p.mu.Lock()
	pid := p.cmd.Process.Pid
	p.mu.Unlock()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(p.g.t, err)
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(b)
	require.NotNil(p.g.t, m)
	kb, _ := strconv.ParseInt(string(m[1]), 10, 64)
	return kb << 10
}

// light is a producer of 100 small events a second.
type light struct {
	done chan struct{}
	wg   sync.WaitGroup
	mu   sync.Mutex
	took []time.Duration
}

func startLight(t *testing.T, g *group, channel string) *light {
	l := &light{done: make(chan struct{})}
	c := g.client()
	l.wg.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-tick.C:
			case <-l.done:
				return
			}
			start := time.Now()
			if _, err := c.Send(context.Background(), channel, batch("light", i, 1), batchType, client.SendOptions{}); err == nil {
				l.mu.Lock()
				l.took = append(l.took, time.Since(start))
				l.mu.Unlock()
			}
		}
	})
	t.Cleanup(l.stop)
	return l
}

func (l *light) stop() {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	l.wg.Wait()
}

func (l *light) p99() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := slices.Clone(l.took)
	slices.Sort(s)
	if len(s) == 0 {
		return 0
	}
	return s[len(s)*99/100]
}

// TestB51SeriesAreBoundedByConfiguration: 50k distinct sources, types, ids, paths, agents and methods make no series.
func TestB51SeriesAreBoundedByConfiguration(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{nodes: 1, single: true})
	c := g.client()
	p := g.nodes[0]
	_, err := c.PutChannel(context.Background(), "wide", channelSpec("wide", "", fileEmitter("files", "out", "")), client.PutOptions{})
	require.NoError(t, err)
	_, err = c.Send(context.Background(), "wide", batch("warm", 0, 1), batchType, client.SendOptions{})
	require.NoError(t, err)
	waitDelivered(t, c, "wide", 10*time.Second)
	before, rss := series(p), p.rss()
	n := scale(t, 50_000, 20_000)
	for first := 0; first < n; first += 1000 {
		var b strings.Builder
		b.WriteByte('[')
		for i := first; i < first+1000; i++ {
			if i > first {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `{"specversion":"1.0","id":"id-%d","source":"/source/%d","type":"type.%d","subject":"key-%d","data":%d}`, i, i, i, i, i)
		}
		b.WriteByte(']')
		status, answer := p.post("/v1/channels/wide/events", batchType, []byte(b.String()))
		require.Equal(t, 200, status, answer)
	}
	for i := range 500 {
		p.do("GET", fmt.Sprintf("/nowhere/%d", i), "", nil)
		p.do(fmt.Sprintf("M%d", i), "/v1/channels", "", nil)
		p.do("GET", fmt.Sprintf("/v1/channels/none-%d/ledger", i), "", nil)
	}
	start := time.Now()
	after := series(p)
	require.Less(t, time.Since(start), time.Second, "the scrape is quick")
	t.Logf("series: %d before, %d after; resident memory rose by %d MiB", before, after, (p.rss()-rss)>>20)
	require.Less(t, after-before, 100)

	_, err = c.PutChannel(context.Background(), "wide", channelSpec("wide", ""), client.PutOptions{Discard: true})
	require.NoError(t, err)
	eventually(t, 10*time.Second, "series of the removed emitter gone", func() error {
		_, text := p.do("GET", "/metrics", "", nil)
		if strings.Contains(text, `emitter="files"`) {
			return fmt.Errorf("still there")
		}
		return nil
	})
}

func series(p *proc) int {
	_, text := p.do("GET", "/metrics", "", nil)
	n := 0
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" && line[0] != '#' {
			n++
		}
	}
	return n
}
