package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"penstock/jepsen/history"
)

// IngestAnswer is the body of a 200 to an ingest request with ?detail=1.
type IngestAnswer struct {
	Index      uint64        `json:"index"`
	Accepted   int           `json:"accepted"`
	Duplicates int           `json:"duplicates"`
	Poisoned   int           `json:"poisoned"`
	Events     []history.Ack `json:"events"`
}

// Hash is one entry of the ring of state hashes.
type Hash struct {
	K     uint64 `json:"k"`
	Index uint64 `json:"index"`
	Hash  string `json:"hash"`
}

// Member is one row of the member list.
type Member struct {
	ID        string `json:"id"`
	Suffrage  string `json:"suffrage"`
	Leader    bool   `json:"leader"`
	Reachable bool   `json:"reachable"`
	Applied   uint64 `json:"applied_index"`
}

// Cluster is the answer of GET /v1/cluster.
type Cluster struct {
	ClusterID string   `json:"cluster_id"`
	NodeID    string   `json:"node_id"`
	State     string   `json:"state"`
	Leader    string   `json:"leader"`
	Term      uint64   `json:"term"`
	Commit    uint64   `json:"commit_index"`
	Applied   uint64   `json:"applied_index"`
	First     uint64   `json:"first_index"`
	Last      uint64   `json:"last_index"`
	Floor     uint64   `json:"floor"`
	Horizon   uint64   `json:"horizon"`
	Hashes    []Hash   `json:"hashes"`
	StateHash Hash     `json:"state_hash"`
	Members   []Member `json:"members"`
}

// Ledger is the answer of GET /v1/channels/{channel}/ledger.
type Ledger struct {
	Channel    string      `json:"channel"`
	Applied    uint64      `json:"applied_index"`
	Accepted   uint64      `json:"accepted"`
	Duplicates uint64      `json:"duplicates"`
	Balanced   bool        `json:"balanced"`
	Emitters   []LedgerRow `json:"emitters"`
}

// LedgerRow is the balance of one emitter (P3).
type LedgerRow struct {
	Emitter   string `json:"emitter"`
	Owner     string `json:"owner"`
	Epoch     uint64 `json:"epoch"`
	Accepted  uint64 `json:"accepted"`
	Delivered uint64 `json:"delivered"`
	Dead      uint64 `json:"dead"`
	Poison    uint64 `json:"poison"`
	Discarded uint64 `json:"discarded"`
	Lost      uint64 `json:"lost"`
	Pending   uint64 `json:"pending"`
}

// DeadLetter is one row of GET /v1/dlq.
type DeadLetter struct {
	ID       string `json:"id"`
	Channel  string `json:"channel"`
	Emitter  string `json:"emitter"`
	Position string `json:"position"`
	State    string `json:"state"`
}

// Page is one page of committed events.
type Page struct {
	Events []history.Seen
	Next   string
	First  uint64 // of a 410: the first readable index
}

// Cluster reads what the node says of itself and its cluster.
func (c *Client) Cluster(ctx context.Context) (Cluster, error) {
	var v Cluster
	return v, c.GetJSON(ctx, "/v1/cluster", nil, &v)
}

// Ledger reads a channel's balance.
func (c *Client) Ledger(ctx context.Context, channel string) (Ledger, error) {
	var v Ledger
	return v, c.GetJSON(ctx, "/v1/channels/"+channel+"/ledger", nil, &v)
}

// DeadLetters lists a channel's dead letters; truncated says that there are more than the node lists.
func (c *Client) DeadLetters(ctx context.Context, channel string) (list []DeadLetter, truncated bool, err error) {
	var v struct {
		DeadLetters []DeadLetter `json:"dead_letters"`
		Truncated   bool         `json:"truncated"`
	}
	err = c.GetJSON(ctx, "/v1/dlq", url.Values{"channel": {channel}}, &v)
	return v.DeadLetters, v.Truncated, err
}

// Ready tells whether the node answers /readyz with 200.
func (c *Client) Ready(ctx context.Context) bool {
	return c.Do(ctx, http.MethodGet, "/readyz", nil, "", nil).Outcome == Done
}

// ReadOffset reads a source offset, linearizably; nil is "none".
func (c *Client) ReadOffset(ctx context.Context, channel, source, partition string) (*history.Offset, Answer) {
	path := "/v1/channels/" + channel + "/offsets/" + url.PathEscape(source) + "/" + url.PathEscape(partition)
	a := c.Do(ctx, http.MethodGet, path, nil, "", nil)
	if a.Status == http.StatusNotFound {
		a.Outcome = Done
		return nil, a
	}
	if a.Outcome != Done {
		return nil, a
	}
	var o history.Offset
	if err := json.Unmarshal(a.Body, &o); err != nil {
		a.Outcome, a.Err = Unknown, err
		return nil, a
	}
	return &o, a
}

// Tail reads committed events from a position on; wait lets the node hold the answer until there is one.
func (c *Client) Tail(ctx context.Context, channel, from string, limit int, wait time.Duration) (Page, Answer) {
	q := url.Values{"from": {from}, "limit": {strconv.Itoa(limit)}}
	if wait > 0 {
		q.Set("wait", wait.String())
	}
	a := c.Do(ctx, http.MethodGet, "/v1/channels/"+channel+"/events", q, "", nil)
	if a.Status == http.StatusGone {
		var gone struct {
			First uint64 `json:"first"`
		}
		_ = json.Unmarshal(a.Body, &gone)
		return Page{First: gone.First}, a
	}
	if a.Outcome != Done {
		return Page{}, a
	}
	page := Page{Next: a.Header.Get("Penstock-Next")}
	for i, line := range strings.Split(strings.TrimSuffix(string(a.Body), "\n"), "\n") {
		if line == "" {
			continue
		}
		seen, err := parseSeen([]byte(line))
		if err != nil {
			a.Outcome, a.Err = Unknown, fmt.Errorf("tail line %d: %w", i+1, err)
			return Page{}, a
		}
		page.Events = append(page.Events, seen)
	}
	return page, a
}

func parseSeen(line []byte) (history.Seen, error) {
	var e struct {
		ID      string          `json:"id"`
		Source  string          `json:"source"`
		Subject string          `json:"subject"`
		Data    json.RawMessage `json:"data"`
		Index   *uint64         `json:"penstockindex"`
		Ordinal *uint32         `json:"penstockordinal"`
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return history.Seen{}, err
	}
	if e.Index == nil || e.Ordinal == nil {
		return history.Seen{}, fmt.Errorf("event %s has no penstockindex and penstockordinal", e.ID)
	}
	return history.Seen{
		Source: e.Source, ID: e.ID, Key: e.Subject, Sum: Sum(e.Data),
		Position: fmt.Sprintf("%d.%d", *e.Index, *e.Ordinal),
	}, nil
}
