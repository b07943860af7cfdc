package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// keys are the tokens of a test by name, and the entries of their file.
type keys struct {
	t      *testing.T
	dir    string
	tokens map[string]string
	lines  map[string]string
}

// newKeys makes one token for each name with these roles, by the command line as a user would.
func newKeys(t *testing.T, roles map[string][]string) *keys {
	k := &keys{t: t, dir: t.TempDir(), tokens: map[string]string{}, lines: map[string]string{}}
	for name, allow := range roles {
		args := []string{"token", "new", name, "-o", "json"}
		for _, r := range allow {
			args = append(args, "--allow", r)
		}
		out, err := exec.Command(binary, args...).Output()
		require.NoError(t, err)
		var made struct{ Token, Hash string }
		require.NoError(t, json.Unmarshal(out, &made))
		k.tokens[name] = made.Token
		k.lines[name] = fmt.Sprintf("  - {name: %s, hash: %q, allow: [\"%s\"]}\n", name, made.Hash, strings.Join(allow, `", "`))
	}
	return k
}

// write makes the file of a node hold all tokens but some, as a new file renamed over the old one.
func (k *keys) write(node string, without ...string) {
	text := "tokens:\n"
	for name, line := range k.lines {
		if !slices.Contains(without, name) {
			text += line
		}
	}
	path := filepath.Join(k.dir, node+".yaml")
	require.NoError(k.t, os.WriteFile(path+".new", []byte(text), 0o600))
	require.NoError(k.t, os.Rename(path+".new", path))
}

// configuration is what a group's nodes need to use them.
func (k *keys) configuration() string {
	return fmt.Sprintf("auth: {tokens: \"${file:%s/{id}.yaml}\"}\n", k.dir)
}

var oneOfEach = map[string][]string{
	"producer": {"producer:orders"}, "consumer": {"consumer:orders"}, "viewer": {"viewer"}, "operator": {"operator"}, "admin": {"admin"},
	"root": {"producer:*", "consumer:*", "viewer", "operator", "admin"},
}

// startGuarded starts a cluster whose nodes know the tokens, each from a file of its own.
func startGuarded(t *testing.T, opts options, roles map[string][]string) (*group, *keys) {
	k := newKeys(t, roles)
	opts.token, opts.more = k.tokens["root"], opts.more+k.configuration()
	g := newGroup(t, opts)
	for _, p := range g.nodes {
		k.write(p.id)
		p.start()
	}
	for _, p := range g.nodes {
		p.waitReady(20 * time.Second)
	}
	return g, k
}

// ask sends a request with a token ("" shows none) and gives the status and the answer.
func (p *proc) ask(token, method, path, body string) (int, string) {
	p.g.t.Helper()
	req, err := http.NewRequest(method, "http://"+p.http+path, strings.NewReader(body))
	require.NoError(p.g.t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("Content-Type", "application/json")
	return roundTrip(p.g.t, req)
}

// matrix reads the table of docs/access.md: who may, by route.
func matrix(t *testing.T) map[string][]string {
	b, err := os.ReadFile("../../docs/access.md")
	require.NoError(t, err)
	out := map[string][]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Z]+ [^`]+)` \\|(.*)\\|$").FindAllStringSubmatch(string(b), -1) {
		out[m[1]] = nil
		for i, cell := range strings.Split(m[2], "|") {
			if strings.TrimSpace(cell) == "x" {
				out[m[1]] = append(out[m[1]], []string{"producer", "consumer", "viewer", "operator", "admin"}[i])
			}
		}
	}
	require.Greater(t, len(out), 20)
	return out
}

// TestAccessHoldsThroughAnyNode: each route and role of the documented matrix through the leader and a follower; wrong tokens are
// refused everywhere; one that was removed where the request is carried out is refused wherever it comes in, and everywhere as soon as
// it is gone from every file; acts carry the actor's name in the trail; no token stands in any log.
func TestAccessHoldsThroughAnyNode(t *testing.T) {
	t.Parallel()
	g, k := startGuarded(t, options{}, oneOfEach)
	ctx := context.Background()
	leader := g.leader()
	follower := g.follower()
	_, err := follower.clientAs(k.tokens["admin"]).PutChannel(ctx, "orders", channelSpec("orders", ""), client.PutOptions{})
	require.NoError(t, err, "forwarded to the leader with the actor")
	for i, p := range g.nodes {
		_, err := p.clientAs(k.tokens["producer"]).Send(ctx, "orders", batch(p.id, i, 1), batchType, client.SendOptions{})
		require.NoError(t, err)
	}
	waitApplied(t, g)
	for route, may := range matrix(t) {
		method, path, _ := strings.Cut(route, " ")
		path = strings.NewReplacer("{channel}", "orders", "{source}", "s", "{partition}", "p", "{id...}", "none", "{id}", "none", "{emitter}", "none").Replace(path)
		body := `{"bad` // every allowed act is refused for its body, later
		if method == http.MethodGet || method == http.MethodDelete {
			body = ""
		}
		public := path == "/healthz" || path == "/readyz"
		for _, p := range []*proc{leader, follower} {
			for name := range oneOfEach {
				if method == http.MethodDelete && (name == "admin" || name == "root") && strings.HasSuffix(path, "/orders") {
					continue // it would
				}
				status, answer := p.ask(k.tokens[name], method, path, body)
				if name == "root" || public || slices.Contains(may, name) {
					require.NotContains(t, []int{401, 403}, status, "%s as %s at %s: %s", route, name, p.id, answer)
				} else {
					require.Equal(t, 403, status, "%s as %s at %s: %s", route, name, p.id, answer)
				}
			}
			for _, wrong := range []string{"", "pst_wrong_wrong_wrong_wrong_wrong_wrong_wrong"} {
				status, answer := p.ask(wrong, method, path, body)
				require.Equal(t, public, status != 401, "%s at %s: %s", route, p.id, answer)
			}
		}
	}

	// Removed where it is carried out: refused wherever it comes in, certainly not committed.
	send := func(p *proc) (int, string) {
		return p.ask(k.tokens["producer"], "POST", "/v1/channels/orders/events", `{"n":1}`)
	}
	leader = g.leader()
	k.write(leader.id, "producer")
	leader.signal(syscall.SIGHUP)
	eventually(t, 10*time.Second, "the leader refuses", func() error {
		if status, answer := send(leader); status != 401 {
			return fmt.Errorf("%d %s", status, answer)
		}
		return nil
	})
	ledger, err := g.client().Ledger(ctx, "orders")
	require.NoError(t, err)
	for _, p := range g.nodes {
		if p != leader {
			status, answer := send(p)
			require.Equal(t, 403, status, "%s: %s", p.id, answer)
			require.Contains(t, answer, `"committed":"no"`)
			require.Contains(t, answer, "not known here")
		}
	}
	after, err := g.client().Ledger(ctx, "orders")
	require.NoError(t, err)
	require.Equal(t, ledger.Accepted, after.Accepted)

	// Gone from every file: refused everywhere, without a signal.
	for _, p := range g.nodes {
		k.write(p.id, "producer")
	}
	for _, p := range g.nodes {
		eventually(t, 10*time.Second, p.id+" refuses", func() error {
			if status, answer := send(p); status != 401 {
				return fmt.Errorf("%d %s", status, answer)
			}
			return nil
		})
	}
	acts, err := g.client().Audit(ctx, 1000, false)
	require.NoError(t, err)
	put := slices.IndexFunc(acts, func(r client.AuditRecord) bool {
		return r.Action == "channel.put" && r.Actor == "admin" && r.Result == "success"
	})
	require.GreaterOrEqual(t, put, 0, "%+v", acts)
	require.Equal(t, []string{"orders"}, acts[put].IDs)
	require.True(t, slices.ContainsFunc(acts, func(r client.AuditRecord) bool { return r.Actor == "viewer" && r.Result == "rejected" }), "refused acts are recorded")
	for _, p := range g.nodes {
		log, err := os.ReadFile(p.logTo)
		require.NoError(t, err)
		for name, token := range k.tokens {
			require.NotContains(t, string(log), token, "the token of %s stands in the log of %s", name, p.id)
		}
		require.NotContains(t, string(log), "sha256:")
	}
}

// TestSIGHUPTakesOverWhatItCan: limits and log level change in the running process, the log says what did and what needs a restart, and
// a wrong configuration changes nothing.
func TestSIGHUPTakesOverWhatItCan(t *testing.T) {
	t.Parallel()
	g := startGroup(t, options{nodes: 1, single: true})
	p, ctx := g.nodes[0], context.Background()
	_, err := g.client().PutChannel(ctx, "orders", channelSpec("orders", ""), client.PutOptions{})
	require.NoError(t, err)
	deep := []byte(strings.Repeat("[", 100) + strings.Repeat("]", 100))
	status, answer := p.post("/v1/channels/orders/events", "application/json", deep)
	require.Equal(t, 200, status, answer)

	text, err := os.ReadFile(p.config)
	require.NoError(t, err)
	reload := func(more string) {
		require.NoError(t, os.WriteFile(p.config, append(slices.Clone(text), more...), 0o600))
		p.signal(syscall.SIGHUP)
	}
	logged := func(want string) {
		eventually(t, 10*time.Second, "log says "+want, func() error {
			log, err := os.ReadFile(p.logTo)
			require.NoError(t, err)
			if !strings.Contains(string(log), want) {
				return fmt.Errorf("not yet")
			}
			return nil
		})
	}
	reload("limits: {depth: 50, header: 7s}\nlog: {level: debug}\n")
	logged(`"changed":["limits.depth: 512 -> 50","log.level: info -> debug"]`)
	logged(`"needs_restart":["limits.header: 5s -> 7s"]`)
	status, answer = p.post("/v1/channels/orders/events", "application/json", deep)
	require.Equal(t, 400, status, answer)
	logged(`"msg":"answered"`) // a line of debug

	reload("limits: {depth: many}\n")
	logged("configuration not taken over")
	reload("auth: {tokens: \"${file:/nowhere}\"}\n")
	logged("tokens from ${file:/nowhere}")
	status, _ = p.post("/v1/channels/orders/events", "application/json", []byte(`1`))
	require.Equal(t, 200, status, "it goes on as it was")
	require.Zero(t, p.term(20*time.Second))
}
