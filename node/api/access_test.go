package api

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/cluster"
	"penstock/node/access"
	"penstock/node/replay"
)

// trail is an Auditor that remembers.
type trail struct {
	mu   sync.Mutex
	acts []string
	fail error
}

func (tr *trail) add(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.acts = append(tr.acts, fmt.Sprintf(format, args...))
}

func (tr *trail) take() []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	out := tr.acts
	tr.acts = nil
	return out
}

func (tr *trail) Audited(ctx context.Context, act replay.Act, do func(context.Context) (string, string)) error {
	if tr.fail != nil {
		return tr.fail
	}
	outcome, detail := do(ctx)
	kind, _, _ := strings.Cut(detail, ":")
	tr.add("%s %s %v %s %s", act.Actor, act.Action, act.Targets, outcome, kind)
	return nil
}

func (tr *trail) Rejected(_ context.Context, act replay.Act, why string) {
	tr.add("%s %s %v %s", act.Actor, act.Action, act.Targets, why)
}

// bearers are one token for each role, and one that may nothing on the channel orders.
type bearers map[string]string

// guarded is a surface with tokens, a trail, and stand-ins for the handlers of operators.
func guarded(t *testing.T) (*surface, bearers, *trail) {
	s := newSurface(t)
	tokens, text := bearers{}, "tokens:\n"
	for name, rules := range map[string]string{
		"producer": `allow: ["producer:orders"]`, "consumer": `allow: ["consumer:orders"]`, "viewer": `allow: [viewer]`,
		"operator": `allow: [operator]`, "admin": `allow: [admin]`,
		"all":    `allow: ["producer:*", "consumer:*", viewer, operator, admin]`,
		"other":  `allow: ["producer:bills", "consumer:bills"]`,
		"denied": `allow: ["producer:*", "consumer:*", viewer, operator, admin], deny: ["producer:*", "consumer:*", viewer, operator, admin]`,
	} {
		tokens[name] = access.NewToken()
		hash, err := access.Hash(tokens[name])
		require.NoError(t, err)
		text += fmt.Sprintf("  - {name: %s, hash: %q, %s}\n", name, hash, rules)
	}
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	gate, err := access.Open("${file:"+path+"}", os.Getenv)
	require.NoError(t, err)
	tr := &trail{}
	s.api.deps.Access, s.api.deps.Audit = gate, tr
	s.api.deps.Operate = map[string]http.HandlerFunc{}
	for _, r := range operated {
		s.api.deps.Operate[r.pattern] = func(w http.ResponseWriter, r *http.Request) { writeJSON(w, map[string]string{"actor": ActorOf(r)}) }
	}
	s.api.handler = s.api.routes()
	return s, tokens, tr
}

// mayDo is the matrix of docs/access.md: the roles that pass each route. A route that is not here fails the test.
var mayDo = map[string]string{
	"POST /v1/channels/{channel}/events":                      "producer",
	"GET /v1/channels/{channel}/events":                       "consumer",
	"GET /v1/channels/{channel}/ledger":                       "viewer operator admin",
	"GET /v1/channels/{channel}/offsets":                      "producer consumer viewer operator admin",
	"GET /v1/channels/{channel}/offsets/{source}/{partition}": "producer consumer viewer operator admin",
	"GET /v1/channels":                                        "viewer operator admin",
	"GET /v1/channels/{channel}":                              "viewer operator admin",
	"PUT /v1/channels/{channel}":                              "admin",
	"DELETE /v1/channels/{channel}":                           "admin",
	"GET /v1/events/{id...}":                                  "viewer operator admin",
	"GET /v1/dlq":                                             "viewer operator admin",
	"GET /v1/dlq/{id}":                                        "viewer operator admin",
	"POST /v1/dlq/replay":                                     "operator",
	"POST /v1/dlq/discard":                                    "operator",
	"GET /v1/dlq/export":                                      "", // operator and consumer: only one that has both
	"POST /v1/emitters/{channel}/{emitter}/pause":             "operator",
	"POST /v1/emitters/{channel}/{emitter}/resume":            "operator",
	"GET /v1/audit":                                           "operator admin",
	"GET /v1/cluster":                                         "viewer operator admin",
	"POST /v1/cluster/members":                                "admin",
	"DELETE /v1/cluster/members/{id}":                         "admin",
	"POST /v1/cluster/members/{id}/demote":                    "admin",
	"POST /v1/cluster/transfer":                               "admin",
	"POST /v1/cluster/snapshot":                               "admin",
	"GET /metrics":                                            "viewer operator admin",
	"GET /healthz":                                            "everybody",
	"GET /readyz":                                             "everybody",
}

func (s *surface) ask(pattern, token string) answer {
	s.t.Helper()
	method, path, _ := strings.Cut(pattern, " ")
	path = strings.NewReplacer("{channel}", "orders", "{source}", "s", "{partition}", "p", "{id...}", "x", "{id}", "x", "{emitter}", "e").Replace(path)
	if token == "" {
		return s.call(method, path, "{}")
	}
	return s.call(method, path, "{}", "Authorization: Bearer "+token)
}

// Every route of the router and every role, one by one.
func TestRoleMatrix(t *testing.T) {
	s, tokens, _ := guarded(t)
	var seen []string
	for _, r := range s.api.table() {
		seen = append(seen, r.pattern)
		want, declared := mayDo[r.pattern]
		require.True(t, declared, "%s: the matrix does not say who may", r.pattern)
		require.Equal(t, want == "everybody", r.need.Public(), "%s: a route without a role", r.pattern)
		for name, token := range tokens {
			a := s.ask(r.pattern, token)
			passes := want == "everybody" || name == "all" || slices.Contains(strings.Fields(want), name)
			if passes {
				require.NotContains(t, []int{401, 403}, a.code, "%s as %s: %s", r.pattern, name, a.body)
			} else {
				require.Equal(t, "no", a.problem(403, "forbidden").Committed, "%s as %s", r.pattern, name)
			}
		}
		for _, token := range []string{"", access.NewToken(), strings.Repeat("x", 5000)} {
			a := s.ask(r.pattern, token)
			if want == "everybody" {
				require.NotContains(t, []int{401, 403}, a.code, r.pattern)
				continue
			}
			require.Equal(t, "no", a.problem(401, "unauthorized").Committed, r.pattern)
			require.Equal(t, `Bearer realm="penstock"`, a.header.Get("WWW-Authenticate"))
		}
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(mayDo)), seen, "the matrix names no route that is gone")
}

var update = flag.Bool("update", false, "write what is generated from the router anew")

// matrixOf is the table of docs/access.md, made from the router.
func matrixOf(routes []route) string {
	var b strings.Builder
	b.WriteString("| route | producer | consumer | viewer | operator | admin |\n|---|---|---|---|---|---|\n")
	for _, r := range routes {
		fmt.Fprintf(&b, "| `%s` |", r.pattern)
		for _, role := range access.Roles {
			mark := ""
			switch gives := func(want access.Role) bool { return slices.Contains(r.need.Any, want) }; {
			case r.need.Public():
				mark = "x"
			case len(r.need.Also) > 0:
				if gives(role) || slices.Contains(r.need.Also, role) {
					mark = "both"
				}
			case gives(role), gives(access.Viewer) && (role == access.Operator || role == access.Admin):
				mark = "x"
			}
			b.WriteString(strings.TrimRight(" "+mark, " ") + " |")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestAccessDocument(t *testing.T) {
	s, _, _ := guarded(t)
	const path, begin, end = "../../docs/access.md", "<!-- matrix -->\n", "<!-- /matrix -->"
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	head, rest, ok := strings.Cut(string(b), begin)
	require.True(t, ok)
	old, foot, ok := strings.Cut(rest, end)
	require.True(t, ok)
	want := "\n" + matrixOf(s.api.table()) + "\n"
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(head+begin+want+end+foot), 0o644))
		return
	}
	require.Equal(t, want, old, "docs/access.md: run this test with -update")
}

// While there are no tokens, what an operator or admin may do answers on this machine only.
func TestWithoutTokensPrivilegedRoutesAnswerOnLoopbackOnly(t *testing.T) {
	s, _, tr := guarded(t)
	open, err := access.Open("", nil)
	require.NoError(t, err)
	s.api.deps.Access = open
	for _, r := range s.api.table() {
		method, path, _ := strings.Cut(strings.NewReplacer("{channel}", "orders", "{id...}", "x", "{id}", "x").Replace(r.pattern), " ")
		for _, from := range []string{"10.0.0.1:99", "[2001:db8::1]:99", "", "localhost", "[::ffff:10.0.0.1]:99"} {
			a := s.call(method, path, "{}", "RemoteAddr: "+from, "X-Forwarded-For: 127.0.0.1")
			if r.need.Privileged() {
				a.problem(403, "forbidden")
			} else {
				require.NotContains(t, []int{401, 403}, a.code, "%s: %s", r.pattern, a.body)
			}
		}
	}
	require.Empty(t, s.Acts())
	for _, act := range tr.take() {
		require.True(t, strings.HasSuffix(act, "forbidden"), act)
	}
	for _, from := range []string{"127.0.0.1:99", "[::1]:99", "[::ffff:127.0.0.1]:99"} {
		s.call("PUT", "/v1/channels/orders", `{"semantics":"at-least-once","order":"none"}`, "RemoteAddr: "+from).ok(nil)
		s.call("POST", "/v1/cluster/members", `{"id":"n3"}`, "RemoteAddr: "+from).ok(nil)
		s.call("POST", "/v1/dlq/replay", `{}`, "RemoteAddr: "+from).ok(nil)
	}
}

func TestChannelActsAndRefusalsAreAudited(t *testing.T) {
	s, tokens, tr := guarded(t)
	as := func(role string) string { return "Authorization: Bearer " + tokens[role] }
	s.call("PUT", "/v1/channels/orders", `{"semantics":"at-least-once","order":"none"}`, as("admin")).ok(nil)
	s.call("PUT", "/v1/channels/orders", `{"semantics":"sometimes"}`, as("admin")).problem(400, "bad-request")
	s.call("DELETE", "/v1/channels/orders", "", as("admin")).ok(nil)
	require.Equal(t, []string{
		"admin channel.put [orders] success ", "admin channel.put [orders] failure bad-request", "admin channel.delete [orders] success ",
	}, tr.take())
	acts := s.Acts()

	// A refused act of somebody leaves a record; nobody does not get to write.
	s.call("DELETE", "/v1/cluster/members/n3", "", as("viewer")).problem(403, "forbidden")
	s.call("POST", "/v1/dlq/replay", "{}", as("producer")).problem(403, "forbidden")
	s.call("DELETE", "/v1/cluster/members/n3", "").problem(401, "unauthorized")
	s.get("/v1/audit").problem(401, "unauthorized")
	require.Equal(t, []string{"viewer cluster.remove [n3] forbidden", "producer dlq.replay [] forbidden"}, tr.take())

	// Without a committed intent nothing is done (P9).
	tr.fail = &cluster.ProposeError{Outcome: cluster.NotCommitted, Reason: cluster.ReasonNoLeader}
	s.call("PUT", "/v1/channels/bills", `{"semantics":"at-least-once","order":"none"}`, as("admin")).problem(503, "no-leader")
	require.Empty(t, s.Machine.Channels())
	require.Equal(t, acts, s.Acts())
}

// The node that carries a request out may know better than the one it came in at.
func TestARefusalWhereItIsCarriedOutIsAnswered403(t *testing.T) {
	s, tokens, _ := guarded(t)
	s.Put(orders())
	var grant []byte
	s.BeforePropose = func(ctx context.Context, _ []byte) error {
		grant = cluster.GrantOf(ctx)
		return &cluster.ProposeError{Outcome: cluster.NotCommitted, Reason: cluster.ReasonForbidden, Err: fmt.Errorf("%w on node n2: no such token", cluster.ErrForbidden)}
	}
	p := s.call("POST", ordersPath, batch("a"), batchType, "Authorization: Bearer "+tokens["producer"]).problem(403, "forbidden")
	require.Equal(t, "no", p.Committed)
	require.NoError(t, s.api.deps.Access.Admit(grant), "the proposal says for whom it is")
	require.Contains(t, string(grant), `"producer"`)
	require.NotContains(t, string(grant), tokens["producer"])
	s.MemberError = fmt.Errorf("call: %w", cluster.ErrForbidden)
	s.call("DELETE", "/v1/cluster/members/n3", "", "Authorization: Bearer "+tokens["admin"]).problem(403, "forbidden")
}

func TestAnExportNeedsTheRightToThePayload(t *testing.T) {
	s, tokens, _ := guarded(t)
	s.call("GET", "/v1/dlq/export", "", "Authorization: Bearer "+tokens["all"]).ok(nil)
	s.call("GET", "/v1/dlq/export?channel=orders", "", "Authorization: Bearer "+tokens["operator"]).problem(403, "forbidden")
}

func TestWhatARouteDoesNotKnowIsRefused(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	for _, path := range []string{"/v1/channels/orders/events?form=5", "/v1/channels/orders/events?limit=1&limit=2", "/v1/cluster?x", "/v1/channels/orders/ledger?stale=1;x", "/v1/dlq?chanel=orders"} {
		s.get(path).problem(400, "bad-request")
	}
	p := s.call("POST", ordersPath+"?detial=1", batch("a"), batchType).problem(400, "bad-request")
	require.Contains(t, p.Detail, `"detial"`)
	require.Contains(t, p.Detail, "detail", "it says what is known")
	require.Equal(t, "no", p.Committed)
	b, _ := s.Machine.LedgerOf("orders")
	require.Zero(t, b.Accepted)
	s.get("/healthz?cache=1").ok(nil)
}

func TestEveryAnswerHasARequestID(t *testing.T) {
	s := newSurface(t)
	require.Equal(t, "abc-1", s.call("GET", "/healthz", "", "X-Request-Id: abc-1").header.Get("X-Request-Id"))
	for _, id := range []string{"", "a b", strings.Repeat("x", 129), "a\tb", "ä"} {
		got := s.call("GET", "/v1/nothing", "", "X-Request-Id: "+id).header.Get("X-Request-Id")
		require.Len(t, got, 36, "%q is replaced", id)
	}
}

// A panic is a bug: it is answered, counted and logged, and does not pass for a lost connection.
func TestAPanicIsAnsweredAndCounted(t *testing.T) {
	s, tokens, _ := guarded(t)
	s.api.deps.Operate["GET /v1/audit"] = func(http.ResponseWriter, *http.Request) { panic("invariant") }
	s.api.deps.Operate["POST /v1/dlq/replay"] = s.api.deps.Operate["GET /v1/audit"]
	s.api.handler = s.api.routes()
	as := "Authorization: Bearer " + tokens["operator"]
	require.Empty(t, s.call("GET", "/v1/audit", "", as).problem(500, "internal").Committed)
	require.Equal(t, "unknown", s.call("POST", "/v1/dlq/replay", "{}", as).problem(500, "internal").Committed)
	require.Contains(t, s.call("GET", "/metrics", "", as).body, "penstock_node_panics_total 2")
	s.api.deps.Operate["GET /v1/audit"] = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	s.api.handler = s.api.routes()
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { s.call("GET", "/v1/audit", "", as) })
}

func TestARouteThatDeclaresNoRoleDoesNotStart(t *testing.T) {
	s, _, _ := guarded(t)
	s.api.deps.Operate["GET /v1/secret"] = func(http.ResponseWriter, *http.Request) {}
	require.PanicsWithValue(t, "api: a route that declares no role: GET /v1/secret", func() { s.api.routes() })
	delete(s.api.deps.Operate, "GET /v1/secret")
	delete(s.api.deps.Operate, "GET /v1/audit")
	require.Panics(t, func() { s.api.routes() })
}
