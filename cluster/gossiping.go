package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"penstock/cluster/gossip"
)

// listenGossip opens the gossip port: TCP for hellos and the streams of gossip, told apart by their header, and UDP under the same
// number for its packets.
func (c *Cluster) listenGossip() error {
	for try := 0; ; try++ {
		l, err := listen(c.cfg.GossipAddr, c.logger, c.acceptGossip)
		if err != nil {
			return err
		}
		lc := net.ListenConfig{}
		packets, err := lc.ListenPacket(c.ctx, "udp", l.ln.Addr().String())
		if err == nil {
			c.gossipPort, c.packets = l, packets
			return nil
		}
		l.Close()
		if _, port, _ := net.SplitHostPort(c.cfg.GossipAddr); port != "0" || try == 10 { // port 0 picks one that is free for TCP only
			return fmt.Errorf("listen on %s/udp: %w", c.cfg.GossipAddr, err)
		}
	}
}

func (c *Cluster) acceptGossip(h connHeader) error {
	switch {
	case h.Kind == kindGossip && h.Cluster != ID16(c.clusterID()):
		return fmt.Errorf("gossip of cluster %s", h.Cluster)
	case h.Kind != kindHello && h.Kind != kindGossip:
		return fmt.Errorf("connection kind %d on the gossip port", h.Kind)
	}
	return c.linkUp(h.From)
}

func (c *Cluster) serveGossip(conn net.Conn, _ connHeader) {
	if g := c.gossip.Load(); g != nil {
		g.Serve(conn)
	}
}

// gossipRound starts gossip once this node has a cluster, and joins it with who answered a hello and does not appear in it.
func (c *Cluster) gossipRound(answers []helloAnswer) {
	if c.gossipPort == nil || ID16(c.clusterID()).IsZero() {
		return
	}
	g := c.gossip.Load()
	if g == nil {
		var err error
		if g, err = c.startGossip(); err != nil {
			c.logger.Warn("gossip does not run; health and discovery go by hellos and reports alone", "error", err)
			return
		}
	}
	var addrs []string
	for _, a := range answers {
		if a.err != nil || a.Self.ID == c.cfg.NodeID || a.ClusterID.IsZero() {
			continue
		}
		if n, ok := g.Node(a.Self.ID); !ok || n.State != gossip.Alive || n.Incarnation < a.Self.Incarnation {
			addrs = append(addrs, a.remote)
		}
	}
	if err := g.Join(addrs); err != nil {
		c.logger.Debug("join gossip", "addresses", addrs, "error", err)
	}
}

func (c *Cluster) startGossip() (*gossip.Gossip, error) {
	if c.packets == nil { // an attempt that failed closed it
		lc := net.ListenConfig{}
		packets, err := lc.ListenPacket(c.ctx, "udp", c.gossipPort.ln.Addr().String())
		if err != nil {
			return nil, err
		}
		c.packets = packets
	}
	c.idMu.Lock()
	self := c.selfLocked()
	cluster := c.id.ClusterID
	c.idMu.Unlock()
	packets := c.packets
	c.packets = nil
	g, err := gossip.Start(gossip.Config{
		Self: gossip.Meta{
			ID: self.ID, Directory: self.Directory, Incarnation: self.Incarnation, Cluster: cluster, Raft: self.Raft, HTTP: self.HTTP,
			Version: c.cfg.Version, Zone: c.cfg.Zone, FeatureMin: c.cfg.FeatureMin, FeatureMax: c.cfg.FeatureMax,
		},
		Label: c.cfg.Name + "/" + cluster.String(), Keys: c.keys, Packets: packets,
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return dial(ctx, addr, connHeader{Kind: kindGossip, Cluster: cluster, From: c.cfg.NodeID})
		},
		Advertise: c.gossipAdvertise, Allow: c.allowGossip, Logger: c.logger,
		Changed: func() {
			select {
			case c.gossipWake <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		return nil, err
	}
	c.gossip.Store(g)
	return g, nil
}

// stopGossip is called once nothing starts it any more.
func (c *Cluster) stopGossip() {
	if g := c.gossip.Swap(nil); g != nil {
		if err := g.Close(); err != nil {
			c.logger.Debug("stop gossip", "error", err)
		}
	}
	if c.packets != nil {
		c.packets.Close()
	}
}

// gossipAdvertise resolves the address that the others are told. Of several, one of the family that is listened on.
func (c *Cluster) gossipAdvertise() (netip.AddrPort, error) {
	host, text, err := net.SplitHostPort(c.gossipAddr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("port of %s: %w", c.gossipAddr, err)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return netip.AddrPortFrom(ip, uint16(port)), nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, helloTimeout)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("resolve the advertised gossip address: %w", err)
	}
	bound := c.gossipPort.ln.Addr().(*net.TCPAddr).AddrPort().Addr()
	for _, ip := range found {
		if bound.Is4() == ip.Unmap().Is4() {
			return netip.AddrPortFrom(ip.Unmap(), uint16(port)), nil
		}
	}
	return netip.AddrPortFrom(found[0].Unmap(), uint16(port)), nil
}

// gossipHints are the gossip addresses of nodes that the book does not know, or knows from an earlier start: a hello there tells who it is.
func (c *Cluster) gossipHints() []string {
	g := c.gossip.Load()
	if g == nil {
		return nil
	}
	var addrs []string
	for _, n := range g.Nodes() {
		if n.ID == c.cfg.NodeID || n.State != gossip.Alive {
			continue
		}
		if p, ok := c.book.get(n.ID); !ok || p.Incarnation < n.Incarnation {
			addrs = append(addrs, n.Addr)
		}
	}
	return addrs
}

var errPast = errors.New("an earlier start of a node")

// allowGossip refuses what contradicts what is known first hand. memberlist calls it under its lock.
func (c *Cluster) allowGossip(m gossip.Meta) error {
	known, ok := c.book.get(m.ID)
	switch {
	case m.Cluster != c.clusterID():
		return c.refuse("foreign", m.ID, fmt.Sprintf("node %s gossips for cluster %s", m.ID, ID16(m.Cluster)))
	case m.ID == c.cfg.NodeID && m.Directory != c.directory():
		return c.refuse("conflict", m.ID, "another node gossips under the id of this one, from another directory; its Raft address is "+m.Raft)
	case m.ID == c.cfg.NodeID:
		return errPast
	case ok && known.Member && !known.Directory.IsZero() && known.Directory != m.Directory:
		return c.refuse("conflict", m.ID, fmt.Sprintf("a node gossips under the id %s from another directory than is known; its Raft address is %s", m.ID, m.Raft))
	case ok && known.Directory == m.Directory && known.Incarnation > m.Incarnation:
		return errPast
	}
	return nil
}

func (c *Cluster) directory() [16]byte {
	c.idMu.Lock()
	defer c.idMu.Unlock()
	return c.id.Directory
}

func (c *Cluster) gossiped(id string) (gossip.Node, bool) {
	g := c.gossip.Load()
	if g == nil {
		return gossip.Node{}, false
	}
	return g.Node(id)
}

func (c *Cluster) countGossip() {
	counts := map[gossip.State]int{gossip.Alive: 0, gossip.Dead: 0, gossip.Left: 0}
	if g := c.gossip.Load(); g != nil {
		for _, n := range g.Nodes() {
			counts[n.State]++
		}
	}
	for s, n := range counts {
		c.metrics.gossipNodes.WithLabelValues(string(s)).Set(float64(n))
	}
}

// SetGossipKeys replaces the keys of the gossip port while the node runs: first the new key is added on every node behind the old one,
// then put first on every node, then the old one is taken away.
func (c *Cluster) SetGossipKeys(keys [][]byte) error { return c.keys.Set(keys) }

// gossipRefusals remembers what was said to the log, so that it is said once a while.
type gossipRefusals struct {
	mu   sync.Mutex
	last map[string]time.Time
}

const (
	refusalPause   = time.Minute
	maxRefusalSeen = 256
)

func (r *gossipRefusals) first(key string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.last[key]; ok && now.Sub(last) < refusalPause {
		return false
	}
	if r.last == nil || len(r.last) >= maxRefusalSeen {
		r.last = map[string]time.Time{}
	}
	r.last[key] = now
	return true
}

// refuse counts something that another node said of itself and that is not taken, and logs it unless it did a moment ago.
func (c *Cluster) refuse(reason, peer, why string) error {
	c.metrics.refused.WithLabelValues(reason).Inc()
	if c.refusals.first(reason+" "+peer, time.Now()) {
		c.logger.Error("a node is refused", "reason", reason, "peer", peer, "why", why)
	}
	return errors.New(why)
}
