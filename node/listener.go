package node

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"penstock/node/api"
)

// How many connections are open at once. Past maxConnections each request but those for health and metrics is refused, in
// so many words; past crowdedConnections more than that, none is accepted and they wait in the system's queue.
const (
	maxConnections     = 4096
	crowdedConnections = 256
)

// connLimit bounds the connections of a listener.
type connLimit struct {
	net.Listener
	slots  chan struct{}
	most   int64
	open   atomic.Int64
	closed chan struct{}
	once   sync.Once
}

// limitConnections bounds l to most connections that are served and extra ones that are told so.
func limitConnections(l net.Listener, most, extra int) *connLimit {
	return &connLimit{Listener: l, slots: make(chan struct{}, most+extra), most: int64(most), closed: make(chan struct{})}
}

// Accept implements net.Listener. It waits while there are too many.
func (l *connLimit) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{Conn: c, of: l, crowded: l.open.Add(1) > l.most}, nil
}

// Close implements net.Listener.
func (l *connLimit) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// limitedConn gives its place back when it is closed.
type limitedConn struct {
	net.Conn
	of      *connLimit
	crowded bool
	once    sync.Once
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.of.open.Add(-1)
		<-c.of.slots
	})
	return err
}

// CloseWrite lets the server end an answer without a reset while the client still sends.
func (c *limitedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

type crowdedKey struct{}

// connContext marks the requests of a connection that is one too many.
func connContext(ctx context.Context, c net.Conn) context.Context {
	if limited, ok := c.(*limitedConn); ok && limited.crowded {
		return context.WithValue(ctx, crowdedKey{}, true)
	}
	return ctx
}

// refuseCrowded answers for next on a connection that is one too many, and closes it.
func refuseCrowded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(crowdedKey{}) == nil || r.URL.Path == "/healthz" || r.URL.Path == "/readyz" || r.URL.Path == "/metrics" {
			next.ServeHTTP(w, r)
			return
		}
		api.RefuseConnection(w)
	})
}
