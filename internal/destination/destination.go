// Package destination is a webhook receiver that behaves as it is told: the other side of delivery in tests, in the process of
// a test or as a process of its own (test/destination).
//
// A path POST /hook/NAME follows the script NAME, step by step, the last one for ever; without a script it answers 200. It
// records what it received, ids, order and times, and counts every request, answered or not. Scripts are set by
// PUT /control/NAME, and GET /control/NAME gives what was received. It promises to do exactly what a step says, and decides
// nothing by itself. It does not check signatures.
package destination

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Step is one behaviour. The zero value answers 200.
type Step struct {
	// Times is how many requests it holds for; 0 is one, and the last step holds for ever.
	Times int `json:"times,omitempty"`
	// Status of the answer; 0 is 200.
	Status int `json:"status,omitempty"`
	// RetryAfter is the header as it stands; "date:5s" and "date:-5s" become a date that far from now.
	RetryAfter string `json:"retry_after,omitempty"`
	// Location is that of a redirect.
	Location string `json:"location,omitempty"`
	// Body of the answer.
	Body string `json:"body,omitempty"`
	// Delay before the answer.
	Delay Duration `json:"delay,omitempty"`
	// Fault is what goes wrong: hang (no answer until the client leaves), drip (a byte of the answer each DripEvery), reset (the
	// connection, before an answer), reset_after (it, behind the status line), close (without an answer).
	Fault     string   `json:"fault,omitempty"`
	DripEvery Duration `json:"drip_every,omitempty"` // default 1s
}

// The faults.
const (
	Hang       = "hang"
	Drip       = "drip"
	Reset      = "reset"
	ResetAfter = "reset_after"
	Close      = "close"
)

// Duration reads "1s" in JSON.
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// Received is one request.
type Received struct {
	At           time.Time `json:"at"`
	ID           string    `json:"id"` // ce-id
	Source       string    `json:"source"`
	WebhookID    string    `json:"webhook_id"`
	CompactionID string    `json:"compaction_id"`
	Position     string    `json:"position"`
	Bytes        int       `json:"bytes"`
}

// Server is the receiver. The zero value is ready.
type Server struct {
	mu    sync.Mutex
	hooks map[string]*hook
	stop  chan struct{}
}

type hook struct {
	steps    []Step
	received []Received
}

func (s *Server) hook(name string) *hook {
	if s.hooks == nil {
		s.hooks = map[string]*hook{}
		s.stop = make(chan struct{})
	}
	h := s.hooks[name]
	if h == nil {
		h = &hook{}
		s.hooks[name] = h
	}
	return h
}

// Script sets the steps of a hook and forgets what it received.
func (s *Server) Script(name string, steps ...Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.hook(name) = hook{steps: steps}
}

// Received gives the requests of a hook, in the order in which they came.
func (s *Server) Received(name string) []Received {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Received(nil), s.hook(name).received...)
}

// Stop ends what hangs and drips.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook("")
	select {
	case <-s.stop:
	default:
		close(s.stop)
	}
}

// next records a request and gives the step for it.
func (s *Server) next(name string, r Received) (Step, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hook(name)
	h.received = append(h.received, r)
	if len(h.steps) == 0 {
		return Step{}, s.stop
	}
	n := len(h.received)
	for _, step := range h.steps {
		if n -= max(step.Times, 1); n <= 0 {
			return step, s.stop
		}
	}
	return h.steps[len(h.steps)-1], s.stop
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch name, ok := strings.CutPrefix(r.URL.Path, "/hook/"); {
	case ok && r.Method == http.MethodPost:
		s.serveHook(w, r, name)
	case strings.HasPrefix(r.URL.Path, "/control/"):
		s.serveControl(w, r, strings.TrimPrefix(r.URL.Path, "/control/"))
	default:
		http.NotFound(w, r)
	}
}

func (s *Server) serveControl(w http.ResponseWriter, r *http.Request, name string) {
	switch r.Method {
	case http.MethodPut:
		var steps []Step
		if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&steps); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.Script(name, steps...)
		w.WriteHeader(http.StatusNoContent)
	case http.MethodGet:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.Received(name))
	default:
		http.Error(w, "PUT steps or GET what was received", http.StatusMethodNotAllowed)
	}
}

func (s *Server) serveHook(w http.ResponseWriter, r *http.Request, name string) {
	n, _ := io.Copy(io.Discard, r.Body)
	step, stop := s.next(name, Received{
		At: time.Now(), ID: r.Header.Get("ce-id"), Source: r.Header.Get("ce-source"), WebhookID: r.Header.Get("webhook-id"),
		CompactionID: r.Header.Get("Penstock-Compaction-Id"), Position: r.Header.Get("Penstock-Position"), Bytes: int(n),
	})
	wait(r.Context(), stop, time.Duration(step.Delay))
	switch step.Fault {
	case Hang:
		wait(r.Context(), stop, time.Hour)
		return
	case Drip, Reset, ResetAfter, Close:
		step.onConnection(w, r, stop)
		return
	}
	if after := step.retryAfter(time.Now()); after != "" {
		w.Header().Set("Retry-After", after)
	}
	if step.Location != "" {
		w.Header().Set("Location", step.Location)
	}
	if step.Status != 0 {
		w.WriteHeader(step.Status)
	}
	_, _ = io.WriteString(w, step.Body)
}

func (s Step) retryAfter(now time.Time) string {
	text, ok := strings.CutPrefix(s.RetryAfter, "date:")
	if !ok {
		return s.RetryAfter
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return text
	}
	return now.Add(d).UTC().Format(http.TimeFormat)
}

// onConnection takes the connection from the server and treats it as the step says.
func (s Step) onConnection(w http.ResponseWriter, r *http.Request, stop <-chan struct{}) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer func() { _ = conn.Close() }()
	const answer = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
	switch s.Fault {
	case Drip:
		every := time.Duration(s.DripEvery)
		if every == 0 {
			every = time.Second
		}
		for i := range len(answer) {
			if _, err := io.WriteString(conn, answer[i:i+1]); err != nil {
				return
			}
			if !wait(r.Context(), stop, every) {
				return
			}
		}
	case ResetAfter:
		_, _ = io.WriteString(conn, answer+"begun")
		time.Sleep(5 * time.Millisecond) // so that the answer is read before the reset
		reset(conn)
	case Reset:
		reset(conn)
	}
}

// reset closes with RST.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
}

// wait is false when it was cut short.
func wait(ctx context.Context, stop <-chan struct{}, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-stop:
	}
	return false
}

// Listen serves on an address until ctx ends, and gives the address that it got.
func (s *Server) Listen(ctx context.Context, address string) (string, <-chan error, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan error, 1)
	go func() {
		<-ctx.Done()
		s.Stop()
		_ = server.Close()
	}()
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			done <- err
			return
		}
		done <- nil
	}()
	return l.Addr().String(), done, nil
}
