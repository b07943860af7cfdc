package node

import (
	"context"
	"net"
	"net/http"
	"sync"

	"penstock/node/api"
	"penstock/node/config"
)

// crowdedConnections are accepted past the limit. Each request on them but those for health and metrics is refused, in so many words;
// past that none is accepted and they wait in the system's queue.
const crowdedConnections = 256

// connLimits is how many connections are open at once: served, told that they are too many, and of one address.
type connLimits struct{ most, extra, each int }

func connectionLimits(l config.Limits) connLimits {
	return connLimits{l.Connections, crowdedConnections, l.ConnectionsPerAddress}
}

// connLimit bounds the connections of a listener. One that comes from an address with its share is closed at once, so that nobody
// alone keeps the others out, whoever it is: it is not known yet.
type connLimit struct {
	net.Listener

	mu struct {
		sync.Mutex
		limits connLimits
		open   int
		from   map[string]int
		closed bool
		freed  *sync.Cond
	}
}

func limitConnections(l net.Listener, limits connLimits) *connLimit {
	c := &connLimit{Listener: l}
	c.mu.limits, c.mu.from = limits, map[string]int{}
	c.mu.freed = sync.NewCond(&c.mu)
	return c
}

// resize changes the limits for connections that come; those that are open stay.
func (l *connLimit) resize(limits connLimits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.limits = limits
	l.mu.freed.Broadcast()
}

// Accept implements net.Listener. It waits while there are too many.
func (l *connLimit) Accept() (net.Conn, error) {
	for {
		if !l.room() {
			return nil, net.ErrClosed
		}
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if limited := l.admit(c); limited != nil {
			return limited, nil
		}
		_ = c.Close() // its address has its share
	}
}

// room waits until one more may be open; false when the listener was closed. Only Accept makes more, so the room stays.
func (l *connLimit) room() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.mu.closed && l.mu.open >= l.mu.limits.most+l.mu.limits.extra {
		l.mu.freed.Wait()
	}
	return !l.mu.closed
}

func (l *connLimit) admit(c net.Conn) *limitedConn {
	host, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		host = c.RemoteAddr().String()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.from[host] >= l.mu.limits.each {
		return nil
	}
	l.mu.from[host]++
	l.mu.open++
	return &limitedConn{Conn: c, of: l, host: host, crowded: l.mu.open > l.mu.limits.most}
}

func (l *connLimit) leave(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.open--
	if l.mu.from[host]--; l.mu.from[host] == 0 {
		delete(l.mu.from, host)
	}
	l.mu.freed.Broadcast()
}

// Close implements net.Listener.
func (l *connLimit) Close() error {
	l.mu.Lock()
	l.mu.closed = true
	l.mu.freed.Broadcast()
	l.mu.Unlock()
	return l.Listener.Close()
}

// limitedConn gives its place back when it is closed.
type limitedConn struct {
	net.Conn
	of      *connLimit
	host    string
	crowded bool
	once    sync.Once
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { c.of.leave(c.host) })
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
