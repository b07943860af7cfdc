package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// TestNewNodesGetEveryNeededEvent: a fourth node joins while events are pending and older log is gone, leads, snapshots; a
// fifth joins from it. Exactly one install each, every needed event from the floor on readable on both, the same hash.
func TestNewNodesGetEveryNeededEvent(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{segmentBytes: "1MiB", trailing: 16})
	c := g.client()
	ctx := context.Background()
	hook := startReceiver(t)
	hook.answer(503)
	// One channel whose events go as soon as they are delivered, and one whose events wait.
	_, err := c.PutChannel(ctx, "flow", channelSpec("flow", `"retention":{"keep":"0s"}`, fileEmitter("files", "out", "")), client.PutOptions{})
	require.NoError(t, err)
	w := startWriters(t, "flow", g.addresses(), 4, 50)
	w.waitAcks(15_000, 60*time.Second)
	w.halt()
	waitDelivered(t, c, "flow", 60*time.Second)
	_, err = c.PutChannel(ctx, "stuck", channelSpec("stuck", `"retention":{"keep":"0s"}`,
		webhookEmitter("hook", hook.url(), `"retry":{"ttl":"30m","backoff":{"min":"1s","max":"5s"}}`)), client.PutOptions{})
	require.NoError(t, err)
	const pending = 500
	for i := 0; i < pending; i += 50 {
		_, err := c.Send(ctx, "stuck", batch("stuck", i, 50), batchType, client.SendOptions{})
		require.NoError(t, err)
	}
	for range 2 { // two snapshots: log goes behind the older one
		for _, p := range g.nodes {
			p.snapshot()
		}
		_, err = c.Send(ctx, "flow", batch("between", int(time.Now().UnixNano()%1e9), 50), batchType, client.SendOptions{})
		require.NoError(t, err)
	}
	eventually(t, 20*time.Second, "older log gone", func() error {
		s, err := g.leader().client().Cluster(ctx)
		if err != nil || s.FirstIndex > 1 {
			return err
		}
		return fmt.Errorf("first index is %d, floor %d", s.FirstIndex, s.Floor)
	})
	want := tailAll(t, g.leader(), "stuck")
	require.Len(t, want, pending)

	fourth := g.join("n4")
	requireHolds(t, g, fourth, want)
	require.EqualValues(t, 1, installs(t, fourth))
	// The fourth leads and snapshots.
	eventually(t, 20*time.Second, "the fourth leads", func() error {
		leader := g.leader()
		if leader == fourth {
			return nil
		}
		status, answer := leader.post("/v1/cluster/transfer", "application/json", []byte(`{"to":"n4"}`))
		return fmt.Errorf("%d %s", status, answer)
	})
	for range 2 {
		fourth.snapshot()
		_, err = c.Send(ctx, "flow", batch("later", int(time.Now().UnixNano()%1e9), 50), batchType, client.SendOptions{})
		require.NoError(t, err)
	}
	fifth := g.join("n5")
	requireHolds(t, g, fifth, want)
	require.EqualValues(t, 1, installs(t, fifth))
	require.EqualValues(t, 1, installs(t, fourth))

	hook.answer(200)
	waitDelivered(t, c, "stuck", 60*time.Second)
	waitApplied(t, g)
}

// join starts a new node and makes it a voter.
func (g *group) join(id string) *proc {
	g.t.Helper()
	p := g.add(id)
	p.start()
	for _, suffrage := range []string{"nonvoter", "voter"} {
		eventually(g.t, 40*time.Second, id+" becomes "+suffrage, func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			return g.leader().client().SetMember(ctx, id, suffrage)
		})
	}
	p.waitReady(20 * time.Second)
	return p
}

func (p *proc) snapshot() {
	p.g.t.Helper()
	status, answer := p.post("/v1/cluster/snapshot", "application/json", nil)
	require.Contains(p.g.t, []int{200, 409}, status, answer)
}

func requireHolds(t *testing.T, g *group, p *proc, want []stored) {
	t.Helper()
	waitApplied(t, g)
	require.Equal(t, want, tailAll(t, p, "stuck"), "every needed event is readable on %s", p.id)
}

func installs(t *testing.T, p *proc) int {
	t.Helper()
	s, err := p.client().Cluster(context.Background())
	require.NoError(t, err)
	return int(s.Installs)
}

// TestDeletedStateIsRebuilt: a node whose state store was deleted rebuilds the same hash and the same 24-byte offsets from
// its log and its peers.
func TestDeletedStateIsRebuilt(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c := g.client()
	ctx := context.Background()
	_, err := c.PutChannel(ctx, "base", channelSpec("base", "", fileEmitter("files", "out", "")), client.PutOptions{})
	require.NoError(t, err)
	for i := range 20 {
		status, answer := g.nodes[0].post(fmt.Sprintf("/v1/channels/base/events?source=s&partition=%d&offset=%d:%d", i%3, i*100, i), batchType, batch("off", i*5, 5))
		require.Equal(t, 200, status, answer)
	}
	waitDelivered(t, c, "base", 20*time.Second)
	waitApplied(t, g)
	before, err := g.nodes[0].client().Offsets(ctx, "base")
	require.NoError(t, err)
	require.Len(t, before, 3)
	victim := g.follower()
	require.Equal(t, 0, victim.term(12*time.Second))
	states, err := filepath.Glob(filepath.Join(victim.dir, "fsm*"))
	require.NoError(t, err)
	require.NotEmpty(t, states)
	for _, s := range states {
		require.NoError(t, os.RemoveAll(s))
	}
	victim.start()
	victim.waitReady(20 * time.Second)
	waitApplied(t, g)
	after, err := victim.client().Offsets(ctx, "base")
	require.NoError(t, err)
	require.Equal(t, before, after)
}
