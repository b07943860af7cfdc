// Package webhook delivers compactions over HTTP: one event as a CloudEvent in binary mode, several in batch mode, signed as
// Standard Webhooks says.
//
// Headers of a request, besides those of CloudEvents and of the spec:
//
//	webhook-id              the same on every retry, failover, restart and replay; see messageID
//	webhook-timestamp       unix seconds of this attempt
//	webhook-signature       "v1,BASE64" for each secret, one or two, with a space between
//	Penstock-Compaction-Id  the compaction's id
//	Penstock-Position       INDEX.ORD of the compaction's first event; grows along a lane
//
// It promises: in binary mode the body is the event's data byte for byte; the signature covers exactly the bytes sent; a
// redirect is never followed, so nothing is sent to another host; a 2xx status line is success, whatever becomes of the body
// after it; with deny_private nothing is sent to an address that is not public, however it is spelled; reasons never hold the
// URL or a secret. Connections, descriptors and memory are bounded per sink: at most one connection per attempt in flight, an
// answer is read to 64 KiB and kept to 1 KiB. Names are resolved again at least once a minute and after each failure to connect.
//
// It does not retry, and follows no proxy settings of the environment.
package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"penstock/emit/sink"
	"penstock/internal/spec"
)

// Config is what a webhook needs.
type Config struct {
	Webhook spec.Webhook
	// Concurrency bounds the connections. Default 16.
	Concurrency int
	// Classes are the emitter's overrides.
	Classes map[string]string
	// Resolve turns a secret reference into its value. It is asked at each attempt, so that a rotated secret is taken up.
	// Default ResolveReference.
	Resolve func(reference string) (string, error)
	// TLS is the client's TLS configuration; nil for the system's roots.
	TLS *tls.Config
}

// Sink is a webhook destination.
type Sink struct {
	url         string
	headers     map[string]string
	secrets     []string
	timeout     time.Duration
	classes     *sink.Classifier
	resolve     func(string) (string, error)
	transport   *http.Transport
	client      *http.Client
	lastRefresh atomic.Int64 // unix ns
}

const (
	drainedBytes  = 64 << 10
	drainTime     = time.Second // for the body of an answer whose status is known
	refreshEvery  = time.Minute
	defaultWithin = 15 * time.Second
)

// New checks the configuration. It does not reach for the destination or the secrets.
func New(cfg Config) (*Sink, error) {
	u, err := url.Parse(cfg.Webhook.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, errors.New("webhook: url must be absolute, with http or https")
	}
	classes, err := sink.NewClassifier(cfg.Classes)
	if err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	if len(cfg.Webhook.Secrets) > 2 {
		return nil, errors.New("webhook: at most two secrets")
	}
	s := &Sink{
		url: cfg.Webhook.URL, headers: cfg.Webhook.Headers, secrets: cfg.Webhook.Secrets,
		timeout: time.Duration(cfg.Webhook.Timeout), classes: classes, resolve: cfg.Resolve,
		transport: newTransport(cfg),
	}
	if s.timeout <= 0 {
		s.timeout = defaultWithin
	}
	if s.resolve == nil {
		s.resolve = ResolveReference
	}
	s.client = &http.Client{
		Transport:     s.transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	s.lastRefresh.Store(time.Now().UnixNano())
	return s, nil
}

func newTransport(cfg Config) *http.Transport {
	concurrency := cfg.Concurrency
	if concurrency <= 0 {
		concurrency = 16
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}
	if cfg.Webhook.DenyPrivate {
		dialer.Control = denyPrivate
	}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        cfg.TLS,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxConnsPerHost:        concurrency,
		MaxIdleConns:           concurrency,
		MaxIdleConnsPerHost:    concurrency,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
	}
}

// Deliver makes one attempt.
func (s *Sink) Deliver(ctx context.Context, c *sink.Compaction) sink.Result {
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, errTimeout)
	defer cancel()
	req, fail := s.request(ctx, c)
	if fail != nil {
		return *fail
	}
	s.refresh(false)
	resp, err := s.client.Do(req)
	if err != nil {
		s.refresh(true)
		return sink.Result{Class: sink.Transient, Reason: s.networkReason(ctx, err)}
	}
	head := readHead(resp.Body, cancel)
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return sink.Result{OK: true, Status: resp.StatusCode, Body: head}
	}
	return sink.Result{
		Status: resp.StatusCode, Class: s.classes.Class(resp.StatusCode), Body: head,
		RetryAfter: parseRetryAfter(resp.Header, time.Now()),
		Reason:     statusReason(resp.StatusCode),
	}
}

// Close closes idle connections.
func (s *Sink) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

var errTimeout = errors.New("timeout")

// refresh drops idle connections now and then, and after each failure, so that the name is resolved again: a connection that
// is always busy would otherwise stick to an address that has moved.
func (s *Sink) refresh(now bool) {
	last, t := s.lastRefresh.Load(), time.Now().UnixNano()
	if (now || t-last >= int64(refreshEvery)) && s.lastRefresh.CompareAndSwap(last, t) {
		s.transport.CloseIdleConnections()
	}
}

// readHead keeps the beginning of an answer and drains the rest within bounds of bytes and time, so that the connection can
// be used again. Its errors do not matter: the status has said it all.
func readHead(body io.ReadCloser, cancel context.CancelFunc) []byte {
	timer := time.AfterFunc(drainTime, cancel)
	defer timer.Stop()
	var head bytes.Buffer
	limited := io.LimitReader(body, drainedBytes)
	_, _ = io.CopyN(&head, limited, sink.BodyKept)
	_, _ = io.Copy(io.Discard, limited)
	_ = body.Close()
	if head.Len() == 0 {
		return nil
	}
	return head.Bytes()
}

func statusReason(status int) string {
	text := strconv.Itoa(status)
	if name := http.StatusText(status); name != "" {
		text += " " + name
	}
	if status >= 300 && status < 400 {
		text += " (redirects are not followed)"
	}
	return text
}

// networkReason says what went wrong without the URL, which may hold a secret.
func (s *Sink) networkReason(ctx context.Context, err error) string {
	if errors.Is(context.Cause(ctx), errTimeout) {
		return fmt.Sprintf("no answer within %s", s.timeout)
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	if errors.Is(err, io.EOF) {
		return "connection closed before an answer"
	}
	return err.Error()
}
