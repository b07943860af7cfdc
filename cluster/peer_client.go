package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

const (
	maxPeerPending = 4096 // requests waiting on one connection
	defaultCall    = 10 * time.Second
)

// CallError tells how far a peer request came.
type CallError struct {
	Node, Method string
	// Started is false only when the other node certainly did not begin to work on the request.
	Started bool
	// Remote is true when the other node answered, with this error.
	Remote bool
	Err    error
}

func (e *CallError) Error() string {
	return fmt.Sprintf("call %s on %s: %v", e.Method, e.Node, e.Err)
}

func (e *CallError) Unwrap() error { return e.Err }

var (
	errBusy       = errors.New("too many requests")
	errNoMethod   = errors.New("no such method")
	errConnClosed = errors.New("connection lost")
	errAbandoned  = errors.New("no answer yet, and another node leads")
)

// lane is one of two connections to a peer: small requests with short deadlines do not queue behind large ones.
type lane uint8

const (
	laneControl lane = iota
	laneBulk
)

type laneKey struct {
	node string
	lane lane
}

// peerClient keeps one connection per peer and lane, dialled when needed.
type peerClient struct {
	dial func(ctx context.Context, node string) (net.Conn, error)
	wg   sync.WaitGroup

	mu struct {
		sync.Mutex
		closed bool
		lanes  map[laneKey]*peerConn
	}
}

func newPeerClient(dial func(ctx context.Context, node string) (net.Conn, error)) *peerClient {
	c := &peerClient{dial: dial}
	c.mu.lanes = map[laneKey]*peerConn{}
	return c
}

// call sends one request and waits for its answer, the context's end, or the loss of the connection. Every error is a *CallError.
func (c *peerClient) call(ctx context.Context, l lane, node, method string, body []byte) ([]byte, error) {
	fail := func(started bool, err error) ([]byte, error) {
		return nil, &CallError{Node: node, Method: method, Started: started, Err: err}
	}
	grant := GrantOf(ctx)
	if len(body)+len(grant)+len(method)+requestFixed > maxFrame || len(grant) > maxGrant {
		return fail(false, fmt.Errorf("%w: body of %d bytes, grant of %d", errFrame, len(body), len(grant)))
	}
	ctx, cancel := context.WithTimeout(ctx, defaultCallTimeout(ctx))
	defer cancel()
	pc, err := c.conn(ctx, laneKey{node, l})
	if err != nil {
		return fail(false, err)
	}
	id, reply, err := pc.register(method)
	if err != nil {
		return fail(false, err)
	}
	defer pc.forget(id)
	deadline, _ := ctx.Deadline()
	millis := max(1, time.Until(deadline).Milliseconds())
	if started, err := pc.send(ctx, &request{id: id, millis: uint32(millis), method: method, grant: grant, body: body}); err != nil {
		return fail(started, err)
	}
	select {
	case a := <-reply:
		return a.result(node, method)
	case <-pc.done:
		select { // the answer may have come with the end
		case a := <-reply:
			return a.result(node, method)
		default:
		}
		return fail(true, errConnClosed)
	case <-ctx.Done():
		return fail(true, ctx.Err())
	}
}

func defaultCallTimeout(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(time.Until(deadline), peerMaxTimeout)
	}
	return defaultCall
}

func (a answer) result(node, method string) ([]byte, error) {
	e := &CallError{Node: node, Method: method}
	switch a.status {
	case statusOK:
		return a.body, nil
	case statusBusy:
		e.Err = errBusy
	case statusUnknown:
		e.Err = errNoMethod
	case statusRefused:
		e.Remote, e.Err = true, fmt.Errorf("%w: %s", ErrForbidden, strings.TrimPrefix(string(a.body), ErrForbidden.Error()+" "))
	case statusAbandoned:
		e.Started, e.Err = true, errAbandoned
	default:
		e.Started, e.Remote, e.Err = true, true, errors.New(string(a.body))
	}
	return nil, e
}

func (c *peerClient) conn(ctx context.Context, key laneKey) (*peerConn, error) {
	if pc, err := c.existing(key); pc != nil || err != nil {
		return pc, err
	}
	conn, err := c.dial(ctx, key.node)
	if err != nil {
		return nil, err
	}
	pc := &peerConn{conn: conn, w: bufio.NewWriterSize(conn, 64<<10), done: make(chan struct{}), write: make(chan struct{}, 1)}
	pc.mu.waiting = map[uint64]waitingCall{}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		conn.Close()
		return nil, ErrClosed
	}
	if other := c.mu.lanes[key]; other != nil && !other.broken() { // someone else was faster
		conn.Close()
		return other, nil
	}
	c.mu.lanes[key] = pc
	c.wg.Go(pc.read)
	return pc, nil
}

func (c *peerClient) existing(key laneKey) (*peerConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, ErrClosed
	}
	if pc := c.mu.lanes[key]; pc != nil && !pc.broken() {
		return pc, nil
	}
	return nil, nil
}

// drop closes the connections to one peer: its address changed.
func (c *peerClient) drop(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, pc := range c.mu.lanes {
		if key.node == node {
			pc.conn.Close()
			delete(c.mu.lanes, key)
		}
	}
}

func (c *peerClient) Close() {
	c.mu.Lock()
	c.mu.closed = true
	for _, pc := range c.mu.lanes {
		pc.conn.Close()
	}
	c.mu.Unlock()
	c.wg.Wait()
}

// peerConn is one connection to a peer. Its reader ends when the connection breaks, and closes done.
type peerConn struct {
	conn net.Conn
	done chan struct{}

	write chan struct{} // a lock over the write of one frame that a caller can give up waiting for
	w     *bufio.Writer

	mu struct {
		sync.Mutex
		next    uint64
		waiting map[uint64]waitingCall
	}
}

func (p *peerConn) broken() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *peerConn) register(method string) (uint64, chan answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.mu.waiting) >= maxPeerPending {
		return 0, nil, errBusy
	}
	p.mu.next++
	reply := make(chan answer, 1)
	p.mu.waiting[p.mu.next] = waitingCall{method, reply}
	return p.mu.next, reply, nil
}

// waitingCall waits for its answer. Whoever takes it out of the map sends one, and only once.
type waitingCall struct {
	method string
	reply  chan answer // capacity 1
}

// abandon ends the wait for answers of a node to one method, as the loss of the connection would. Other requests stay.
func (c *peerClient) abandon(node, method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, pc := range c.mu.lanes {
		if key.node != node {
			continue
		}
		pc.mu.Lock()
		for id, call := range pc.mu.waiting {
			if call.method == method {
				delete(pc.mu.waiting, id)
				call.reply <- answer{id: id, status: statusAbandoned}
			}
		}
		pc.mu.Unlock()
	}
}

func (p *peerConn) forget(id uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.waiting, id)
}

// send reports whether any byte of the request may have left this node.
func (p *peerConn) send(ctx context.Context, q *request) (started bool, err error) {
	select {
	case p.write <- struct{}{}:
		defer func() { <-p.write }()
	case <-p.done:
		return false, errConnClosed
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if p.broken() {
		return false, errConnClosed
	}
	p.conn.SetWriteDeadline(time.Now().Add(peerWrite))
	if err := q.writeTo(p.w); err != nil {
		p.conn.Close()
		return true, fmt.Errorf("%w: %w", errConnClosed, err)
	}
	return true, nil
}

func (p *peerConn) read() {
	defer close(p.done)
	defer p.conn.Close()
	r := bufio.NewReaderSize(p.conn, 64<<10)
	for {
		b, err := readFrame(r)
		if err != nil {
			return
		}
		a, err := parseAnswer(b)
		if err != nil {
			return
		}
		p.mu.Lock()
		call, waits := p.mu.waiting[a.id]
		delete(p.mu.waiting, a.id)
		p.mu.Unlock()
		if waits {
			call.reply <- a
		}
	}
}
