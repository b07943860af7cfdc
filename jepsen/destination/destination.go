// Package destination is a webhook receiver in a process of its own that keeps its own fsynced log of every attempt and
// fails on command. It is the outside witness of what was delivered.
//
// It promises that an attempt stands in its log, fsynced, before it is answered with 200, and that an attempt it refused is
// logged as such. It knows nothing of Penstock but the headers a webhook carries.
package destination

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"penstock/jepsen/client"
)

// Mode says how the destination answers from now on.
type Mode string

// The modes. What is in brackets after the name is the class of failure it makes.
const (
	Good      Mode = "ok"
	Refuse    Mode = "503"        // transient
	Permanent Mode = "400"        // permanent: dead letter at once
	Reset     Mode = "reset"      // connection cut before anything was kept
	Ambiguous Mode = "200-reset"  // kept, then the connection is cut before the answer
	Hang      Mode = "hang"       // no answer within the time-out, nothing kept
	Slow      Mode = "slow"       // kept and answered after a second
	Throttle  Mode = "429"        // transient, with Retry-After: 1
	Flaky     Mode = "flaky"      // every third attempt gets a 500
	Lossy     Mode = "flaky-keep" // every third attempt is kept, but answered by a cut connection
)

// Attempt is one line of the destination's log.
type Attempt struct {
	At         int64    `json:"at"` // unix ns, for reading only
	Emitter    string   `json:"emitter"`
	From       string   `json:"from,omitempty"` // host that sent it: the name, or the address when it has none
	Compaction string   `json:"compaction,omitempty"`
	WebhookID  string   `json:"webhook_id,omitempty"`
	Events     []string `json:"events"` // source + " " + id, in the order received
	Sums       []string `json:"sums,omitempty"`
	Kept       bool     `json:"kept"` // the destination took it; the answer may still have been lost
	Status     int      `json:"status"`
	Body       string   `json:"body,omitempty"` // hash of the body
}

// Server receives at /d/EMITTER and is steered at /control?mode=M.
type Server struct {
	log   *syncLog
	hosts map[string]string // address -> name

	mu    sync.Mutex
	modes map[string]Mode // by emitter; "" is for all others
	count int
	fails int
}

// New opens the log at path, appending.
func New(path string, hosts map[string]string) (*Server, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("destination log: %w", err)
	}
	return &Server{log: newSyncLog(f), hosts: hosts, modes: map[string]Mode{}}, nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/control":
		s.mu.Lock()
		s.modes[r.URL.Query().Get("emitter")] = Mode(r.URL.Query().Get("mode"))
		s.mu.Unlock()
		fmt.Fprintln(w, "ok")
	case r.URL.Path == "/failures": // how many attempts were not answered with 200 so far
		s.mu.Lock()
		fmt.Fprintln(w, s.fails)
		s.mu.Unlock()
	case r.URL.Path == "/healthz":
		fmt.Fprintln(w, "ok")
	case strings.HasPrefix(r.URL.Path, "/d/"):
		s.receive(w, r, strings.TrimPrefix(r.URL.Path, "/d/"))
	default:
		http.NotFound(w, r)
	}
}

func (s *Server) mode(emitter string) (Mode, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	m, ok := s.modes[emitter]
	if !ok {
		m = s.modes[""]
	}
	return m, s.count
}

func (s *Server) receive(w http.ResponseWriter, r *http.Request, emitter string) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 32<<20))
	if err != nil {
		return // the sender went away; nothing was kept
	}
	a := Attempt{
		At: time.Now().UnixNano(), Emitter: emitter, Compaction: r.Header.Get("Penstock-Compaction-Id"),
		WebhookID: r.Header.Get("Webhook-Id"), Body: client.Sum(body),
	}
	a.From, _, _ = net.SplitHostPort(r.RemoteAddr)
	if name, ok := s.hosts[a.From]; ok {
		a.From = name
	}
	if a.Events, a.Sums, err = eventsOf(r.Header, body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	mode, n := s.mode(emitter)
	kept, status, cut := act(r.Context(), w, mode, n)
	if status != http.StatusOK {
		s.mu.Lock()
		s.fails++
		s.mu.Unlock()
	}
	a.Kept, a.Status = kept, status
	if err := s.log.append(a); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if cut {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(status)
}

// act decides one attempt. It may wait.
func act(ctx context.Context, w http.ResponseWriter, mode Mode, n int) (kept bool, status int, cut bool) {
	switch mode {
	case Refuse:
		return false, http.StatusServiceUnavailable, false
	case Permanent:
		return false, http.StatusBadRequest, false
	case Throttle:
		w.Header().Set("Retry-After", "1")
		return false, http.StatusTooManyRequests, false
	case Reset:
		return false, 0, true
	case Ambiguous:
		return true, 0, true
	case Hang:
		select {
		case <-ctx.Done():
		case <-time.After(30 * time.Second):
		}
		return false, 0, true
	case Slow:
		time.Sleep(time.Second)
	case Flaky:
		if n%3 == 0 {
			return false, http.StatusInternalServerError, false
		}
	case Lossy:
		if n%3 == 0 {
			return true, 0, true
		}
	}
	return true, http.StatusOK, false
}

// eventsOf reads what was delivered: one event in binary mode, or a batch.
func eventsOf(h http.Header, body []byte) (ids, sums []string, err error) {
	if !strings.HasPrefix(h.Get("Content-Type"), "application/cloudevents") {
		return []string{h.Get("Ce-Source") + " " + h.Get("Ce-Id")}, []string{client.Sum(body)}, nil
	}
	type structured struct {
		ID     string          `json:"id"`
		Source string          `json:"source"`
		Data   json.RawMessage `json:"data"`
	}
	var list []structured
	if strings.HasPrefix(h.Get("Content-Type"), "application/cloudevents-batch") {
		err = json.Unmarshal(body, &list)
	} else {
		list = make([]structured, 1)
		err = json.Unmarshal(body, &list[0])
	}
	for _, e := range list {
		ids = append(ids, e.Source+" "+e.ID)
		sums = append(sums, client.Sum(e.Data))
	}
	return ids, sums, err
}

// Serve listens until ctx ends.
// hosts names the addresses attempts come from.
func Serve(ctx context.Context, addr, logPath string, hosts map[string]string) error {
	s, err := New(logPath, hosts)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	server := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		server.Close()
	}()
	err = server.Serve(listener)
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return errors.Join(err, s.Close())
}

// Close ends the log.
func (s *Server) Close() error { return s.log.close() }
