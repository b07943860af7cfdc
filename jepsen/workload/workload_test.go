package workload

import (
	"context"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"penstock/jepsen/check"
	"penstock/jepsen/client"
	"penstock/jepsen/fakenode"
	"penstock/jepsen/history"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// play runs writers, a source and readers against three fake nodes for a moment and judges the histories.
func play(t *testing.T, tune func(*fakenode.Store)) map[string]check.Result {
	store := fakenode.NewStore()
	tune(store)
	env := &Env{Clock: history.NewClock(), Dir: filepath.Join(t.TempDir(), "history"), Seed: 7}
	for i := range 3 {
		server := httptest.NewServer(store.Handler())
		t.Cleanup(server.Close)
		c := client.New(fmt.Sprintf("n%d", i+1), server.URL, time.Second)
		t.Cleanup(c.Close)
		env.Clients = append(env.Clients, c)
	}
	stop, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	last, giveUp := context.WithTimeout(t.Context(), 5*time.Second)
	defer giveUp()

	single, err := NewWriter(env, "o1", Orders, 1, 5*time.Millisecond)
	require.NoError(t, err)
	batches, err := NewWriter(env, "o2", Orders, 10, 5*time.Millisecond)
	require.NoError(t, err)
	source, err := NewOffsetWriter(env, "s1")
	require.NoError(t, err)
	offsets, err := NewOffsetReader(env, "r1", env.Clients[0], []*OffsetWriter{source})
	require.NoError(t, err)
	tail, err := NewReader(env, "t1", env.Clients[1], Orders)
	require.NoError(t, err)
	done := make(chan error, 5)
	for _, f := range []func() error{
		func() error { return single.Run(stop, last) }, func() error { return batches.Run(stop, last) },
		func() error { return source.Run(stop, last) }, func() error { return offsets.Run(stop) },
		func() error { return tail.Follow(stop) },
	} {
		go func() { done <- f() }()
	}
	for range 5 {
		require.NoError(t, <-done)
	}
	for _, channel := range []string{Orders, Offsets} {
		for _, c := range env.Clients {
			r, err := NewReader(env, "final-"+channel+c.Node, c, channel)
			require.NoError(t, err)
			require.NoError(t, r.Whole(last, 1))
		}
	}
	ops, err := history.ReadOps(env.Dir)
	require.NoError(t, err)
	v := check.Judge(check.Input{Ops: ops, Expect: check.Expect{Channels: []string{Orders, Offsets}, MinAcks: 50, MinFinalRead: 3, Reachable: true}})
	results := map[string]check.Result{}
	for _, r := range v.Checks {
		results[r.Name] = r
	}
	return results
}

func TestHistoriesOfAGoodClusterPass(t *testing.T) {
	for name, r := range play(t, func(s *fakenode.Store) { s.UnknownEvery, s.DropEvery = 13, 17 }) {
		switch name {
		case "set", "positions", "divergence", "writer order", "source offsets", "linearizable offsets":
			require.Equal(t, check.Pass, r.Status, "%s: %v %s", name, r.Violations, r.Why)
		}
	}
}

func TestHistoriesOfALosingClusterFail(t *testing.T) {
	r := play(t, func(s *fakenode.Store) { s.LoseEvery = 11 })
	require.Equal(t, check.Fail, r["set"].Status)
	require.Positive(t, r["set"].Numbers["lost middle"])
}

func TestHistoriesOfAClusterThatForgetsIDsFail(t *testing.T) {
	r := play(t, func(s *fakenode.Store) { s.UnknownEvery, s.ForgetIDs = 7, true })
	require.Equal(t, check.Fail, r["set"].Status)
	require.Positive(t, r["set"].Numbers["duplicated"])
}

func TestPayloadsFollowFromTheSeed(t *testing.T) {
	a, b := &Env{Seed: 3}, &Env{Seed: 3}
	require.Equal(t, payload(a.random("w"), "w", 1), payload(b.random("w"), "w", 1))
	require.NotEqual(t, payload(a.random("w"), "w", 1), payload(a.random("x"), "w", 1))
}
