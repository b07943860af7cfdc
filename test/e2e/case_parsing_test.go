package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/event"
	"penstock/internal/client"
)

// TestB01LongLinesAreTakenWholeOrRefusedWhole: no line limit of a scanner anywhere between the body, the log, the answer
// and the dead-letter volume.
func TestB01LongLinesAreTakenWholeOrRefusedWhole(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c := g.client()
	hook := startReceiver(t)
	hook.answer(410)
	_, err := c.PutChannel(context.Background(), "long", channelSpec("long", "", webhookEmitter("hook", hook.url(), "")), client.PutOptions{})
	require.NoError(t, err)
	follower := g.follower()
	const limit = 1 << 20
	total := 0
	for _, size := range []int{65_535, 65_536, 1_000_000, limit, limit + 1} {
		var body bytes.Buffer
		var want []string
		for i := range 5 {
			line := fmt.Sprintf(`{"n":%d,"size":%d}`, i, size)
			if i == 2 {
				pad := strings.Repeat("x", size-len(`{"pad":""}`))
				line = `{"pad":"` + pad + `"}`
				require.Len(t, line, size)
			}
			want = append(want, line)
			body.WriteString(line + "\n")
		}
		status, answer := follower.post("/v1/channels/long/events?detail=1", "application/x-ndjson", body.Bytes())
		if size > limit {
			require.Equal(t, 413, status, answer)
			require.Contains(t, answer, strconv.Itoa(limit), "the limit is named")
			continue
		}
		require.Equal(t, 200, status, answer)
		waitApplied(t, g)
		got := tailAll(t, follower, "long")
		require.Len(t, got, total+5, "the lines behind the long one are there")
		for i, s := range got[total:] {
			e, err := event.ParseStructured([]byte(s.raw))
			require.NoError(t, err)
			require.Equal(t, want[i], string(e.Data))
		}
		total += 5
	}
	waitDelivered(t, c, "long", 30*time.Second)
	before := tailAll(t, follower, "long")
	require.Equal(t, 0, follower.term(12*time.Second))
	follower.start()
	follower.waitReady(20 * time.Second)
	require.Equal(t, before, tailAll(t, follower, "long"), "after a restart")
	longest := 0
	for _, p := range g.nodes {
		files, err := filepath.Glob(filepath.Join(p.dlq, "*.jsonl"))
		require.NoError(t, err)
		for _, f := range files {
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			for line := range bytes.SplitSeq(b, []byte("\n")) {
				longest = max(longest, len(line))
			}
		}
	}
	require.Greater(t, longest, limit, "the long record is whole in the dead-letter volume")
}

// TestB03NumbersArriveAsTheyWereSent: no number goes through a float.
func TestB03NumbersArriveAsTheyWereSent(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{nodes: 1, single: true})
	hook := startReceiver(t)
	c := g.client()
	_, err := c.PutChannel(context.Background(), "numbers", channelSpec("numbers", "", webhookEmitter("hook", hook.url(), "")), client.PutOptions{})
	require.NoError(t, err)
	data := `{"a":228930314431312345,"b":9007199254740993,"c":-0,"d":1e400,"e":0.1000,"f":1234567890123456789012345678901234567890}`
	hook.answer(410)
	status, answer := g.nodes[0].post("/v1/channels/numbers/events", "application/json", []byte(data))
	require.Equal(t, 200, status, answer)
	waitDelivered(t, c, "numbers", 10*time.Second)
	hook.answer(200)
	structured := `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":` + data + `}`
	status, answer = g.nodes[0].post("/v1/channels/numbers/events", "application/cloudevents+json", []byte(structured))
	require.Equal(t, 200, status, answer)
	waitDelivered(t, c, "numbers", 10*time.Second)
	for _, r := range hook.all() {
		require.Equal(t, data, string(r.body))
	}
	require.Len(t, hook.all(), 2)
	for _, s := range tailAll(t, g.nodes[0], "numbers") {
		require.Contains(t, s.raw, `"data":`+data)
	}
	require.Contains(t, deadLetterFiles(t, g), data, "in the dead-letter record, byte for byte")
}

// deadLetterFiles is the text of all dead-letter files of the group.
func deadLetterFiles(t *testing.T, g *group) string {
	t.Helper()
	var all strings.Builder
	for _, p := range g.nodes {
		files, err := filepath.Glob(filepath.Join(p.dlq, "*.jsonl"))
		require.NoError(t, err)
		for _, f := range files {
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			all.Write(b)
		}
	}
	return all.String()
}

// TestB05BadUTF8IsRefusedWithItsPlace: never a tail that is dropped in silence, and no neighbour suffers.
func TestB05BadUTF8IsRefusedWithItsPlace(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{nodes: 1, single: true})
	hook := startReceiver(t)
	c := g.client()
	_, err := c.PutChannel(context.Background(), "text", channelSpec("text", "", webhookEmitter("hook", hook.url(), "")), client.PutOptions{})
	require.NoError(t, err)
	want := []string{}
	for name, v := range map[string]struct {
		value string
		taken bool
	}{
		"latin-1":        {"caf\xe1 au lait", false},
		"overlong":       {"\xc0\xaf tail", false},
		"lone surrogate": {`\ud800 tail`, true},
		"emoji":          {"😀 tail", true},
	} {
		body := `{"text":"` + v.value + `","after":"still here"}`
		for _, form := range []struct{ contentType, body string }{
			{"application/json", body},
			{"application/x-ndjson", "{\"n\":1}\n" + body + "\n{\"n\":2}\n"},
		} {
			before := len(tailAll(t, g.nodes[0], "text"))
			status, answer := g.nodes[0].post("/v1/channels/text/events", form.contentType, []byte(form.body))
			if !v.taken {
				require.Equal(t, 400, status, "%s: %s", name, answer)
				require.Contains(t, answer, `"byte"`, name)
				require.Len(t, tailAll(t, g.nodes[0], "text"), before, "%s: all or nothing", name)
				continue
			}
			require.Equal(t, 200, status, "%s: %s", name, answer)
			want = append(want, body)
		}
	}
	waitDelivered(t, c, "text", 10*time.Second)
	var got []string
	for _, r := range hook.all() {
		got = append(got, string(r.body))
	}
	for _, w := range want {
		require.Contains(t, got, w)
	}
}

// TestB11RepeatedIDsInOneBatch: the first wins, the later ones are duplicates (a conflict where the content differs), and
// nothing halts.
func TestB11RepeatedIDsInOneBatch(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{})
	c := g.client()
	ctx := context.Background()
	_, err := c.PutChannel(ctx, "keys", channelSpec("keys", ""), client.PutOptions{})
	require.NoError(t, err)
	ev := func(id, data string) map[string]any {
		return map[string]any{"specversion": "1.0", "id": id, "source": "/k", "type": "t", "data": data}
	}
	body, err := json.Marshal([]any{ev("K1", "a"), ev("K2", "b"), ev("K1", "a"), ev("K3", "c"), ev("K2", "other")})
	require.NoError(t, err)
	r, err := c.Send(ctx, "keys", body, batchType, client.SendOptions{Detail: true})
	require.NoError(t, err)
	require.Equal(t, 3, r.Accepted)
	require.Equal(t, 2, r.Duplicates)
	require.Equal(t, r.Events[0].Position, *r.Events[2].DuplicateOf)
	require.False(t, r.Events[2].Conflict)
	require.Equal(t, r.Events[1].Position, *r.Events[4].DuplicateOf)
	require.True(t, r.Events[4].Conflict)
	r, err = c.Send(ctx, "keys", body, batchType, client.SendOptions{Detail: true})
	require.NoError(t, err)
	require.Equal(t, 0, r.Accepted)
	require.Equal(t, 5, r.Duplicates)

	second, err := json.Marshal([]any{ev("K4", "a"), ev("K5", "b")})
	require.NoError(t, err)
	results := make(chan int, 2)
	for _, p := range g.nodes[:2] {
		cl := p.client()
		go func() {
			r, err := cl.Send(ctx, "keys", second, batchType, client.SendOptions{})
			if err != nil {
				results <- -1
				return
			}
			results <- r.Accepted
		}()
	}
	require.Equal(t, 2, <-results+<-results, "two identical batches at once are accepted once")
	waitApplied(t, g)
	got := tailAll(t, g.nodes[2], "keys")
	var stored []string
	for _, s := range got {
		stored = append(stored, s.id)
	}
	require.ElementsMatch(t, []string{"K1", "K2", "K3", "K4", "K5"}, stored)
	_, err = c.Send(ctx, "keys", batch("next", 0, 3), batchType, client.SendOptions{})
	require.NoError(t, err)
}

// TestS16RepeatedKeysAndByteOrderMark: one rule on ingest, dedup and emission: repeated keys of the data are kept as they
// are, a repeated attribute of the event itself is refused, and so is a byte order mark, with its place.
func TestS16RepeatedKeysAndByteOrderMark(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{nodes: 1, single: true})
	hook := startReceiver(t)
	c := g.client()
	_, err := c.PutChannel(context.Background(), "twice", channelSpec("twice", "", webhookEmitter("hook", hook.url(), "")), client.PutOptions{})
	require.NoError(t, err)
	post := func(contentType, body string) (int, string) {
		return g.nodes[0].post("/v1/channels/twice/events", contentType, []byte(body))
	}
	data := `{"a":1,"a":2}`
	status, answer := post("application/json", data)
	require.Equal(t, 200, status, answer)
	status, answer = post("application/cloudevents+json", `{"specversion":"1.0","id":"1","source":"/s","type":"t","id":"2","data":1}`)
	require.Equal(t, 400, status, answer)
	require.Contains(t, answer, "id")
	status, answer = post("application/json", "\xef\xbb\xbf{\"a\":1}")
	require.Equal(t, 400, status, answer)
	require.Contains(t, answer, `"byte":0`)
	for place, body := range map[string]string{`"line":1`: "\xef\xbb\xbf1\n2\n", `"line":2`: "1\n\xef\xbb\xbf2\n"} {
		status, answer = post("application/x-ndjson", body)
		require.Equal(t, 400, status, answer)
		require.Contains(t, answer, place)
		require.Contains(t, answer, `"byte"`)
	}

	// Dedup goes by the pair (source, id), and takes the data as it was written.
	keyed := func(data string) client.SendResult {
		r, err := c.Send(context.Background(), "twice", []byte(`[{"specversion":"1.0","id":"K","source":"/s","type":"t","data":`+data+`}]`), batchType,
			client.SendOptions{Detail: true})
		require.NoError(t, err)
		return r
	}
	first := keyed(data)
	require.Equal(t, 1, first.Accepted)
	for other, conflict := range map[string]bool{data: false, `{"a":2}`: true, `{"a":2,"a":1}`: true} {
		r := keyed(other)
		require.Equal(t, 0, r.Accepted, other)
		require.Equal(t, 1, r.Duplicates, other)
		require.Equal(t, first.Events[0].Position, *r.Events[0].DuplicateOf)
		require.Equal(t, conflict, r.Events[0].Conflict, other)
	}
	waitDelivered(t, c, "twice", 10*time.Second)
	require.Len(t, hook.all(), 2, "nothing of what was refused, and no duplicate")
	for _, r := range hook.all() {
		require.Equal(t, data, string(r.body))
	}
}
