package e2e

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// TestExplainSaysWhereAnEventIs: delivered, pending and dead-lettered; and a duplicate says where the first is.
func TestExplainSaysWhereAnEventIs(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c := g.client()
	hook := startReceiver(t)
	ctx := context.Background()
	_, err := c.PutChannel(ctx, "why", channelSpec("why", "", webhookEmitter("hook", hook.url(), `"retry":{"ttl":"30m","backoff":{"min":"1s","max":"2s"}}`)), client.PutOptions{})
	require.NoError(t, err)

	send := func(id, data string) client.SendResult {
		body, err := json.Marshal([]map[string]any{{"specversion": "1.0", "id": id, "source": "/why", "type": "t", "data": data}})
		require.NoError(t, err)
		r, err := c.Send(ctx, "why", body, batchType, client.SendOptions{Detail: true})
		require.NoError(t, err)
		return r
	}
	explain := func(id string) client.Delivery {
		x, err := c.Explain(ctx, id, "")
		require.NoError(t, err)
		require.Len(t, x.Events, 1)
		require.Equal(t, "why", x.Events[0].Channel)
		require.Len(t, x.Events[0].Deliveries, 1)
		return x.Events[0].Deliveries[0]
	}
	until := func(id, state string) client.Delivery {
		var d client.Delivery
		eventually(t, 10*time.Second, id+" "+state, func() error {
			d = explain(id)
			if d.State == state && (state != "pending" || d.Attempts > 0) {
				return nil
			}
			return context.DeadlineExceeded
		})
		return d
	}

	first := send("good", "one")
	d := until("good", "delivered")
	require.EqualValues(t, 1, d.Attempts)
	require.NotEmpty(t, d.CompactionID)
	require.NotEmpty(t, d.Next)
	require.Equal(t, d.CompactionID, hook.all()[0].header.Get("Penstock-Compaction-Id"))

	hook.answer(503)
	send("waits", "two")
	d = until("waits", "pending")
	require.Equal(t, "transient", d.LastClass)
	require.Equal(t, 503, d.LastStatus)
	require.NotEmpty(t, d.NextAttempt)
	require.NotEmpty(t, d.Owner)

	hook.answer(410)
	send("refused", "three")
	d = until("refused", "dead")
	require.Equal(t, "permanent", d.LastClass)
	require.Equal(t, 410, d.LastStatus)
	require.NotEmpty(t, d.DeadLetterID)
	letters, err := c.DeadLetters(ctx, client.DeadLetterFilter{Channel: "why"})
	require.NoError(t, err)
	require.Contains(t, ids(letters), d.DeadLetterID)

	again := send("good", "one")
	require.EqualValues(t, 0, again.Accepted)
	require.EqualValues(t, 1, again.Duplicates)
	require.Equal(t, first.Events[0].Position, *again.Events[0].DuplicateOf)
	require.False(t, again.Events[0].Conflict)
	require.True(t, send("good", "other").Events[0].Conflict, "the same id with other content")

	stdout, _ := g.run(0, "", "explain", "refused")
	require.Contains(t, stdout, "dead")
	require.Contains(t, stdout, d.DeadLetterID)
}

func ids(letters []client.DeadLetter) []string {
	var out []string
	for _, l := range letters {
		out = append(out, l.ID)
	}
	return out
}
