package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// TestAllNodesRestartUnderNewAddresses: everything moves at once, two of the nodes into each other's places. They find each other by the
// seeds, each names itself, a leader is there within 15 s and there are never two.
func TestAllNodesRestartUnderNewAddresses(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c := g.client()
	_, err := c.PutChannel(context.Background(), "moved", channelSpec("moved", "", fileEmitter("files", "out", "")), client.PutOptions{})
	require.NoError(t, err)
	sendByID(t, c, "moved", batch("before", 0, 50))
	waitDelivered(t, c, "moved", 30*time.Second)
	for _, p := range g.nodes {
		p.kill()
	}
	n1, n2, n3 := g.nodes[0], g.nodes[1], g.nodes[2]
	n1.http, n1.raft, n1.gossip = freeAddr(t), freeAddr(t), freeAddr(t)
	n2.raft, n3.raft = n3.raft, n2.raft
	n2.gossip, n3.gossip = n3.gossip, n2.gossip
	n2.http, n3.http = n3.http, n2.http
	// One seed is enough: n1, which the others find there, tells them of each other.
	for _, p := range g.nodes {
		p.writeConfig([]string{n1.gossip})
	}
	began := time.Now()
	for _, p := range g.nodes {
		p.start()
	}
	seen := map[uint64]string{}
	eventually(t, 30*time.Second, "a leader", func() error {
		oneLeader(t, seen, g.nodes)
		_, err := n2.client().Send(context.Background(), "moved", batch("after", 0, 10), batchType, client.SendOptions{})
		return err
	})
	t.Logf("a write is acknowledged %s after the start", time.Since(began).Round(time.Millisecond))
	require.Less(t, time.Since(began), scaled(15*time.Second))
	for until := time.Now().Add(3 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		oneLeader(t, seen, g.nodes)
	}
	for _, p := range g.nodes {
		p.waitReady(30 * time.Second)
	}
	waitDelivered(t, g.client(), "moved", 30*time.Second)
	checkStored(t, g, "moved", nil)
	for _, m := range clusterOf(t, n2).Members {
		require.Equal(t, g.byID(m.ID).raft, m.Raft, m.ID)
	}
}

// scaled doubles a bound in the short form, which shares its cores.
func scaled(d time.Duration) time.Duration {
	if os.Getenv("PENSTOCK_FULL") == "1" {
		return d
	}
	return 2 * d
}

// TestRecoverBringsBackOneNodeWithAllItHad: two of three disks are lost. recover says what it would do, then does it; the node leads alone
// with all it had, two new ones join, and the disk of an old one, found again, is refused.
func TestRecoverBringsBackOneNodeWithAllItHad(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c := g.client()
	hook := startReceiver(t)
	hook.answer(503)
	ctx := context.Background()
	_, err := c.PutChannel(ctx, "kept", channelSpec("kept", "", fileEmitter("files", "out", ""),
		webhookEmitter("hook", hook.url(), `"retry":{"ttl":"30m","backoff":{"min":"200ms","max":"1s"}}`)), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "kept", g.addresses(), 2, 5)
	w.waitAcks(300, 60*time.Second)
	acked := w.halt()
	waitApplied(t, g)
	before := tailAll(t, g.nodes[0], "kept")
	id := clusterOf(t, g.nodes[0]).ClusterID
	survivor, found, lost := g.nodes[0], g.nodes[1], g.nodes[2]

	_, stderr := runPenstock(t, 12, "", "cluster", "recover", "--config", survivor.config)
	require.Contains(t, stderr, "in use", "it runs")
	for _, p := range g.nodes {
		p.kill()
	}
	require.NoError(t, os.RemoveAll(lost.dir))
	survivor.writeConfig([]string{survivor.gossip})

	stdout, stderr := runPenstock(t, 1, "", "cluster", "recover", "--config", survivor.config)
	require.Contains(t, stdout, "lost for good")
	require.Contains(t, stdout, "n1, n2, n3 -> n1 alone")
	require.Contains(t, stderr, "nothing was changed: --yes does it")
	stdout, _ = runPenstock(t, 0, "", "cluster", "recover", "--config", survivor.config, "--yes", "--reason", "two disks burnt")
	require.Contains(t, stdout, "the cluster is now")
	reports, err := filepath.Glob(filepath.Join(survivor.dir, "recovered-*.json"))
	require.NoError(t, err)
	require.Len(t, reports, 1)

	g.leave(found)
	g.leave(lost)
	survivor.start()
	survivor.waitReady(30 * time.Second)
	require.Equal(t, []string{"n1"}, survivor.voters())
	require.NotEqual(t, id, clusterOf(t, survivor).ClusterID)
	require.Equal(t, before, tailAll(t, survivor, "kept"), "all it had, at the same positions")
	record := audited(t, survivor.client(), "cluster.recover")
	require.Equal(t, "two disks burnt", record[0].Reason)

	for _, name := range []string{"n4", "n5"} {
		p := g.layout(name)
		p.writeConfig([]string{survivor.gossip})
		g.nodes = append(g.nodes, p)
		p.start()
		survivor.cli("join", name, "--voter")
		p.waitReady(30 * time.Second)
	}
	hook.answer(200)
	sendByID(t, g.client(), "kept", batch("later", 0, 20))
	waitDelivered(t, g.client(), "kept", 60*time.Second)
	checkStored(t, g, "kept", acked)

	found.writeConfig([]string{survivor.gossip, found.gossip})
	found.start()
	require.Equal(t, 11, found.exit(30*time.Second), "a disk of the cluster before")
	require.Contains(t, tailOf(found.logTo, 3000), "was recovered as")
}

// TestB41TwoNodesUnderOneID: a second live node under an id that is taken is refused and ends with a clear error; the first goes on. One
// that comes back under a new address, killed or stopped, is taken at once.
func TestB41TwoNodesUnderOneID(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	victim := g.follower()
	for i, end := range []func(){func() { require.Equal(t, 0, victim.term(30*time.Second)) }, victim.kill} {
		end()
		victim.http, victim.raft, victim.gossip = freeAddr(t), freeAddr(t), freeAddr(t)
		victim.writeConfig(append([]string{victim.gossip}, g.seeds...))
		began := time.Now()
		victim.start()
		victim.waitReady(scaled(15 * time.Second))
		t.Logf("ending %d: ready at a new address after %s", i, time.Since(began).Round(time.Millisecond))
	}
	twin := g.layout(victim.id)
	twin.dir, twin.dlq, twin.config, twin.logTo = twin.dir+"-twin", twin.dlq+"-twin", twin.config+"-twin.yaml", twin.logTo+"-twin"
	twin.writeConfig(append([]string{twin.gossip}, g.seeds...))
	t.Cleanup(twin.kill)
	twin.start()
	require.Equal(t, 11, twin.exit(30*time.Second))
	require.Contains(t, tailOf(twin.logTo, 3000), "under a new id")
	for _, p := range g.nodes {
		p.waitReady(30 * time.Second)
	}
}

// TestGossipKeysAreRotatedBySignal: a key is put in the place of another on running nodes, by file and SIGHUP; a node with the new one joins, a
// node with the old one is told why it does not.
func TestGossipKeysAreRotatedBySignal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	put := func(path string, key byte) {
		require.NoError(t, os.WriteFile(path, []byte(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{key}, 32))+"\n"), 0o600))
	}
	put(first, 1)
	put(second, 1)
	g := startGroup(t, options{env: []string{"PENSTOCK_CLUSTER_GOSSIP_KEYS=${file:" + first + "},${file:" + second + "}"}})
	steps := 0
	everywhere := func(a, b byte) {
		t.Helper()
		put(first, a)
		put(second, b)
		steps++
		for _, p := range g.nodes {
			p.signal(syscall.SIGHUP)
			eventually(t, 20*time.Second, p.id+" took the keys over", func() error {
				if n := strings.Count(tailOf(p.logTo, 1<<20), "configuration taken over"); n < steps {
					return fmt.Errorf("%d times", n)
				}
				return nil
			})
		}
	}
	everywhere(1, 2)
	everywhere(2, 1)
	everywhere(2, 2)
	p := g.join("n4")
	eventually(t, 30*time.Second, "n4 is alive to the others", func() error {
		for _, m := range clusterOf(t, g.nodes[0]).Members {
			if m.ID == p.id && m.Health != "alive" {
				return fmt.Errorf("%+v", m)
			}
		}
		return nil
	})
	put(first, 1)
	put(second, 1)
	old := g.add("n5")
	g.leave(old)
	old.start()
	eventually(t, 20*time.Second, "it is told why", func() error {
		if log := tailOf(old.logTo, 1<<16); !strings.Contains(log, "gossip key") {
			return errors.New(log)
		}
		return nil
	})
}
