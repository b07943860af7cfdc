package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// ActRequest asks for a replay or a discard of dead letters.
type ActRequest struct {
	IDs    []string `json:"ids"`
	Reason string   `json:"reason,omitempty"`
	Force  bool     `json:"force,omitempty"`   // replay: poison too
	DryRun bool     `json:"dry_run,omitempty"` // replay: say what would be attempted
	To     string   `json:"to,omitempty"`      // replay: another emitter of the channel
}

// ActStatus is what became of one id.
type ActStatus struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// ActResult is the answer to a replay or a discard.
type ActResult struct {
	Intent    string         `json:"intent,omitempty"`
	RequestID string         `json:"request_id"`
	Counts    map[string]int `json:"counts"`
	Results   []ActStatus    `json:"results"`
}

// Replay replays 1 to 50 dead letters. After an error that is Unknown look the ids up, do not repeat.
func (c *Client) Replay(ctx context.Context, r ActRequest) (ActResult, error) {
	return c.act(ctx, path("dlq", "replay"), r)
}

// Discard gives up 1 to 50 dead letters.
func (c *Client) Discard(ctx context.Context, r ActRequest) (ActResult, error) {
	return c.act(ctx, path("dlq", "discard"), r)
}

func (c *Client) act(ctx context.Context, p string, r ActRequest) (ActResult, error) {
	// The node's own deadline comes first, so that its answer names what is unknown.
	q := url.Values{"timeout": {(c.timeout * 8 / 10).Round(time.Millisecond).String()}}
	var out ActResult
	err := c.change(ctx, http.MethodPost, p, q, r, &out)
	if err == nil && len(out.Results) != len(r.IDs) {
		return out, fmt.Errorf("the answer has %d statuses for %d ids", len(out.Results), len(r.IDs))
	}
	return out, err
}

// AuditRecord is one operator's act.
type AuditRecord struct {
	Seq       uint64   `json:"seq"`
	ID        string   `json:"id"`
	At        string   `json:"at"`
	Actor     string   `json:"actor"`
	Action    string   `json:"action"`
	Reason    string   `json:"reason"`
	RequestID string   `json:"request_id"`
	IDs       []string `json:"ids"`
	Open      bool     `json:"open"`
	Result    string   `json:"result"`
	Detail    string   `json:"detail"`
	ClosedAt  string   `json:"closed_at"`
}

// Audit gives the newest acts first, at most limit; openOnly those without an outcome.
func (c *Client) Audit(ctx context.Context, limit int, openOnly bool) ([]AuditRecord, error) {
	q := url.Values{"order": {"newest"}, "limit": {strconv.Itoa(limit)}}
	if openOnly {
		q.Set("open", "1")
	}
	var out struct {
		Records []AuditRecord `json:"records"`
	}
	err := c.get(ctx, path("audit"), q, &out)
	return out.Records, err
}

// Export copies the records in the answering node's dead-letter volume, byte for byte.
func (c *Client) Export(ctx context.Context, f DeadLetterFilter, w io.Writer) error {
	q := url.Values{}
	for k, v := range map[string]string{"channel": f.Channel, "emitter": f.Emitter, "state": f.State} {
		if v != "" {
			q.Set(k, v)
		}
	}
	resp, err := c.do(ctx, request{method: http.MethodGet, path: path("dlq", "export"), query: q})
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("export: it ended early: %w", err)
	}
	return nil
}

// PauseEmitter stops or resumes the attempts of an emitter; its deliveries stay pending.
func (c *Client) PauseEmitter(ctx context.Context, channel, emitter string, paused bool, reason string) error {
	verb := "resume"
	if paused {
		verb = "pause"
	}
	return c.change(ctx, http.MethodPost, path("emitters", channel, emitter, verb), nil, map[string]string{"reason": reason}, nil)
}
