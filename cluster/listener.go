package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	maxInbound     = 1024            // connections accepted at once on one port
	maxSilent      = 64              // of them, those that have not said their header yet; one more ends the one that waits longest
	headerDeadline = 3 * time.Second // for the header of a new connection
	dialTimeout    = time.Second
)

// keepAlive finds a dead peer in 11 s. Raft reads a snapshot without any deadline on its main goroutine, so a leader that loses power
// in the middle of a transfer would otherwise hold the follower for hours.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}

// listener accepts connections on one port, reads each header in a goroutine of its own with a deadline, and hands the connection to
// the handler of its kind. The handler runs on that goroutine; the connection is closed when it returns.
type listener struct {
	ln     net.Listener
	accept func(connHeader) error // refuses a header
	logger *slog.Logger
	wg     sync.WaitGroup

	mu struct {
		sync.Mutex
		closed   bool
		conns    map[net.Conn]string // → the peer, "" until its header is read
		silent   []net.Conn          // those without a header, oldest first: a peer says it at once, so whoever waits long is none
		handlers map[connKind]func(net.Conn, connHeader)
	}
}

func listen(addr string, logger *slog.Logger, accept func(connHeader) error) (*listener, error) {
	cfg := net.ListenConfig{KeepAliveConfig: keepAlive}
	ln, err := cfg.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	l := &listener{ln: ln, accept: accept, logger: logger}
	l.mu.conns = map[net.Conn]string{}
	l.mu.handlers = map[connKind]func(net.Conn, connHeader){}
	l.wg.Go(l.run)
	return l, nil
}

func (l *listener) handle(kind connKind, fn func(net.Conn, connHeader)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.handlers[kind] = fn
}

func (l *listener) run() {
	pause := 5 * time.Millisecond
	for {
		conn, err := l.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, most likely: the others wait, we do not spin
			l.logger.Warn("accept a peer connection", "error", err)
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
			continue
		}
		pause = 5 * time.Millisecond
		if !l.track(conn) {
			conn.Close()
			continue
		}
		l.wg.Go(func() { l.serve(conn) })
	}
}

func (l *listener) track(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed || len(l.mu.conns) >= maxInbound {
		return false
	}
	l.mu.conns[conn] = ""
	l.mu.silent = append(l.mu.silent, conn)
	if len(l.mu.silent) > maxSilent {
		l.mu.silent[0].Close()
		l.mu.silent = slices.Delete(l.mu.silent, 0, 1)
	}
	return true
}

// spokeLocked takes a connection out of the silent ones.
func (l *listener) spokeLocked(conn net.Conn) {
	if i := slices.Index(l.mu.silent, conn); i >= 0 {
		l.mu.silent = slices.Delete(l.mu.silent, i, i+1)
	}
}

func (l *listener) serve(conn net.Conn) {
	defer func() {
		conn.Close()
		l.mu.Lock()
		delete(l.mu.conns, conn)
		l.spokeLocked(conn)
		l.mu.Unlock()
	}()
	conn.SetDeadline(time.Now().Add(headerDeadline))
	h, err := readHeader(conn)
	if err == nil {
		err = l.accept(h)
	}
	if err != nil {
		l.logger.Debug("peer connection refused", "remote", conn.RemoteAddr().String(), "from", h.From, "error", err)
		return
	}
	conn.SetDeadline(time.Time{})
	l.mu.Lock()
	l.mu.conns[conn] = h.From
	l.spokeLocked(conn)
	fn := l.mu.handlers[h.Kind]
	l.mu.Unlock()
	if fn != nil {
		fn(conn, h)
	}
}

// drop closes the connections of one peer.
func (l *listener) drop(peer string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for conn, from := range l.mu.conns {
		if from == peer {
			conn.Close()
		}
	}
}

// Close ends every connection and waits for their goroutines.
func (l *listener) Close() error {
	err := l.ln.Close()
	l.mu.Lock()
	l.mu.closed = true
	for conn := range l.mu.conns {
		conn.Close()
	}
	l.mu.Unlock()
	l.wg.Wait()
	return err
}

// dial opens a connection and writes its header.
func dial(ctx context.Context, addr string, h connHeader) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout, KeepAliveConfig: keepAlive}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	conn.SetWriteDeadline(time.Now().Add(headerDeadline))
	if _, err := conn.Write(h.encode()); err != nil {
		conn.Close()
		return nil, fmt.Errorf("write connection header to %s: %w", addr, err)
	}
	conn.SetWriteDeadline(time.Time{})
	return conn, nil
}
