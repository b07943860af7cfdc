package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/destination"
)

func (r *running) do(method, path, body string) (int, map[string]any) {
	r.t.Helper()
	req, err := http.NewRequest(method, "http://"+r.cfg.Node.HTTP+path, strings.NewReader(body))
	require.NoError(r.t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", "r-1")
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	out := map[string]any{}
	if len(b) > 0 && b[0] == '{' {
		require.NoError(r.t, json.Unmarshal(bytes.SplitN(b, []byte("\n"), 2)[0], &out))
	}
	return resp.StatusCode, out
}

func (r *running) letters() []map[string]any {
	r.t.Helper()
	status, out := r.do(http.MethodGet, "/v1/dlq", "")
	require.Equal(r.t, 200, status)
	var all []map[string]any
	for _, x := range out["dead_letters"].([]any) {
		all = append(all, x.(map[string]any))
	}
	return all
}

func (r *running) row() map[string]any {
	r.t.Helper()
	status, out := r.do(http.MethodGet, "/v1/channels/orders/ledger", "")
	require.Equal(r.t, 200, status)
	require.Equal(r.t, true, out["balanced"])
	return out["emitters"].([]any)[0].(map[string]any)
}

func soon(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 20*time.Second, 20*time.Millisecond, what)
}

// TestDeadLettersAreReplayedDiscardedAndAudited is the life of dead letters on one node, over its HTTP surface and a receiver on
// a real socket: listed, refused requests, dry run, replay, discard, audit, ledger, export, a restart, and a volume that is lost.
func TestDeadLettersAreReplayedDiscardedAndAudited(t *testing.T) {
	var receiver destination.Server
	web := httptest.NewServer(&receiver)
	defer web.Close()
	receiver.Script("it", destination.Step{Status: 400})
	cfg := single(t)
	r := start(t, cfg)
	status, out := r.do(http.MethodPut, "/v1/channels/orders", fmt.Sprintf(
		`{"name":"orders","semantics":"at-least-once","order":"none","emitters":[{"name":"billing","kind":"webhook","webhook":{"url":%q}}]}`, web.URL+"/hook/it"))
	require.Equal(t, 200, status, out)
	for i := range 6 {
		status, out := r.do(http.MethodPost, "/v1/channels/orders/events", fmt.Sprintf(`{"n":%d}`, i))
		require.Equal(t, 200, status, out)
	}
	soon(t, "six dead letters", func() bool { return len(r.letters()) == 6 })
	var ids []string
	for _, l := range r.letters() {
		ids = append(ids, l["id"].(string))
	}
	list := func(ids ...string) string {
		b, _ := json.Marshal(ids)
		return string(b)
	}

	// Refused, and on record.
	status, out = r.do(http.MethodPost, "/v1/dlq/replay", `{"ids":`+list(make([]string, 51)...)+`}`)
	require.Equal(t, 400, status, out)
	status, _ = r.do(http.MethodPost, "/v1/dlq/discard", `{"ids":`+list(ids[0])+`}`)
	require.Equal(t, 400, status, "a discard needs a reason")
	status, out = r.do(http.MethodGet, "/v1/audit?action=dlq.*", "")
	require.Equal(t, 200, status)
	require.Len(t, out["records"], 2)
	require.Equal(t, "rejected", out["records"].([]any)[0].(map[string]any)["result"])

	// A destination that still refuses; a dry run.
	status, out = r.do(http.MethodPost, "/v1/dlq/replay", `{"ids":`+list(ids[0], ids[0], "00")+`,"dry_run":true}`)
	require.Equal(t, 200, status)
	require.Equal(t, map[string]any{"would_replay": 2.0, "not_found": 1.0}, out["counts"])
	sent := len(receiver.Received("it"))
	status, out = r.do(http.MethodPost, "/v1/dlq/replay", `{"ids":`+list(ids[0])+`,"reason":"try"}`)
	require.Equal(t, 200, status)
	require.Equal(t, map[string]any{"failed": 1.0}, out["counts"], out)
	require.Len(t, receiver.Received("it"), sent+1)

	// It is mended: replayed under the same ids.
	before := receiver.Received("it")
	receiver.Script("it")
	status, out = r.do(http.MethodPost, "/v1/dlq/replay", `{"ids":`+list(ids[0], ids[1])+`,"reason":"mended"}`)
	require.Equal(t, 200, status)
	require.Equal(t, map[string]any{"delivered": 2.0}, out["counts"], out)
	require.NotContains(t, fmt.Sprint(out), `"n"`, "no payload leaves through a replay")
	intent := out["intent"]
	for _, again := range receiver.Received("it") {
		found := false
		for _, first := range before {
			found = found || (first.WebhookID == again.WebhookID && first.CompactionID == again.CompactionID)
		}
		require.True(t, found, "a replay carries the ids of the first attempt")
	}
	status, out = r.do(http.MethodPost, "/v1/dlq/replay", `{"ids":`+list(ids[0])+`}`)
	require.Equal(t, 200, status)
	require.Equal(t, map[string]any{"resolved": 1.0}, out["counts"])
	status, out = r.do(http.MethodGet, "/v1/dlq/"+ids[0], "")
	require.Equal(t, 200, status)
	require.Equal(t, "replayed", out["state"], "looking it up says what became of it")

	status, out = r.do(http.MethodPost, "/v1/dlq/discard", `{"ids":`+list(ids[2])+`,"reason":"a test order"}`)
	require.Equal(t, 200, status)
	require.Equal(t, map[string]any{"discarded": 1.0}, out["counts"], out)
	row := r.row()
	require.Equal(t, []any{2.0, 3.0, 1.0}, []any{row["delivered"], row["dead"], row["discarded"]})

	status, out = r.do(http.MethodGet, "/v1/audit?action=dlq.replay&order=newest", "")
	require.Equal(t, 200, status)
	var success map[string]any
	for _, x := range out["records"].([]any) {
		if rec := x.(map[string]any); rec["id"] == intent {
			success = rec
		}
	}
	require.Equal(t, "success", success["result"])
	require.Equal(t, "mended", success["reason"])
	require.Equal(t, "r-1", success["request_id"])
	require.Equal(t, false, success["open"])

	// An emitter is paused: nothing is attempted; it goes on when it is resumed.
	status, out = r.do(http.MethodPost, "/v1/emitters/orders/billing/pause", `{"reason":"maintenance"}`)
	require.Equal(t, 200, status, out)
	status, _ = r.do(http.MethodPost, "/v1/emitters/orders/nobody/pause", "")
	require.Equal(t, 404, status)
	soon(t, "it stops here", func() bool {
		_, out := r.do(http.MethodPost, "/v1/dlq/replay", `{"ids":`+list(ids[3])+`,"dry_run":true}`)
		return fmt.Sprint(out["counts"]) == "map[forbidden:1]"
	})
	status, _ = r.do(http.MethodPost, "/v1/emitters/orders/billing/resume", "")
	require.Equal(t, 200, status)

	// The volume follows, the export is what stands in its files, and the trail is in a file.
	volume := cfg.DeadLetterDirectory()
	lines := func() (all []string) {
		files, _ := filepath.Glob(filepath.Join(volume, "*.jsonl"))
		for _, f := range files {
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			all = append(all, strings.SplitAfter(strings.TrimSuffix(string(b), "\n"), "\n")...)
		}
		return all
	}
	soon(t, "resolved records go", func() bool { return !strings.Contains(strings.Join(lines(), ""), ids[0]) })
	status, exported := r.request(http.MethodGet, "/v1/dlq/export?channel=orders", "", http.NoBody)
	require.Equal(t, 200, status)
	for _, id := range ids[3:] {
		require.Contains(t, exported, id)
	}
	soon(t, "the trail is mirrored", func() bool {
		b, _ := os.ReadFile(filepath.Join(cfg.Node.DataDir, "audit.jsonl"))
		return strings.Contains(string(b), fmt.Sprint(intent)) && strings.Contains(string(b), `"result":"success"`)
	})
	r.stop()
	require.NoError(t, r.wait())

	// The volume is lost, whole: it is rebuilt from the state and the log.
	require.NoError(t, os.RemoveAll(volume))
	r = start(t, cfg)
	soon(t, "rebuilt", func() bool {
		text := strings.Join(lines(), "")
		return strings.Contains(text, ids[3]) && strings.Contains(text, ids[4]) && strings.Contains(text, ids[5])
	})
	require.Len(t, r.letters(), 3)
	status, out = r.do(http.MethodPost, "/v1/dlq/replay", `{"ids":`+list(ids[3:]...)+`}`)
	require.Equal(t, 200, status)
	require.Equal(t, map[string]any{"delivered": 3.0}, out["counts"], out)
	row = r.row()
	require.Equal(t, []any{5.0, 0.0, 1.0, 0.0}, []any{row["delivered"], row["dead"], row["discarded"], row["pending"]})
	r.stop()
	require.NoError(t, r.wait())
}
