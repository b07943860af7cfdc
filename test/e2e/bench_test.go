package e2e

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/load"
)

// bench runs a bench verb for about a second and reads its JSON.
func bench(g *group, out any, args ...string) {
	g.t.Helper()
	stdout, _ := g.run(0, "", append([]string{"--output", "json", "bench"}, args...)...)
	require.NoError(g.t, json.Unmarshal([]byte(stdout), out), "%s", stdout)
}

// TestBenchIngestCountsWhatTheClusterCounts: in both loops, with each payload, what the load generator says was accepted is what the
// ledger says. How fast it was is nobody's business here.
func TestBenchIngestCountsWhatTheClusterCounts(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c, total := g.client(), int64(0)
	for _, args := range [][]string{
		{"--events", "300", "--connections", "4", "--in-flight", "3"},
		{"--events", "2000", "--batch", "100", "--connections", "4", "--to", "leader"},
		{"--events", "500", "--batch", "50", "--payload", "random", "--connections", "4", "--to", "all"},
		{"--events", "1000000", "--duration", "1s", "--rate", "500", "--batch", "5", "--connections", "8"},
	} {
		var r load.Result
		bench(g, &r, append([]string{"ingest", "counted"}, args...)...)
		require.Equal(t, r.Events, r.Accepted, "%+v", r)
		require.Zero(t, r.Duplicates+r.Refused+r.Unknown+r.NotSent)
		require.Equal(t, r.Requests, r.Answered)
		require.Equal(t, r.Events, r.Requests*int64(r.Batch))
		require.LessOrEqual(t, r.Latency.P50, r.Latency.P99)
		require.LessOrEqual(t, r.Latency.P99, r.Latency.Max)
		require.NotNil(t, r.ServerCPU)
		require.Positive(t, *r.ServerCPU)
		require.Equal(t, r.Rate > 0, r.Corrected)
		if r.Rate > 0 {
			require.LessOrEqual(t, r.Events, int64(r.Rate*1.5)+int64(r.Batch), "a schedule is not overtaken")
		}
		total += r.Accepted
		eventually(t, 20*time.Second, "the ledger of the node asked", func() error { return atLeastAccepted(c, "counted", uint64(total)) })
		l, err := c.Ledger(t.Context(), "counted")
		require.NoError(t, err)
		require.Equal(t, uint64(total), l.Accepted)
	}
}

// TestBenchEmitDeliversAllItCounts: each kind delivers as many as were ingested, and leaves no channel behind.
func TestBenchEmitDeliversAllItCounts(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	for _, args := range [][]string{{"--kind", "webhook", "--batch", "1"}, {"--kind", "webhook", "--batch", "100"}, {"--kind", "file", "--batch", "100"}} {
		var r struct {
			Events, Delivered, Requests int64
			Rate                        float64 `json:"events_per_second"`
		}
		bench(g, &r, append([]string{"emit", "--events", "300"}, args...)...)
		require.EqualValues(t, 300, r.Events)
		require.EqualValues(t, 300, r.Delivered)
		require.Positive(t, r.Rate)
		switch args[1] + args[3] {
		case "webhook1":
			require.GreaterOrEqual(t, r.Requests, int64(300))
		case "webhook100":
			require.GreaterOrEqual(t, r.Requests, int64(3))
		}
	}
	channels, err := g.client().Channels(t.Context())
	require.NoError(t, err)
	require.Empty(t, channels)
}
