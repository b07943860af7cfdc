// Package client speaks the public HTTP routes of one node, as any user would, and sorts each answer into done, certainly
// not done, and unknown (P7).
//
// It promises that an answer counts as done only after its whole body was read and parsed, and that everything it cannot
// place is unknown. It never retries: that is the workload's decision, and each try is an operation of its own.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// Outcome of one request.
type Outcome int

// The outcomes. The zero value is Unknown, so that a forgotten case never counts as done.
const (
	Unknown Outcome = iota
	Done
	NotDone
)

// maxBody bounds what is read of an answer.
const maxBody = 64 << 20

// Client talks to one node.
type Client struct {
	// Node is its id, Base its URL.
	Node, Base string
	// Token goes with each request, when there is one. Set it before the first.
	Token string
	http  *http.Client
}

// New makes a client whose requests end within timeout.
func New(node, base string, timeout time.Duration) *Client {
	return NewDial(node, base, timeout, (&net.Dialer{Timeout: timeout}).DialContext)
}

// NewDial is New with a way of its own to connect.
func NewDial(node, base string, timeout time.Duration, dial func(ctx context.Context, network, addr string) (net.Conn, error)) *Client {
	transport := &http.Transport{
		DialContext:         dial,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     10 * time.Second,
	}
	return &Client{Node: node, Base: base, http: &http.Client{
		Transport:     transport,
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Answer is what came back.
type Answer struct {
	Outcome Outcome
	Status  int
	Problem string // the last part of the problem's type, e.g. no-leader
	Body    []byte
	Header  http.Header
	Err     error
}

// Do sends one request. It never returns an error of its own: what went wrong is in the answer.
func (c *Client) Do(ctx context.Context, method, path string, query url.Values, contentType string, body []byte) Answer {
	u := c.Base + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u, bytes.NewReader(body))
	if err != nil {
		return Answer{Outcome: NotDone, Err: err}
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return Answer{Outcome: ofError(err), Err: err}
	}
	defer resp.Body.Close()
	answer := Answer{Status: resp.StatusCode, Header: resp.Header}
	answer.Body, answer.Err = io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if answer.Err != nil {
		return answer // the status said something, but the answer did not arrive whole: unknown
	}
	answer.Outcome, answer.Problem = ofStatus(resp.StatusCode, answer.Body)
	return answer
}

// ofError: only a connection that never stood has certainly done nothing.
func ofError(err error) Outcome {
	var op *net.OpError
	if errors.Is(err, syscall.ECONNREFUSED) || (errors.As(err, &op) && op.Op == "dial") {
		return NotDone
	}
	return Unknown
}

// ofStatus places a whole answer. 504 is the product's "unknown outcome"; any other 5xx without a problem type that says
// "certainly not" is unknown as well.
func ofStatus(status int, body []byte) (Outcome, string) {
	problem := ""
	if status >= 400 {
		var p struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(body, &p) == nil {
			problem = p.Type[strings.LastIndexAny(p.Type, ":/")+1:]
		}
	}
	switch {
	case status >= 200 && status < 300:
		return Done, problem
	case status >= 400 && status < 500:
		return NotDone, problem
	case status == http.StatusServiceUnavailable || status == http.StatusInsufficientStorage:
		if problem != "" && problem != "unknown-outcome" {
			return NotDone, problem
		}
	}
	return Unknown, problem
}

// Error describes an answer that is not Done.
func (a Answer) Error() string {
	if a.Err != nil {
		return a.Err.Error()
	}
	return fmt.Sprintf("HTTP %d %s: %.300s", a.Status, a.Problem, a.Body)
}

// GetJSON reads one route into v.
func (c *Client) GetJSON(ctx context.Context, path string, query url.Values, v any) error {
	a := c.Do(ctx, http.MethodGet, path, query, "", nil)
	if a.Outcome != Done {
		return fmt.Errorf("get %s of %s: %s", path, c.Node, a.Error())
	}
	if err := json.Unmarshal(a.Body, v); err != nil {
		return fmt.Errorf("get %s of %s: %w", path, c.Node, err)
	}
	return nil
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }
