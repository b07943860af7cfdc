package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"penstock/event"
)

// SendOptions go with one ingest request.
type SendOptions struct {
	// IdempotencyKey gives events without an id the ids KEY/ordinal, so that the request may be repeated.
	IdempotencyKey string
	// ContentEncoding of the body: gzip, zstd, or empty.
	ContentEncoding string
	// Source and Partition with Offset commit a source offset in the same entry.
	Source, Partition string
	Offset            *event.SourceOffset
	// Detail asks for the place of each event.
	Detail bool
	// Header is added to the request (ce-*, Penstock-Source, Penstock-Type).
	Header http.Header
}

// Send is one ingest request: all of body is committed, or none. On an error that is Retryable the same call may be made
// again when every event has a producer's id or an IdempotencyKey was given.
func (c *Client) Send(ctx context.Context, channel string, body []byte, contentType string, o SendOptions) (SendResult, error) {
	h := http.Header{}
	for k, v := range o.Header {
		h[http.CanonicalHeaderKey(k)] = v
	}
	h.Set("Content-Type", contentType)
	if o.IdempotencyKey != "" {
		h.Set("Idempotency-Key", o.IdempotencyKey)
	}
	if o.ContentEncoding != "" {
		h.Set("Content-Encoding", o.ContentEncoding)
	}
	q := url.Values{}
	if o.Offset != nil {
		q.Set("source", o.Source)
		q.Set("partition", o.Partition)
		q.Set("offset", o.Offset.String())
	}
	if o.Detail {
		q.Set("detail", "1")
	}
	if body == nil {
		body = []byte{}
	}
	var out SendResult
	err := c.call(ctx, request{method: http.MethodPost, path: path("channels", channel, "events"), query: q, header: h, body: body, write: true}, &out)
	return out, err
}

func (c *Client) get(ctx context.Context, p string, q url.Values, out any) error {
	return c.call(ctx, request{method: http.MethodGet, path: p, query: q}, out)
}

func (c *Client) change(ctx context.Context, method, p string, q url.Values, body, out any) error {
	return c.send(ctx, request{method: method, path: p, query: q, write: true}, body, out)
}

// settle is change for what may be made again: it says what shall be.
func (c *Client) settle(ctx context.Context, method, p string, q url.Values, body, out any) error {
	return c.send(ctx, request{method: method, path: p, query: q, write: true, again: true}, body, out)
}

func (c *Client) send(ctx context.Context, r request, body, out any) error {
	r.header = http.Header{}
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r.body = b
		r.header.Set("Content-Type", "application/json")
	}
	return c.call(ctx, r, out)
}

// Channels lists them by name.
func (c *Client) Channels(ctx context.Context) ([]Channel, error) {
	var out struct {
		Channels []Channel `json:"channels"`
	}
	err := c.get(ctx, path("channels"), nil, &out)
	return out.Channels, err
}

// Channel gives one.
func (c *Client) Channel(ctx context.Context, name string) (Channel, error) {
	var out Channel
	err := c.get(ctx, path("channels", name), nil, &out)
	return out, err
}

// PutOptions go with a change of a channel.
type PutOptions struct {
	// Discard allows what would drop pending and dead deliveries.
	Discard bool
	// DryRun changes nothing: PutChannel answers what would change.
	DryRun bool
}

func (o PutOptions) query() url.Values {
	q := url.Values{}
	if o.Discard {
		q.Set("discard", "1")
	}
	if o.DryRun {
		q.Set("dry_run", "1")
	}
	return q
}

// PutChannel creates or changes the channel whose spec is given as JSON. It asks the next node when one gives no outcome.
func (c *Client) PutChannel(ctx context.Context, name string, specJSON json.RawMessage, o PutOptions) (Applied, error) {
	var out Applied
	err := c.settle(ctx, http.MethodPut, path("channels", name), o.query(), specJSON, &out)
	return out, err
}

// DeleteChannel removes one; without Discard only when nothing of it is pending or dead. It asks the next node when one
// gives no outcome; a channel that is then not there has been deleted.
func (c *Client) DeleteChannel(ctx context.Context, name string, o PutOptions) error {
	err := c.settle(ctx, http.MethodDelete, path("channels", name), o.query(), nil, nil)
	if Unknown(err) && NotFound(err) {
		return nil
	}
	return err
}

// Ledger gives the balance of a channel.
func (c *Client) Ledger(ctx context.Context, channel string) (Ledger, error) {
	var out Ledger
	err := c.get(ctx, path("channels", channel, "ledger"), nil, &out)
	return out, err
}

// Offset gives a source offset as of now (linearizable). Absent is absent: ok is false, and that is no position of 0.
func (c *Client) Offset(ctx context.Context, channel, source, partition string) (o event.SourceOffset, ok bool, err error) {
	var out Offset
	err = c.get(ctx, path("channels", channel, "offsets", source, partition), nil, &out)
	if NotFound(err) && kindOf(err) != "no-such-channel" {
		return event.SourceOffset{}, false, nil
	}
	if err != nil {
		return event.SourceOffset{}, false, err
	}
	return event.SourceOffset{Position: out.Position, Record: out.Record, Closed: out.Closed}, true, nil
}

// Offsets lists the source offsets of a channel.
func (c *Client) Offsets(ctx context.Context, channel string) ([]Offset, error) {
	var out struct {
		Offsets []Offset `json:"offsets"`
	}
	err := c.get(ctx, path("channels", channel, "offsets"), nil, &out)
	return out.Offsets, err
}

// Explain says where the events with an id are; source, when not empty, narrows it.
func (c *Client) Explain(ctx context.Context, id, source string) (Explained, error) {
	q := url.Values{}
	if source != "" {
		q.Set("source", source)
	}
	var out Explained
	err := c.get(ctx, path("events", id), q, &out)
	return out, err
}

// DeadLetterFilter narrows DeadLetters; empty fields do not.
type DeadLetterFilter struct{ Channel, Emitter, State string }

// DeadLetters lists them.
func (c *Client) DeadLetters(ctx context.Context, f DeadLetterFilter) ([]DeadLetter, error) {
	q := url.Values{}
	for k, v := range map[string]string{"channel": f.Channel, "emitter": f.Emitter, "state": f.State} {
		if v != "" {
			q.Set(k, v)
		}
	}
	var out struct {
		DeadLetters []DeadLetter `json:"dead_letters"`
	}
	err := c.get(ctx, path("dlq"), q, &out)
	return out.DeadLetters, err
}

// DeadLetter gives one as the node answers it.
func (c *Client) DeadLetter(ctx context.Context, id string) (json.RawMessage, error) {
	var out json.RawMessage
	err := c.get(ctx, path("dlq", id), nil, &out)
	return out, err
}

// Cluster gives the answering node's view.
func (c *Client) Cluster(ctx context.Context) (Cluster, error) {
	var out Cluster
	err := c.get(ctx, path("cluster"), nil, &out)
	return out, err
}

// SetMember adds a node as a nonvoter, or promotes or demotes one. It asks the next node when one gives no outcome.
func (c *Client) SetMember(ctx context.Context, id, suffrage string) error {
	return c.settle(ctx, http.MethodPost, path("cluster", "members"), nil, map[string]string{"id": id, "suffrage": suffrage}, nil)
}

// MemberOptions go with a change of the members.
type MemberOptions struct {
	// Force takes a vote although no voter is left to spare.
	Force  bool
	Reason string // for the audit trail
}

// RemoveMember takes a node out of the cluster.
func (c *Client) RemoveMember(ctx context.Context, id string, o MemberOptions) error {
	q := url.Values{}
	if o.Force {
		q.Set("force", "1")
	}
	if o.Reason != "" {
		q.Set("reason", o.Reason)
	}
	return c.change(ctx, http.MethodDelete, path("cluster", "members", id), q, nil, nil)
}

// DemoteMember takes a node's vote.
func (c *Client) DemoteMember(ctx context.Context, id string, o MemberOptions) error {
	body := map[string]any{"force": o.Force, "reason": o.Reason}
	return c.change(ctx, http.MethodPost, path("cluster", "members", id, "demote"), nil, body, nil)
}

// Transfer hands leadership to a node, or to the best one when to is empty.
func (c *Client) Transfer(ctx context.Context, to string) error {
	body := map[string]string{}
	if to != "" {
		body["to"] = to
	}
	return c.change(ctx, http.MethodPost, path("cluster", "transfer"), nil, body, nil)
}

// Snapshot asks the node that answers for one now.
func (c *Client) Snapshot(ctx context.Context) error {
	return c.change(ctx, http.MethodPost, path("cluster", "snapshot"), nil, nil, nil)
}

// Ready tells whether a node answers /readyz with 200; the error is what it lacks.
func (c *Client) Ready(ctx context.Context) error { return c.probe(ctx, "/readyz") }

// Alive tells whether a node's process answers /healthz.
func (c *Client) Alive(ctx context.Context) error { return c.probe(ctx, "/healthz") }

func (c *Client) probe(ctx context.Context, path string) error {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: path})
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func kindOf(err error) string {
	p, ok := AsProblem(err)
	if !ok {
		return ""
	}
	return p.Kind()
}
