package compose

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const channel = `channels:
  - name: orders
    semantics: at-least-once
    order: none
    emitters:
      - {name: files, kind: file, start: earliest, file: {directory: out}, compaction: {events: 50, linger: 200ms}}
`

// TestComposeClusterKeepsWhatItAcknowledged: three healthy containers; events go in through any of them; one is killed while
// events go in, another is cut off the network and brought back. Then everything that was acknowledged is there, on every node
// in the same order, delivered, and the ledger balances; and the node that was cut off acknowledged nothing meanwhile.
func TestComposeClusterKeepsWhatItAcknowledged(t *testing.T) {
	e, err := findEngine(t)
	if err != nil {
		t.Skipf("LEFT OUT: no containers were started, only the files were checked: %v", err)
	}
	p := newProject(t, e)
	p.step("image built")
	p.must(p.compose("up", "-d"))
	p.waitReady()
	p.step("ready")
	p.waitHealthy()
	p.step("healthy")
	require.Equal(t, "65532:65532 true", p.inspect("n1", "{{.Config.User}} {{.HostConfig.ReadonlyRootfs}}"))
	p.applyChannel()

	sent := &sent{p: p}
	for _, n := range nodes {
		sent.through(200, n)
	}
	p.step("events went in through each")
	p.killWhile(sent)
	p.step("the killed one is back")
	maybe := p.cutOff(sent)
	p.waitReady()
	sent.through(50)
	p.step("the one that was cut off is back")

	p.check(sent, maybe)
	p.step("checked")
}

// sent counts what was acknowledged; event i carries i.
type sent struct {
	p    *project
	next int
}

// lines makes n events that were not sent before.
func (s *sent) lines(n int) string {
	var b strings.Builder
	for range n {
		fmt.Fprintf(&b, "{\"n\":%d}\n", s.next)
		s.next++
	}
	return b.String()
}

// through sends n events and returns once all are acknowledged.
func (s *sent) through(n int, at ...string) {
	s.p.t.Helper()
	s.p.must(s.p.run(s.lines(n), at, "send", "orders", "--token-file", s.p.token("producer")))
}

// waitHealthy waits for the engine's own view, which the health checks of the file give it.
func (p *project) waitHealthy() {
	p.t.Helper()
	eventually(p.t, 90*time.Second, "three healthy containers", func() error {
		for _, n := range nodes {
			if s := p.inspect(n, "{{.State.Health.Status}}"); s != "healthy" {
				return fmt.Errorf("%s is %s", n, s)
			}
		}
		return nil
	})
}

// applyChannel makes the channel, which takes the admin's token: the secret has reached the nodes, and they ask for it.
func (p *project) applyChannel() {
	p.t.Helper()
	_, err := p.run(channel, nil, "channel", "apply", "-f", "-", "--token-file", p.token("producer"))
	require.Error(p.t, err, "a producer made a channel")
	p.must(p.run(channel, nil, "channel", "apply", "-f", "-"))
}

// leader is the node that leads, as the given ones see it.
func (p *project) leader(at ...string) string {
	p.t.Helper()
	var leader string
	eventually(p.t, 30*time.Second, "a leader", func() error {
		out, err := p.run("", at, "cluster", "status", "--output", "json")
		if err != nil {
			return err
		}
		leader = decode[struct{ Leader string }](p, out).Leader
		if !slices.Contains(nodes, leader) {
			return fmt.Errorf("leader %q", leader)
		}
		return nil
	})
	return leader
}

func others(node string) []string {
	return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == node })
}

// killWhile kills the leader's container in the middle of a send through all nodes, which must end with every event
// acknowledged; then starts it again.
func (p *project) killWhile(s *sent) {
	p.t.Helper()
	leader := p.leader()
	before := p.accepted()
	lines := s.lines(2000)
	done := make(chan error, 1)
	go func() {
		_, err := p.run(lines, nil, "send", "orders", "--batch-events", "10")
		done <- err
	}()
	eventually(p.t, 30*time.Second, "the send is under way", func() error {
		if n := p.accepted(); n < before+50 {
			return fmt.Errorf("%d of %d accepted", n, before)
		}
		return nil
	})
	p.must(p.docker("kill", p.id(leader)))
	require.NoError(p.t, <-done, "every event must be acknowledged by those that are left")
	require.Equal(p.t, "exited 137", p.inspect(leader, "{{.State.Status}} {{.State.ExitCode}}"), "the kill must have acted")
	s.through(50, others(leader)...)
	p.must(p.docker("start", p.id(leader)))
	p.waitReady()
}

// cutOff takes the leader's container off the network while the others go on, and brings it back under its name. It gives the
// event that was handed to the node meanwhile: it was not acknowledged, and may be there or not.
func (p *project) cutOff(s *sent) (maybe int) {
	p.t.Helper()
	leader, network := p.leader(), p.name+"_penstock"
	rest, id := others(leader), p.id(leader)
	p.must(p.docker("network", "disconnect", network, id))
	require.Equal(p.t, "0", p.inspect(leader, "{{len .NetworkSettings.Networks}}"), "the cut must have acted")
	s.through(200, rest...)
	require.NotEqual(p.t, leader, p.leader(rest...), "the others have elected")

	maybe = s.next
	token, err := os.ReadFile(p.token("producer"))
	require.NoError(p.t, err)
	out, err := p.feed(s.lines(1), "docker", "exec", "-i", "-e", "PENSTOCK_TOKEN="+strings.TrimSpace(string(token)), id, "penstock", "send", "orders", "--retry-for", "1s", "--timeout", "2s")
	require.Error(p.t, err, "a node without a majority acknowledged: %s", out)
	require.NotContains(p.t, err.Error(), "no valid token", "it must not be the token that was refused")
	_, err = p.output("docker", "exec", id, "penstock", "health", "--ready")
	require.Error(p.t, err, "a node without a majority is not ready")

	p.must(p.docker("network", "connect", "--alias", leader, network, id))
	return maybe
}

type ledger struct {
	Channel  string
	Accepted int
	Balanced bool
	Emitters []struct {
		Accepted, Delivered, Dead, Poison, Discarded, Lost, Pending int
	}
}

func (p *project) ledger() (ledger, error) {
	out, err := p.run("", nil, "ledger", "orders", "--output", "json")
	if err != nil {
		return ledger{}, err
	}
	return decode[struct{ Ledgers []ledger }](p, out).Ledgers[0], nil
}

func (p *project) accepted() int {
	p.t.Helper()
	l, err := p.ledger()
	require.NoError(p.t, err)
	return l.Accepted
}

// check: nothing acknowledged is missing, nothing is there twice, all nodes show the same, and the books balance.
func (p *project) check(s *sent, maybe int) {
	p.t.Helper()
	first := p.tail(nodes[0])
	seen := map[int]bool{}
	for _, n := range first {
		require.False(p.t, seen[n], "event %d is there twice", n)
		seen[n] = true
	}
	for n := range s.next {
		require.True(p.t, seen[n] || n == maybe, "event %d was acknowledged and is not there", n)
	}
	for _, node := range nodes[1:] {
		require.Equal(p.t, first, p.tail(node), "%s shows something else than %s", node, nodes[0])
	}
	eventually(p.t, 60*time.Second, "everything is delivered", func() error {
		l, err := p.ledger()
		if err != nil {
			return err
		}
		if e := l.Emitters[0]; !l.Balanced || l.Accepted != len(first) || e.Delivered != l.Accepted || e.Pending != 0 {
			return fmt.Errorf("%d stored, ledger %+v", len(first), l)
		}
		return nil
	})
}

// tail is what one node shows of the channel, in its order, once it has applied everything that is there.
func (p *project) tail(node string) []int {
	p.t.Helper()
	var list []int
	want := p.accepted()
	eventually(p.t, 30*time.Second, node+" shows everything", func() error {
		out, err := p.run("", []string{node}, "tail", "orders", "--output", "json")
		if err != nil {
			return err
		}
		list = nil
		for line := range strings.Lines(out) {
			list = append(list, decode[struct{ Data struct{ N int } }](p, line).Data.N)
		}
		if len(list) != want {
			return fmt.Errorf("%d of %d", len(list), want)
		}
		return nil
	})
	return list
}
