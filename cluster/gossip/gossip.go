package gossip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// Config is what gossip needs to run. All but Changed are required.
type Config struct {
	Self    Meta
	Label   string // streams and packets under another label are dropped; at most 255 bytes
	Keys    *Keyring
	Packets net.PacketConn // UDP on the gossip port; Close closes it
	Dial    func(ctx context.Context, addr string) (net.Conn, error)
	// Advertise gives the address the others send to.
	Advertise func() (netip.AddrPort, error)
	// Allow refuses what another node says of itself, with the reason.
	Allow func(Meta) error
	// Changed is told that a node came, went or changed. It must not block.
	Changed func()
	Logger  *slog.Logger
}

// State is what gossip thinks of a node.
type State string

// The states of a node. Left: it said goodbye.
const (
	Alive State = "alive"
	Dead  State = "dead"
	Left  State = "left"
)

// Node is one node as gossip sees it.
type Node struct {
	Meta
	Addr  string // host:port of its gossip port
	State State
	Since time.Time // of the state
}

// forgetAfter is how long a node that died or left is shown.
const forgetAfter = 24 * time.Hour

// Gossip is one node's part in it.
type Gossip struct {
	cfg   Config
	trans *transport
	list  *memberlist.Memberlist

	leaving atomic.Bool

	mu     sync.Mutex
	byName map[string]Node
}

// Start joins nobody yet.
func Start(cfg Config) (*Gossip, error) {
	g := &Gossip{cfg: cfg, byName: map[string]Node{}, trans: newTransport(cfg)}
	mc := memberlist.DefaultLANConfig()
	mc.Name, mc.Label, mc.Transport = cfg.Self.name(), cfg.Label, g.trans
	mc.Keyring = cfg.Keys.ring
	mc.Delegate, mc.Events, mc.Alive, mc.Conflict = (*delegate)(g), (*delegate)(g), (*delegate)(g), (*delegate)(g)
	mc.TCPTimeout = 5 * time.Second
	mc.Logger = log.New(logWriter{cfg.Logger}, "", 0)
	var err error
	if g.list, err = memberlist.Create(mc); err != nil {
		g.trans.Shutdown()
		return nil, fmt.Errorf("start gossip: %w", err)
	}
	return g, nil
}

// Serve hands a stream over that came in on the gossip port, and returns when it is done with.
func (g *Gossip) Serve(conn net.Conn) { g.trans.serve(conn) }

// Join exchanges all that is known with the nodes at the addresses (IP:port).
func (g *Gossip) Join(addrs []string) error {
	if len(addrs) == 0 {
		return nil
	}
	_, err := g.list.Join(addrs)
	return err
}

// Nodes gives every node known, this one included, by id: of several appearances the newest.
func (g *Gossip) Nodes() []Node {
	g.mu.Lock()
	defer g.mu.Unlock()
	best := map[string]Node{}
	for name, n := range g.byName {
		if n.State != Alive && time.Since(n.Since) > forgetAfter {
			delete(g.byName, name)
			continue
		}
		if old, ok := best[n.ID]; !ok || newer(n, old) {
			best[n.ID] = n
		}
	}
	out := make([]Node, 0, len(best))
	for _, n := range best {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func newer(a, b Node) bool {
	if a.Incarnation != b.Incarnation {
		return a.Incarnation > b.Incarnation
	}
	return a.Since.After(b.Since)
}

// Node gives one node.
func (g *Gossip) Node(id string) (Node, bool) {
	for _, n := range g.Nodes() {
		if n.ID == id {
			return n, true
		}
	}
	return Node{}, false
}

// goodbye bounds each of the two messages of one.
const goodbye = 500 * time.Millisecond

// Close says goodbye, waiting for at most a second, and stops.
func (g *Gossip) Close() error {
	g.leaving.Store(true)
	if err := errors.Join(g.list.UpdateNode(goodbye), g.list.Leave(goodbye)); err != nil {
		g.cfg.Logger.Debug("gossip: goodbye not sent", "error", err)
	}
	return g.list.Shutdown()
}

func (g *Gossip) set(n *memberlist.Node, state State) {
	m, err := decodeMeta(n.Meta)
	if err != nil {
		return // Allow refused it before
	}
	g.mu.Lock()
	g.byName[n.Name] = Node{Meta: m, Addr: n.Address(), State: state, Since: time.Now()}
	g.mu.Unlock()
	if g.cfg.Changed != nil {
		g.cfg.Changed()
	}
}

// delegate is the Gossip as memberlist calls it, some of it under memberlist's lock: nothing here calls back.
type delegate Gossip

// NodeMeta implements memberlist.Delegate.
func (d *delegate) NodeMeta(int) []byte {
	self := d.cfg.Self
	self.Leaving = d.leaving.Load()
	return self.encode()
}

// NotifyMsg implements memberlist.Delegate; nodes send no messages this way.
func (d *delegate) NotifyMsg([]byte) {}

// GetBroadcasts implements memberlist.Delegate.
func (d *delegate) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (d *delegate) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (d *delegate) MergeRemoteState([]byte, bool) {}

// NotifyAlive implements memberlist.AliveDelegate.
func (d *delegate) NotifyAlive(n *memberlist.Node) error {
	m, err := decodeMeta(n.Meta)
	if err != nil {
		return err
	}
	if n.Name != m.name() {
		return errors.New("name and metadata do not agree")
	}
	if n.Name == d.cfg.Self.name() && m.Directory == d.cfg.Self.Directory {
		return nil
	}
	return d.cfg.Allow(m)
}

// NotifyJoin implements memberlist.EventDelegate.
func (d *delegate) NotifyJoin(n *memberlist.Node) { (*Gossip)(d).set(n, Alive) }

// NotifyUpdate implements memberlist.EventDelegate.
func (d *delegate) NotifyUpdate(n *memberlist.Node) { (*Gossip)(d).set(n, Alive) }

// NotifyLeave implements memberlist.EventDelegate.
func (d *delegate) NotifyLeave(n *memberlist.Node) {
	state := Dead
	if m, err := decodeMeta(n.Meta); err == nil && m.Leaving {
		state = Left
	}
	(*Gossip)(d).set(n, state)
}

// NotifyConflict implements memberlist.ConflictDelegate: the same incarnation at two addresses, which two processes on copies of one
// directory are. Allow counts it.
func (d *delegate) NotifyConflict(existing, other *memberlist.Node) {
	d.cfg.Logger.Error("gossip: one incarnation of a node at two addresses: is its directory a copy?",
		"peer", existing.Name, "address", existing.Address(), "other", other.Address())
}

// logWriter gives memberlist's lines to the log. They are for whoever looks into gossip itself: what a user must know is said elsewhere.
type logWriter struct{ logger *slog.Logger }

// Write implements io.Writer.
func (w logWriter) Write(p []byte) (int, error) {
	w.logger.Debug(strings.TrimSpace(string(p)))
	return len(p), nil
}
