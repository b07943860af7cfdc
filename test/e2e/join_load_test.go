package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// TestANewNodeJoinsBehindAGibibyte is shows 6 of the log: a fourth node joins with an empty disk while 1 GiB is pending (scaled
// without PENSTOCK_FULL=1). There is one installation and no change of leader, tail from the floor shows the same on it, the
// hash is the same, and ingest goes on meanwhile: in the full form with a p99 within three times its normal.
func TestANewNodeJoinsBehindAGibibyte(t *testing.T) {
	full := scale(t, 1024, 48)
	g := startGroup(t, options{segmentBytes: "8MiB", snapshotBytes: "16MiB"})
	c := g.client()
	ctx := context.Background()
	hook := startReceiver(t)
	hook.answer(503)
	_, err := c.PutChannel(ctx, "pending", channelSpec("pending", `"retention":{"keep":"0s"}`,
		webhookEmitter("hook", hook.url(), `"retry":{"ttl":"24h","backoff":{"min":"1s","max":"5s"}}`)), client.PutOptions{})
	require.NoError(t, err)
	_, err = c.PutChannel(ctx, "probe", channelSpec("probe", `"retention":{"keep":"0s"}`, ""), client.PutOptions{})
	require.NoError(t, err)
	bulk(t, g.addresses(), "probe", max(full/8, 48)*mib) // so that the log does not begin at the beginning, and a snapshot is needed
	bulk(t, g.addresses(), "pending", full*mib)
	leader := g.leader()
	eventually(t, 30*time.Second, "older log gone", func() error {
		s, err := leader.client().Cluster(ctx)
		if err == nil && s.FirstIndex <= 1 {
			err = fmt.Errorf("it begins at %d, floor %d", s.FirstIndex, s.Floor)
		}
		return err
	})
	before, err := leader.client().Cluster(ctx)
	require.NoError(t, err)

	// One event at a time, to the leader, before and while the node joins.
	probe := func(stop <-chan struct{}) (times []time.Duration) {
		hc := &http.Client{Timeout: 30 * time.Second}
		for n := 0; ; n++ {
			select {
			case <-stop:
				return times
			default:
			}
			began := time.Now()
			resp, err := hc.Post("http://"+leader.http+"/v1/channels/probe/events", "application/json", bytes.NewReader([]byte(`{"n":1}`)))
			if err == nil {
				resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					times = append(times, time.Since(began))
				}
			}
			time.Sleep(2 * time.Millisecond) // the probe must not be the load
		}
	}
	during := func(what func()) []time.Duration {
		stop, out := make(chan struct{}), make(chan []time.Duration, 1)
		go func() { out <- probe(stop) }()
		what()
		close(stop)
		return <-out
	}
	p99 := func(all []time.Duration) time.Duration {
		require.NotEmpty(t, all)
		slices.Sort(all)
		return all[len(all)*99/100]
	}
	calm := during(func() { time.Sleep(time.Duration(scale(t, 20, 3)) * time.Second) })
	var fourth *proc
	joining := during(func() {
		fourth = g.join("n4")
		waitApplied(t, g)
	})
	t.Logf("ingest p99 %v in calm (%d), %v while joining (%d)", p99(calm), len(calm), p99(joining), len(joining))
	require.EqualValues(t, 1, installs(t, fourth))
	after, err := leader.client().Cluster(ctx)
	require.NoError(t, err)
	require.Equal(t, leader.id, after.Leader, "no change of leader")
	require.Equal(t, before.Term, after.Term)
	want := tailAll(t, leader, "pending")
	require.NotEmpty(t, want)
	require.Equal(t, want, tailAll(t, fourth, "pending"))
	if full == 1024 {
		require.LessOrEqual(t, p99(joining), 3*p99(calm))
	}
}
