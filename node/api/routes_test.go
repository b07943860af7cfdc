package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/cluster"
)

func TestWhatNoRouteTakesIsAProblemToo(t *testing.T) {
	s := newSurface(t)
	for _, path := range []string{"/", "/v1", "/v1/nothing", "/v1/channels/orders/nothing", "/v2/channels"} {
		s.get(path).problem(404, "not-found")
	}
	for _, c := range []struct{ method, path, allow string }{
		{"PATCH", "/v1/channels/orders", "DELETE, GET, HEAD, PUT"},
		{"DELETE", "/v1/channels/orders/events", "GET, HEAD, POST"},
		{"POST", "/healthz", "GET, HEAD"},
		{"GET", "/v1/cluster/transfer", "POST"},
	} {
		a := s.call(c.method, c.path, "")
		a.problem(405, "bad-request")
		require.Equal(t, c.allow, a.header.Get("Allow"))
	}
}

func TestMembershipChangesAreMappedToTheCluster(t *testing.T) {
	s := newSurface(t)
	s.call("POST", "/v1/cluster/members", `{"id":"n3"}`).ok(nil)
	s.call("POST", "/v1/cluster/members", `{"id":"n3","suffrage":"nonvoter"}`).ok(nil)
	s.call("POST", "/v1/cluster/members", `{"id":"n3","suffrage":"voter"}`).ok(nil)
	s.call("DELETE", "/v1/cluster/members/n3", "").ok(nil)
	s.call("POST", "/v1/cluster/transfer", "").ok(nil)
	s.call("POST", "/v1/cluster/transfer", `{"to":"n2"}`).ok(nil)
	s.call("POST", "/v1/cluster/snapshot", "").ok(nil)
	require.Equal(t, []string{"add n3", "add n3", "promote n3", "remove n3", "transfer ", "transfer n2", "snapshot "}, s.Acts())
	for _, bad := range []string{`{"id":"n3","suffrage":"king"}`, `{}`, `{"id":`, `{"id":"n3","x":1}`, `[]`} {
		require.Equal(t, "no", s.call("POST", "/v1/cluster/members", bad).problem(400, "bad-request").Committed)
	}
	s.call("POST", "/v1/cluster/members", `{"id":"`+strings.Repeat("x", 70_000)+`"}`).problem(413, "too-large")
	require.Len(t, s.Acts(), 7)
}

// A change of members is a proposal like any other: refused, not begun, or begun with an end that is not known (P7).
func TestAFailedMembershipChangeSaysWhatIsKnown(t *testing.T) {
	s := newSurface(t)
	for _, c := range []struct {
		err       error
		status    int
		kind      string
		committed string
	}{
		{cluster.ErrRefused, 409, "conflict", "no"},
		{cluster.ErrNoLeader, 503, "no-leader", "no"},
		{cluster.ErrClosed, 503, "shutting-down", "no"},
		{context.DeadlineExceeded, 504, "unknown-outcome", "unknown"},
		{errors.New("leadership lost while committing log"), 504, "unknown-outcome", "unknown"},
	} {
		s.MemberError = fmt.Errorf("change: %w", c.err)
		for _, a := range []answer{
			s.call("POST", "/v1/cluster/members", `{"id":"n3"}`),
			s.call("DELETE", "/v1/cluster/members/n3", ""),
			s.call("POST", "/v1/cluster/transfer", "{}"),
		} {
			p := a.problem(c.status, c.kind)
			require.Equal(t, c.committed, p.Committed)
			require.Equal(t, "n2", p.Leader)
		}
	}
}

func TestChannelsAreMadeShownChangedAndRemoved(t *testing.T) {
	s := newSurface(t)
	s.get("/v1/channels/orders").problem(404, "no-such-channel")
	body := `{"semantics":"at-least-once","order":"none","emitters":[{"name":"f","kind":"file"}]}`
	var put struct {
		Name           string
		Index, Version uint64
		Changed        bool
		Semantics      string
	}
	s.call("PUT", "/v1/channels/orders", body).ok(&put)
	require.True(t, put.Changed)
	require.Equal(t, "at-least-once", put.Semantics)
	first := put
	s.call("PUT", "/v1/channels/orders", body).ok(&put)
	require.False(t, put.Changed)
	require.Equal(t, first.Version, put.Version)
	var shown channelAnswer
	s.get("/v1/channels/orders").ok(&shown)
	require.Equal(t, first.Index, shown.Index)
	var list struct{ Channels []channelAnswer }
	s.get("/v1/channels").ok(&list)
	require.Len(t, list.Channels, 1)

	for _, bad := range []string{`{`, `{"semantics":"sometimes"}`, `{"name":"other","semantics":"at-least-once","order":"none"}`, `{"x":1}`} {
		require.Equal(t, "no", s.call("PUT", "/v1/channels/orders", bad).problem(400, "bad-request").Committed)
	}
	p := s.call("PUT", "/v1/channels/orders", `{"a":"`+strings.Repeat("x", maxSpecBytes)+`"}`).problem(413, "too-large")
	require.EqualValues(t, maxSpecBytes, p.Limit)

	s.call("POST", ordersPath, batch("a"), batchType).ok(nil)
	require.Equal(t, "no", s.call("DELETE", "/v1/channels/orders", "").problem(409, "conflict").Committed, "it has a pending delivery")
	s.call("DELETE", "/v1/channels/orders?discard=1", "").ok(nil)
	s.call("DELETE", "/v1/channels/orders", "").problem(404, "no-such-channel")
	s.call("POST", ordersPath, batch("a"), batchType).problem(404, "no-such-channel")
}

func TestHealthAndReadiness(t *testing.T) {
	s := newSurface(t)
	s.get("/healthz").ok(nil)
	p := s.get("/readyz").problem(503, "not-ready")
	require.Contains(t, p.Detail, errNotReady.Error())
	s.api.deps.Ready = func() error { return nil }
	s.get("/readyz").ok(nil)
}

func TestClusterStatusShowsHashesAndMembers(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	var got clusterAnswer
	s.get("/v1/cluster").ok(&got)
	index, hash, _ := s.Machine.StateHash()
	require.Equal(t, index, got.StateHash.Index)
	require.Equal(t, hash, got.StateHash.Hash)
	require.Len(t, got.Members, 2)
	require.Equal(t, "n2", got.Leader)
}

func TestLedgerBalances(t *testing.T) {
	s := newSurface(t)
	c := orders()
	c.Emitters = append(c.Emitters, hook("billing"))
	s.Put(c)
	s.call("POST", ordersPath, batch("a", "b", "a"), batchType).ok(nil)
	var got ledgerAnswer
	s.get("/v1/channels/orders/ledger").ok(&got)
	require.True(t, got.Balanced)
	require.Equal(t, uint64(2), got.Accepted)
	require.Equal(t, uint64(1), got.Duplicates)
	require.Equal(t, uint64(2), got.Emitters[0].Pending)
	s.get("/v1/channels/none/ledger").problem(404, "no-such-channel")
}

// Labels come from the route table, never from a request (B51).
func TestMetricsHaveBoundedLabels(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	for _, path := range []string{"/v1/channels/secret-a", "/secret-b", "/v1/events/secret-c", "/v1/channels/orders/offsets/secret-d/p", "//secret-e"} {
		s.get(path)
	}
	s.call("SECRET-F", "/v1/channels", "")
	a := s.get("/metrics").ok(nil)
	require.NotContains(t, strings.ToLower(a.body), "secret-")
	require.Contains(t, a.body, `penstock_node_requests_total{code="404",route="GET /v1/channels/{channel}"} 1`)
	require.Contains(t, a.body, `route="other"`)
}

func TestEveryProblemTellsWhenToComeBackWhereThatHelps(t *testing.T) {
	for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		w := &headerOnly{header: http.Header{}}
		newProblem(status, "x", "x", "x").write(w)
		require.Equal(t, "1", w.header.Get("Retry-After"))
	}
}

type headerOnly struct{ header http.Header }

func (h *headerOnly) Header() http.Header         { return h.header }
func (h *headerOnly) Write(b []byte) (int, error) { return len(b), nil }
func (h *headerOnly) WriteHeader(int)             {}
