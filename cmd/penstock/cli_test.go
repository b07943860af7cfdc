package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// fake answers like a node; what it is asked is kept.
type fake struct {
	*httptest.Server
	requests []string
	answers  map[string]string // "METHOD /path" to a body; one that starts with a number is a problem of that status
}

func newFake(t *testing.T, answers map[string]string) *fake {
	t.Helper()
	f := &fake{answers: answers}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		f.requests = append(f.requests, strings.TrimSpace(r.Method+" "+r.URL.String()+" "+string(body)))
		answer, ok := f.answers[r.Method+" "+r.URL.Path]
		if !ok {
			answer = "404 not-found nothing here"
		}
		var status int
		var kind string
		if n, _ := fmt.Sscanf(answer, "%d %s", &status, &kind); n == 2 {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"type":"urn:penstock:problem:%s","status":%d,"detail":"told so"}`, kind, status)
			return
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(f.Close)
	return f
}

// cli runs one command line against f (nil: nobody).
func cli(t *testing.T, f *fake, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs}
	if f != nil {
		a.environ = []string{"PENSTOCK_ADDR=" + f.URL}
	}
	code = a.run(context.Background(), args)
	return code, out.String(), errs.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

const (
	ledgerOK = `{"channel":"orders","applied_index":90,"accepted":5,"duplicates":1,"balanced":true,"emitters":[
		{"emitter":"billing","owner":"n2","epoch":3,"accepted":5,"delivered":2,"dead":1,"poison":0,"discarded":0,"lost":0,"pending":2,"balanced":true}]}`
	ledgerBad = `{"channel":"orders","accepted":5,"balanced":true,"emitters":[
		{"emitter":"billing","owner":"n2","accepted":5,"delivered":2,"balanced":true}]}`
	explained = `{"events":[{"id":"e1","source":"/s","channel":"orders","position":"7.2","accepted_at":"2025-01-02T03:04:05Z","deliveries":[
		{"emitter":"billing","state":"pending","compaction_id":"ab12","attempts":3,"last_attempt":"2025-01-02T03:05:00Z","last_class":"transient",
		 "last_status":503,"last_reason":"busy","next":"n2 tries again","next_attempt":"2025-01-02T03:06:00Z","owner":"n2","epoch":3},
		{"emitter":"files","state":"delivered","compaction_id":"cd34","attempts":1,"next":"nothing: it is delivered","owner":"n1","epoch":1},
		{"emitter":"old","state":"dead","attempts":9,"last_class":"permanent","last_status":404,"last_reason":"no such page","next":"kept","owner":"n1","epoch":1,"dead_letter_id":"dl-1"}]}]}`
	cluster = `{"cluster_id":"00ff","cluster":"prod","node_id":"n1","state":"follower","leader":"n2","term":4,"commit_index":90,"applied_index":90,
		"first_index":2,"last_index":91,"floor":80,"state_hash":{"index":90,"hash":"beef"},"members":[
		{"id":"n1","suffrage":"voter","http":"127.0.0.1:7070","raft":"127.0.0.1:7071","reachable":true,"last_index":91,"applied_index":90,"incarnation":2,"health":"dead","version":"v1"},
		{"id":"n2","suffrage":"voter","http":"127.0.0.1:7080","raft":"127.0.0.1:7081","leader":true,"reachable":true,"last_index":91,"applied_index":91,"incarnation":5,"health":"alive","version":"v1","zone":"b"}],
		"known":[{"id":"n9","health":"alive","http":"127.0.0.1:7090","raft":"127.0.0.1:7091","version":"v1"}]}`
	letters  = `{"dead_letters":[{"id":"dl-1","channel":"orders","emitter":"old","position":"7.2","state":"dead","class":"permanent","status":404,"attempts":9,"reason":"no such page","dead_lettered_at":"2025-01-02T03:04:05Z","owner":"n1"}]}`
	channels = `{"channels":[{"name":"orders","index":3,"version":9,"accepted":5,"spec":{"name":"orders","semantics":"at-least-once","order":"key","emitters":[{"name":"o","kind":"stdout"}]}}]}`
)

func TestTablesAndJSON(t *testing.T) {
	f := newFake(t, map[string]string{
		"GET /v1/channels": channels, "GET /v1/channels/orders/ledger": ledgerOK, "GET /v1/events/e1": explained,
		"GET /v1/cluster": cluster, "GET /v1/dlq": letters,
	})
	for name, args := range map[string][]string{
		"channel-list": {"channel", "list"}, "ledger": {"ledger"}, "explain": {"explain", "e1"}, "cluster-status": {"cluster", "status"},
		"cluster-members": {"cluster", "members"}, "dlq-list": {"dlq", "list"},
	} {
		for _, output := range []string{"table", "json"} {
			t.Run(name+"."+output, func(t *testing.T) {
				code, out, errs := cli(t, f, "", append(args, "--output", output)...)
				require.Zero(t, code, errs)
				require.Empty(t, errs, "data goes to standard output only")
				golden(t, name+"."+output, out)
			})
		}
	}
}

func TestLedgerThatDoesNotBalanceFails(t *testing.T) {
	f := newFake(t, map[string]string{"GET /v1/channels/orders/ledger": ledgerBad})
	code, out, errs := cli(t, f, "", "ledger", "orders")
	require.Equal(t, exitFailed, code, "the sum is checked here, not believed")
	require.Contains(t, out, "no")
	require.Contains(t, errs, "does not balance")
}

func TestExitCodes(t *testing.T) {
	f := newFake(t, map[string]string{
		"PUT /v1/channels/c": "504 unknown-outcome", "DELETE /v1/channels/u": "504 unknown-outcome", "DELETE /v1/channels/c": "409 conflict",
	})
	for _, c := range []struct {
		want int
		args string
		says string
	}{
		{exitUsage, "nonsense", `unknown command "nonsense"`},
		{exitUsage, "channel nonsense", `unknown command "nonsense" for "penstock channel"`},
		{exitUsage, "completion foo", `unknown command "foo" for "penstock completion"`},
		{exitUsage, "completion bash x", `unknown command "x"`},
		{exitUsage, "dlq list --state foo", "want dead or poison"},
		{exitUsage, "tail c -n -1", "0 is no limit"},
		{exitUsage, "ledger a b", "usage: penstock ledger [CHANNEL]"},
		{exitUsage, "ledger --nonsense", "unknown flag"},
		{exitUsage, "ledger --output xml", "want table or json"},
		{exitUsage, "tail", "accepts 1 arg"},
		{exitUsage, "tail c --from x", "INDEX"},
		{exitUsage, "channel apply", "-f FILE"},
		{exitUsage, "send c --close", "--source"},
		{exitUsage, "send c --batch-bytes 7", "with a unit"},
		{exitUsage, "send c a b --source s", "one input"},
		{exitUsage, "server --set nonsense", "KEY=VALUE"},
		{exitUsage, "dev --nodes 0", "1 to 9"},
		{exitUsage, "ledger --addr nohost", "host:port"},
		{exitFailed, "channel delete c", "409 conflict: told so"},
		{exitFailed, "channel show c", "404 not-found"},
		{exitFailed, "server", "node.id"},
		{exitFailed, "config check /nowhere", "no such file"},
		{exitUnknown, "channel delete u", "504 unknown-outcome"},
	} {
		code, out, errs := cli(t, f, "", strings.Fields(c.args)...)
		require.Equal(t, c.want, code, "%s: %s", c.args, errs)
		require.Contains(t, errs, c.says, c.args)
		require.Equal(t, 1, strings.Count(errs, "penstock: "), errs)
		if c.args != "server" { // which names all that is missing, one line each
			require.Equal(t, 1, strings.Count(errs, "\n"), "one line: %s", errs)
		}
		require.Empty(t, out)
	}
	code, out, _ := cli(t, nil, "", "channel")
	require.Zero(t, code)
	require.Contains(t, out, "apply")
}

func TestChannelApplyStatesTheSemanticsBack(t *testing.T) {
	f := newFake(t, map[string]string{"PUT /v1/channels/orders": `{"name":"orders","index":4,"version":4,"changed":true,"semantics":"at-least-once"}`})
	const text = "channels:\n  - name: orders\n    semantics: at-least-once\n    order: none\n    emitters:\n      - {name: o, kind: stdout}\n"
	code, out, errs := cli(t, f, text, "channel", "apply", "-f", "-", "--discard")
	require.Zero(t, code, errs)
	require.Contains(t, out, "at-least-once")
	require.Len(t, f.requests, 1)
	require.Contains(t, f.requests[0], `PUT /v1/channels/orders?discard=1 {`)

	f.requests = nil
	code, _, errs = cli(t, f, strings.Replace(text, "semantics: at-least-once", "semantic: x", 1), "channel", "apply", "-f", "-")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "3:", "the line is named")
	require.Empty(t, f.requests, "nothing of a bad file is applied")
}

func TestSendSaysWhatHappened(t *testing.T) {
	f := newFake(t, map[string]string{"POST /v1/channels/c/events": `{"index":7,"accepted":2,"duplicates":0,"poisoned":0}`})
	code, out, errs := cli(t, f, "1\n2\n", "send", "c", "-o", "json")
	require.Zero(t, code, errs)
	require.JSONEq(t, `{"sent":2,"accepted":2,"duplicates":0,"poisoned":0,"retries":0,"unknown":0,"bytes":2,"last_index":7}`, out)
	require.Empty(t, errs, "no progress where there is no terminal")

	f.answers["POST /v1/channels/c/events"] = "504 unknown-outcome"
	code, out, errs = cli(t, f, "1\n2\n", "send", "c", "--retry-for", "10ms", "-o", "json")
	require.Equal(t, exitUnknown, code)
	require.Contains(t, errs, "unknown")
	require.Contains(t, out, `"unknown": 2`)
}

func TestTailPrintsEventsInOrder(t *testing.T) {
	const event = `{"specversion":"1.0","id":"e%d","source":"/s","type":"t","datacontenttype":"application/json","data":{"a":  %d},"penstockindex":5,"penstockordinal":%d}` + "\n"
	page := fmt.Sprintf(event, 0, 0, 0) + fmt.Sprintf(event, 1, 1, 1)
	f := newFake(t, nil)
	f.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Penstock-Applied", "9")
		w.Header().Set("Penstock-Next", "10.0")
		if r.URL.Query().Get("from") == "" {
			_, _ = io.WriteString(w, page)
		}
	})
	code, out, errs := cli(t, f, "", "tail", "c", "-o", "json")
	require.Zero(t, code, errs)
	require.Equal(t, page, out, "as the node gave it, byte for byte")
	code, out, errs = cli(t, f, "", "tail", "c")
	require.Zero(t, code, errs)
	require.Equal(t, "5.0         t  /s  e0  {\"a\": 0}\n5.1         t  /s  e1  {\"a\": 1}\n", out)
	code, out, _ = cli(t, f, "", "tail", "c", "-f", "-n", "1")
	require.Zero(t, code)
	require.Equal(t, 1, strings.Count(out, "\n"))
}

func TestConfigVerbs(t *testing.T) {
	code, out, _ := cli(t, nil, "", "config", "example")
	require.Zero(t, code)
	path := filepath.Join(t.TempDir(), "n.yaml")
	require.NoError(t, os.WriteFile(path, []byte(out), 0o600))
	code, out, errs := cli(t, nil, "", "config", "check", path)
	require.Zero(t, code, errs)
	require.Equal(t, "ok\n", out)
	require.NoError(t, os.WriteFile(path, []byte("node: {id: n1, dir: /x}\n"), 0o600))
	code, _, errs = cli(t, nil, "", "config", "check", path)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, path+":1:16: node.dir: \"/x\": unknown key")
}

func TestDevClusterIsThreeValidNodesOnTheDocumentedPorts(t *testing.T) {
	o := devOptions{nodes: 3, data: "/d", portBase: 7070}
	for i := range 3 {
		c := devConfig(o, i)
		require.NoError(t, c.Validate())
		require.Equal(t, fmt.Sprintf("127.0.0.1:%d", 7070+10*i), c.Node.HTTP)
		require.Equal(t, fmt.Sprintf("127.0.0.1:%d", 7072+10*i), c.GossipAdvertise())
		require.Len(t, c.Cluster.Seeds, 3)
		require.Empty(t, c.Warnings())
	}
	one := devConfig(devOptions{nodes: 1, data: "/d", portBase: 7070}, 0)
	require.NoError(t, one.Validate())
	require.True(t, one.Single())
	ch, err := demoChannel("/d")
	require.NoError(t, err)
	require.Equal(t, "/d/out", ch.Emitters[0].File.Directory)
}

func TestCompletionIsThere(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		code, out, errs := cli(t, nil, "", "completion", shell)
		require.Zero(t, code, errs)
		require.Contains(t, out, "penstock")
	}
	code, out, _ := cli(t, nil, "", "version")
	require.Zero(t, code)
	require.Contains(t, out, "penstock dev (go")
}
