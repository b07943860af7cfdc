package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/cluster"
)

// slowBody is a body that has begun and goes on for as long as the test likes.
type slowBody struct {
	*io.PipeReader
	w *io.PipeWriter
}

func newSlowBody(t *testing.T, begin string) *slowBody {
	r, w := io.Pipe()
	t.Cleanup(func() { _ = w.Close() })
	go func() { _, _ = io.WriteString(w, begin) }()
	return &slowBody{r, w}
}

// post sends a request in the background.
func post(t *testing.T, url string, body io.Reader) <-chan answer {
	t.Helper()
	got := make(chan answer, 1)
	req, err := http.NewRequest("POST", url, body)
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/cloudevents-batch+json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	go func() {
		resp, err := client.Do(req)
		if err != nil {
			got <- answer{t: t, body: err.Error()}
			return
		}
		got <- answerOf(t, resp, nil)
	}()
	return got
}

func within(t *testing.T, what string, d time.Duration, ch <-chan answer) answer {
	t.Helper()
	select {
	case a := <-ch:
		return a
	case <-time.After(d):
		require.Fail(t, "no answer: "+what)
		return answer{}
	}
}

// bodies is how many bodies may still be read.
func (s *surface) bodies() int {
	s.api.drain.mu.Lock()
	defer s.api.drain.mu.Unlock()
	return len(s.api.drain.mu.bodies)
}

func TestDrainAnswersWhatWasAcceptedAndRefusesWhatIsNew(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	begun, release := make(chan struct{}), make(chan struct{})
	s.BeforePropose = func(ctx context.Context, _ []byte) error {
		close(begun)
		<-release
		return ctx.Err()
	}
	server := s.serve()
	accepted := post(t, server.URL+ordersPath, strings.NewReader(batch("a")))
	<-begun
	s.api.BeginDrain()
	s.api.BeginDrain() // twice is as once

	p := within(t, "a new request", 5*time.Second, post(t, server.URL+ordersPath, strings.NewReader(batch("b")))).problem(503, "shutting-down")
	require.Equal(t, "no", p.Committed)
	s.call("PUT", "/v1/channels/new", `{}`).problem(503, "shutting-down")
	s.call("POST", "/v1/cluster/transfer", `{}`).problem(503, "shutting-down")
	s.get("/readyz").problem(503, "not-ready")
	s.get("/v1/channels").ok(nil)

	expired, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, s.api.WaitDrained(expired), context.Canceled, "one accepted request has no answer yet")
	// Its body is read to the end: cutting bodies off must not cut its commit off.
	s.api.CutBodies()
	close(release)
	within(t, "the accepted request", 5*time.Second, accepted).ok(nil)
	require.NoError(t, s.api.WaitDrained(context.Background()))
	require.NoError(t, s.api.WaitQuiet(context.Background()))
}

func TestDrainWithNothingAcceptedIsOverAtOnce(t *testing.T) {
	s := newSurface(t)
	s.api.BeginDrain()
	require.NoError(t, s.api.WaitDrained(context.Background()))
	require.NoError(t, s.api.WaitQuiet(context.Background()))
}

func TestBodiesCutOffByADrainAreAnswered(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	server := s.serve()
	got := post(t, server.URL+ordersPath, newSlowBody(t, "["))
	require.Eventually(t, func() bool { return s.bodies() == 1 }, 5*time.Second, time.Millisecond)
	s.api.BeginDrain()
	s.api.CutBodies()
	p := within(t, "the upload", 5*time.Second, got).problem(503, "shutting-down")
	require.Equal(t, "no", p.Committed)
	require.NoError(t, s.api.WaitDrained(context.Background()))
	require.Zero(t, accepted(t, s))
}

// A request that was accepted before the drain may come to its body only after the bodies were cut off.
func TestABodyThatBeginsAfterTheCutIsCutOffToo(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	rc := &deadlines{}
	s.api.BeginDrain()
	s.api.CutBodies()
	done := s.api.drain.reading(http.NewResponseController(rc), time.Now().Add(time.Hour))
	done()
	require.False(t, rc.read.After(time.Now()))
}

type deadlines struct {
	http.ResponseWriter
	read time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error { d.read = t; return nil }

func TestABadBodyDuringADrainIsStillABadBody(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	s.BeforePropose = nil
	r, w := io.Pipe()
	server := s.serve()
	got := post(t, server.URL+ordersPath, r)
	require.Eventually(t, func() bool { return s.bodies() == 1 }, 5*time.Second, time.Millisecond)
	s.api.BeginDrain()
	_, err := io.WriteString(w, "no json")
	require.NoError(t, err)
	require.NoError(t, w.Close())
	within(t, "the bad body", 5*time.Second, got).problem(400, "bad-event")
}

// A client that trickles gets a definite answer within the request's time, and so does one whose body is refused unread.
func TestATricklingBodyIsAnsweredWithinTheTimeout(t *testing.T) {
	s := newSurface(t, func(c *Config) { c.Timeout = 100 * time.Millisecond })
	s.Put(orders())
	server := s.serve()
	for _, path := range []string{ordersPath, ordersPath + "?timeout=50ms"} {
		p := within(t, path, 5*time.Second, post(t, server.URL+path, newSlowBody(t, "["))).problem(408, "bad-request")
		require.Equal(t, "no", p.Committed)
	}
	within(t, "no such channel", 5*time.Second, post(t, server.URL+"/v1/channels/none/events", newSlowBody(t, "["))).problem(404, "no-such-channel")
	require.True(t, s.api.admit.enter(s.api.config().InFlightBytes))
	within(t, "overload", 5*time.Second, post(t, server.URL+ordersPath, newSlowBody(t, "["))).problem(429, "overloaded")
	s.api.admit.leave(s.api.config().InFlightBytes)

	req, err := http.NewRequest("PUT", server.URL+"/v1/channels/new", newSlowBody(t, "{"))
	require.NoError(t, err)
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	answerOf(t, resp, err).problem(408, "bad-request")
	require.Zero(t, s.api.admit.mu.requests)
}

// The deadline of a body does not stay on the connection for the requests that follow.
func TestAConnectionGoesOnAfterTheBodyDeadline(t *testing.T) {
	s := newSurface(t, func(c *Config) { c.Timeout = 100 * time.Millisecond })
	s.Put(orders())
	server := s.serve()
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	for i := range 3 {
		resp, err := client.Post(server.URL+ordersPath, "application/cloudevents-batch+json", bytes.NewReader([]byte(batch("a"))))
		answerOf(t, resp, err).ok(nil)
		if i < 2 {
			<-time.After(150 * time.Millisecond)
		}
	}
}

// What a client sees when it leaves is nothing; but what it sent was accepted, so it is seen through.
func TestAClientThatLeavesDoesNotUndoItsCommit(t *testing.T) {
	s := newSurface(t)
	s.Put(orders())
	ended := make(chan error, 1)
	begun := make(chan struct{})
	gone := make(chan struct{})
	s.BeforePropose = func(ctx context.Context, _ []byte) error {
		close(begun)
		<-gone
		select {
		case <-ctx.Done():
			ended <- ctx.Err()
			return &cluster.ProposeError{Outcome: cluster.NotCommitted, Reason: cluster.ReasonDeadline}
		case <-time.After(50 * time.Millisecond):
			ended <- nil
			return nil
		}
	}
	server := s.serve()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, "POST", server.URL+ordersPath, strings.NewReader(batch("a")))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/cloudevents-batch+json")
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	go func() {
		<-begun
		cancel()
	}()
	_, err = (&http.Client{Transport: transport}).Do(req)
	require.Error(t, err)
	close(gone)
	require.NoError(t, <-ended)
	require.NoError(t, s.api.WaitQuiet(context.Background()))
	require.Equal(t, uint64(1), accepted(t, s))
}
