package cluster

import (
	"bufio"
	"context"
	"net"
	"sync"
	"time"
)

const (
	maxControl     = 256              // small requests one node serves at once, over all peers
	maxBulk        = 2048             // proposals and the methods of other packages
	peerWrite      = 5 * time.Second  // for one frame to go out
	peerMaxTimeout = 60 * time.Second // no request is worked on for longer
)

// Handler answers one peer request. body is the handler's to keep.
type Handler func(ctx context.Context, from string, body []byte) ([]byte, error)

// peerServer answers peer requests. The number at work is bounded; one too many is refused at once and was not started.
type peerServer struct {
	ctx   context.Context
	node  string
	admit func(grant []byte) error // nil: every grant is good
	slots [2]chan struct{}         // by lane: proposals that wait do not keep a lease from being renewed
	wg    sync.WaitGroup

	mu struct {
		sync.RWMutex
		methods map[string]method
	}
}

type method struct {
	fn   Handler
	lane lane
}

func newPeerServer(ctx context.Context, node string, admit func(grant []byte) error) *peerServer {
	s := &peerServer{ctx: ctx, node: node, admit: admit}
	s.slots[laneControl] = make(chan struct{}, maxControl)
	s.slots[laneBulk] = make(chan struct{}, maxBulk)
	s.mu.methods = map[string]method{}
	return s
}

func (s *peerServer) handle(name string, l lane, fn Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.methods[name] = method{fn, l}
}

func (s *peerServer) method(name string) (method, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	m, ok := s.mu.methods[name]
	return m, ok
}

// serve runs one connection until it breaks. Requests already at work end by themselves; their answers go nowhere.
func (s *peerServer) serve(conn net.Conn, h connHeader) {
	r := bufio.NewReaderSize(conn, 64<<10)
	out := &answerWriter{conn: conn, w: bufio.NewWriterSize(conn, 64<<10)}
	for {
		b, err := readFrame(r)
		if err != nil {
			return
		}
		q, err := parseRequest(b)
		if err != nil {
			return
		}
		m, ok := s.method(q.method)
		if !ok {
			out.send(answer{id: q.id, status: statusUnknown, body: []byte(q.method)})
			continue
		}
		select {
		case s.slots[m.lane] <- struct{}{}:
		default:
			out.send(answer{id: q.id, status: statusBusy, body: []byte("too many requests")})
			continue
		}
		s.wg.Go(func() {
			defer func() { <-s.slots[m.lane] }()
			out.send(s.run(m.fn, h.From, q))
		})
	}
}

func (s *peerServer) run(fn Handler, from string, q request) answer {
	timeout := time.Duration(q.millis) * time.Millisecond
	ctx, cancel := context.WithTimeout(s.ctx, min(timeout, peerMaxTimeout))
	defer cancel()
	if err := checkGrant(s.admit, q.grant, s.node); err != nil {
		return answer{id: q.id, status: statusRefused, body: []byte(err.Error())}
	}
	body, err := fn(WithGrant(ctx, q.grant), from, q.body)
	if err != nil {
		return answer{id: q.id, status: statusError, body: []byte(err.Error())}
	}
	return answer{id: q.id, status: statusOK, body: body}
}

// answerWriter lets several requests answer over one connection. A failed write closes it, which ends the reader too.
type answerWriter struct {
	mu   sync.Mutex
	conn net.Conn
	w    *bufio.Writer
}

func (o *answerWriter) send(a answer) {
	if len(a.body)+10 > maxFrame {
		a.status, a.body = statusError, []byte("answer too large")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.conn.SetWriteDeadline(time.Now().Add(peerWrite))
	if err := a.writeTo(o.w); err != nil {
		o.conn.Close()
	}
}
