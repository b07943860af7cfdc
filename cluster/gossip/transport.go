package gossip

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const maxPacket = 64 << 10

// transport carries memberlist over the caller's streams and one UDP socket.
type transport struct {
	packets   net.PacketConn
	dial      func(ctx context.Context, addr string) (net.Conn, error)
	advertise func() (netip.AddrPort, error)

	packetCh chan *memberlist.Packet
	streamCh chan net.Conn
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

func newTransport(cfg Config) *transport {
	t := &transport{
		packets: cfg.Packets, dial: cfg.Dial, advertise: cfg.Advertise,
		packetCh: make(chan *memberlist.Packet), streamCh: make(chan net.Conn),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.wg.Go(t.listen)
	return t
}

// listen ends when the socket is closed.
func (t *transport) listen() {
	for {
		buf := make([]byte, maxPacket)
		n, from, err := t.packets.ReadFrom(buf)
		if t.ctx.Err() != nil {
			return
		}
		if err != nil || n == 0 { // an ICMP answer to an earlier packet, as a rule
			continue
		}
		select {
		case t.packetCh <- &memberlist.Packet{Buf: buf[:n:n], From: from, Timestamp: time.Now()}:
		case <-t.ctx.Done():
			return
		}
	}
}

// FinalAdvertiseAddr implements memberlist.Transport. The name is resolved anew each time.
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	a, err := t.advertise()
	if err != nil {
		return nil, 0, err
	}
	return a.Addr().Unmap().AsSlice(), int(a.Port()), nil
}

// WriteTo implements memberlist.Transport.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	a, err := netip.ParseAddrPort(addr) // memberlist speaks of nodes by IP address
	if err != nil {
		return time.Time{}, fmt.Errorf("send a packet: %w", err)
	}
	_, err = t.packets.WriteTo(b, net.UDPAddrFromAddrPort(a))
	return time.Now(), err
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

// PacketCh implements memberlist.Transport.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packetCh }

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streamCh }

// DialTimeout implements memberlist.Transport.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	return t.dial(ctx, addr)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(a.Addr, timeout)
}

// Shutdown implements memberlist.Transport.
func (t *transport) Shutdown() error {
	t.cancel()
	err := t.packets.Close()
	t.wg.Wait()
	return err
}

// heldConn tells when memberlist is done with a stream: its goroutine is the listener's, which closes what it returns from.
type heldConn struct {
	net.Conn
	once sync.Once
	done chan struct{}
}

// Close implements net.Conn.
func (c *heldConn) Close() error {
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}

// serve gives a stream to memberlist and returns when it is done with.
func (t *transport) serve(conn net.Conn) {
	held := &heldConn{Conn: conn, done: make(chan struct{})}
	select {
	case t.streamCh <- held:
	case <-t.ctx.Done():
		return
	}
	select {
	case <-held.done:
	case <-t.ctx.Done():
	}
}
