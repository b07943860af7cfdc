// Package client is the HTTP client of a Penstock cluster that the command line, the demo and the tests share: a list of
// addresses with failover to the next node, a bound on every wait, and errors that keep apart what the API keeps apart
// (P7): refused for good, certainly not committed, and unknown.
//
// It promises never to repeat a write of events by itself once a node may have got it: that is the caller's to do, under the
// same ids. A change that says what shall be (a channel's spec, a member's suffrage) has the same effect twice as once, so
// the next node is asked when the outcome at one is unknown.
// It keeps no state but which address answered last, and starts no goroutine of its own.
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
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Config says whom to ask and how long to wait.
type Config struct {
	// Addresses are the nodes: host:port, or a URL with scheme http or https. At least one.
	Addresses []string
	// Timeout bounds one attempt at one node, waits the server was asked for not counted. Default 15s, a little over the
	// server's own deadline, so that the server's definite answer comes first.
	Timeout time.Duration
	// Token is sent with each request; "" sends none. It stands in no error.
	Token string
	// Transport is http.DefaultTransport's clone when nil.
	Transport http.RoundTripper
}

// Client talks to one cluster. It is safe for use by several goroutines.
type Client struct {
	bases   []string
	timeout time.Duration
	token   string
	http    *http.Client
	current atomic.Int64 // index into bases of the node that answered last
}

// maxAnswer bounds an answer that is read whole.
const maxAnswer = 64 << 20

// New makes a client; it connects to nothing yet.
func New(cfg Config) (*Client, error) {
	if len(cfg.Addresses) == 0 {
		return nil, errors.New("client: no address given")
	}
	c := &Client{timeout: cfg.Timeout, token: cfg.Token}
	if c.timeout <= 0 {
		c.timeout = 15 * time.Second
	}
	for _, a := range cfg.Addresses {
		base, err := baseURL(a)
		if err != nil {
			return nil, err
		}
		c.bases = append(c.bases, base)
	}
	transport := cfg.Transport
	if transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConnsPerHost = 32
		t.DialContext = (&net.Dialer{Timeout: 3 * time.Second}).DialContext
		t.DisableCompression = true
		t.Proxy = nil // a cluster is never behind a forward proxy
		transport = t
	}
	c.http = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// SplitAddresses reads the comma list of --addr and PENSTOCK_ADDR.
func SplitAddresses(list string) []string {
	var out []string
	for a := range strings.SplitSeq(list, ",") {
		if a = strings.TrimSpace(a); a != "" {
			out = append(out, a)
		}
	}
	return out
}

func baseURL(a string) (string, error) {
	raw := a
	if !strings.Contains(a, "://") {
		raw = "http://" + a
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return "", fmt.Errorf("client: address %q: want host:port or http(s)://host:port", a)
	}
	if u.Port() == "" && u.Scheme == "http" {
		return "", fmt.Errorf("client: address %q: want host:port, it has no port", a)
	}
	return u.Scheme + "://" + u.Host, nil
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// request is one call of the API, before a node is chosen.
type request struct {
	method string
	path   string // escaped
	query  url.Values
	header http.Header
	body   []byte
	write  bool          // may change state: never repeated once sent, unless
	again  bool          // it says what shall be, so that twice is the same as once
	wait   time.Duration // how long the server was asked to wait
}

// do tries the nodes in turn from the one that answered last, each at most once. The answer has a 2xx status and its body
// is the caller's to close; a read moves on after any failure of a node, a write only when it was certainly not committed,
// or may be made again. An outcome that was unknown at one node stays so, whatever a later one says but yes.
func (c *Client) do(ctx context.Context, r request) (*http.Response, error) {
	start := int(c.current.Load())
	var first, unknown error
	for i := range c.bases {
		n := (start + i) % len(c.bases)
		resp, err := c.attempt(ctx, c.bases[n], r)
		if err == nil && r.again {
			err = whole(resp)
		}
		if err == nil {
			c.current.Store(int64(n))
			return resp, nil
		}
		err = fmt.Errorf("%s: %w", c.bases[n], err)
		if first == nil || errors.Is(first, errNotSent) {
			first = err // a node's own word says more than an address nobody listens on
		}
		if ctx.Err() != nil || !movesOn(err, r.write) && !(r.again && Unknown(err)) {
			return nil, stillUnknown(err, unknown)
		}
		if unknown == nil && Unknown(err) {
			unknown = err
		}
		c.current.Store(int64((n + 1) % len(c.bases)))
	}
	if unknown != nil {
		return nil, unknown
	}
	return nil, first
}

// whole reads an answer to its end, so that one that breaks off counts as the attempt's failure.
func whole(resp *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	err = errors.Join(err, resp.Body.Close())
	resp.Body = io.NopCloser(bytes.NewReader(b))
	if err != nil {
		return &UnknownError{Err: fmt.Errorf("read answer: %w", err)}
	}
	return nil
}

// stillUnknown is err, a node's last word, after an attempt at another node whose outcome is unknown (nil: there was none):
// that a later one was refused does not say that the earlier one was not committed.
func stillUnknown(err, unknown error) error {
	if unknown == nil || Unknown(err) {
		return err
	}
	return &UnknownError{Err: fmt.Errorf("%w (before that %w)", err, unknown)}
}

// errNotSent: no byte of the request can have reached the node.
var errNotSent = errors.New("not sent")

// movesOn tells whether the next node may be asked after err.
func movesOn(err error, write bool) bool {
	var p *Problem
	if errors.As(err, &p) {
		return p.Status == http.StatusServiceUnavailable && p.typed || !write && p.Status >= 500
	}
	return errors.Is(err, errNotSent) || !write
}

// attempt asks one node.
func (c *Client) attempt(ctx context.Context, base string, r request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout+r.wait)
	u := base + r.path
	if len(r.query) > 0 {
		u += "?" + r.query.Encode()
	}
	var wrote atomic.Bool // the whole header was handed to a connection: from then on a node may act on it
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { wrote.Store(true) }})
	req, err := http.NewRequestWithContext(ctx, r.method, u, bytes.NewReader(r.body))
	if err != nil {
		cancel()
		return nil, fmt.Errorf("make request: %w", err)
	}
	if r.body == nil {
		req.Body, req.ContentLength = nil, 0
	}
	req.GetBody = nil // without it net/http cannot resend a write by itself, which it would with an Idempotency-Key
	for k, v := range r.header {
		req.Header[k] = v
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		cancel()
		return nil, transportError(err, r.write, wrote.Load())
	}
	resp.Body = &cancelBody{ReadCloser: resp.Body, cancel: cancel}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, readProblem(resp, r.write)
}

// cancelBody ends the attempt's deadline with the body.
type cancelBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *cancelBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel()
	return err
}

// transportError tells a request that never left from one whose fate is unknown.
func transportError(err error, write, wrote bool) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // the URL is said by the caller
	}
	switch {
	case !wrote:
		return fmt.Errorf("%w: %w", errNotSent, err)
	case write:
		return &UnknownError{Err: err}
	}
	return err
}

// call sends a request and decodes a JSON answer into out (nil: the answer is dropped).
func (c *Client) call(ctx context.Context, r request, out any) error {
	resp, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && out != nil {
		err = json.Unmarshal(b, out)
	}
	if err != nil && r.write {
		return &UnknownError{Err: fmt.Errorf("read answer: %w", err)}
	}
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	return nil
}

// path joins escaped segments behind /v1.
func path(segments ...string) string {
	var b strings.Builder
	b.WriteString("/v1")
	for _, s := range segments {
		b.WriteString("/" + url.PathEscape(s))
	}
	return b.String()
}
