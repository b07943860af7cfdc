package cluster

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// streamLayer carries the connections of one Raft instance. Raft's addresses are node ids; only dialNode knows where a node is.
//
// Close ends every connection, both ways: Raft's own shutdown waits for goroutines that sit in an RPC, and its transport never closes
// what it accepted.
type streamLayer struct {
	id       string
	dialNode func(ctx context.Context, node string) (net.Conn, error)
	accepted chan net.Conn
	done     chan struct{}

	mu struct {
		sync.Mutex
		closed bool
		conns  map[*trackedConn]struct{}
	}
}

func newStreamLayer(id string, dialNode func(context.Context, string) (net.Conn, error)) *streamLayer {
	s := &streamLayer{id: id, dialNode: dialNode, accepted: make(chan net.Conn), done: make(chan struct{})}
	s.mu.conns = map[*trackedConn]struct{}{}
	return s
}

// serve gives an accepted connection to Raft and returns when it is closed.
func (s *streamLayer) serve(conn net.Conn, h connHeader) {
	tc := s.track(conn, h.From)
	if tc == nil {
		return
	}
	select {
	case s.accepted <- tc:
	case <-s.done:
		tc.Close()
	}
	<-tc.closed
}

func (s *streamLayer) track(conn net.Conn, peer string) *trackedConn {
	tc := &trackedConn{Conn: conn, peer: peer, stream: s, closed: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return nil
	}
	s.mu.conns[tc] = struct{}{}
	return tc
}

// Accept implements net.Listener.
func (s *streamLayer) Accept() (net.Conn, error) {
	select {
	case conn := <-s.accepted:
		return conn, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

// Dial implements raft.StreamLayer; address is a node id.
func (s *streamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), min(timeout, dialTimeout))
	defer cancel()
	conn, err := s.dialNode(ctx, string(address))
	if err != nil {
		return nil, err
	}
	tc := s.track(conn, string(address))
	if tc == nil {
		conn.Close()
		return nil, net.ErrClosed
	}
	return tc, nil
}

// drop closes the connections with one peer.
func (s *streamLayer) drop(peer string) {
	for _, tc := range s.snapshot() {
		if tc.peer == peer {
			tc.Close()
		}
	}
}

func (s *streamLayer) snapshot() []*trackedConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*trackedConn, 0, len(s.mu.conns))
	for tc := range s.mu.conns {
		out = append(out, tc)
	}
	return out
}

// Close implements net.Listener. It may be called twice.
func (s *streamLayer) Close() error {
	s.mu.Lock()
	if !s.mu.closed {
		s.mu.closed = true
		close(s.done)
	}
	s.mu.Unlock()
	for _, tc := range s.snapshot() {
		tc.Close()
	}
	return nil
}

// Addr implements net.Listener: Raft takes its own address, which is what votes are stored under, from here.
func (s *streamLayer) Addr() net.Addr { return nodeAddr(s.id) }

type nodeAddr string

func (nodeAddr) Network() string  { return "node" }
func (a nodeAddr) String() string { return string(a) }

type trackedConn struct {
	net.Conn
	peer   string
	stream *streamLayer
	once   sync.Once
	closed chan struct{}
}

func (c *trackedConn) Close() error {
	err := errors.New("closed twice")
	c.once.Do(func() {
		err = c.Conn.Close()
		c.stream.mu.Lock()
		delete(c.stream.mu.conns, c)
		c.stream.mu.Unlock()
		close(c.closed)
	})
	return err
}
