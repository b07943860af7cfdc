package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"penstock/cluster/gossip"
)

// Cluster is one node's membership. Open starts it, Close ends it; everything between is safe from any goroutine.
type Cluster struct {
	cfg    Config
	logger *slog.Logger
	log    *logStore
	sm     StateMachine

	lock       *DirLock // nil when the caller holds it
	stable     *stableStore
	snaps      *snapshotStore
	floor      *floorKeeper
	book       *book
	metrics    *metrics
	raftLogger *raftLogger

	raftPort, gossipPort *listener
	packets              net.PacketConn // UDP on the gossip port, until gossip takes it
	keys                 *gossip.Keyring
	gossip               atomic.Pointer[gossip.Gossip] // nil until this node has a cluster
	gossipWake           chan struct{}                 // gossip knows something new
	refusals             gossipRefusals
	boot                 ID16 // of this process
	wasRemoved           atomic.Bool
	raftAddr, gossipAddr string // as told to the others
	server               *peerServer
	client               *peerClient

	idMu sync.Mutex // guards id
	id   *identityFile

	repairLog   RepairLog // log, when it can be repaired; else nil
	doubt       *doubt
	mending     mending
	ailing      atomic.Bool // the log is repaired before Raft may start
	ailingSince time.Time   // only touched by Open and the join goroutine

	current   atomic.Pointer[raftInstance]
	rebuilds  chan struct{}
	stale     atomic.Bool // the instance holds a last index that the log does not have; see gate
	unstopped atomic.Bool // an instance did not stop in time: it still uses the stores
	st        struct {
		sync.Mutex
		clusterState
	}
	changing sync.Mutex // one membership change at a time
	snapping sync.Mutex // one local snapshot at a time; Raft would queue a second without a bound
	changed  broadcast  // leadership, members, lease
	applied  broadcast  // the state machine moved
	clock    *stampClock
	clockFar atomic.Bool
	lease    *ownerLease
	table    reportTable
	inFlight admission
	fetches  fetchTable
	draining atomic.Bool
	caughtUp atomic.Bool
	// needsState: there is no state to start Raft from; one is fetched first.
	needsState atomic.Bool
	installs   atomic.Uint64 // snapshots received and installed

	failed struct {
		sync.Mutex
		err error
	}
	blocked atomic.Pointer[func(peer string) bool] // tests cut links here

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// Open checks the data directory, starts to answer peers, and returns; bootstrap, joining and Raft go on in the background. log and sm
// stay the caller's to close, after Close.
func Open(cfg Config, log Log, sm StateMachine) (*Cluster, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("cluster configuration: %w", err)
	}
	cfg = cfg.withDefaults()
	c := &Cluster{
		cfg: cfg, logger: cfg.Logger, log: newLogStore(log), sm: sm,
		rebuilds: make(chan struct{}, 1), gossipWake: make(chan struct{}, 1), boot: newID16(), clock: newStampClock(time.Now), lease: newOwnerLease(time.Now),
		inFlight: admission{limit: cfg.InFlightBytes},
	}
	c.repairLog, _ = log.(RepairLog)
	c.mending.wanted = make(chan uint64, 1)
	c.raftLogger = newRaftLogger(c.logger)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if err := c.open(); err != nil {
		c.Close()
		return nil, fmt.Errorf("open cluster in %s: %w", cfg.DataDir, err)
	}
	return c, nil
}

func (c *Cluster) open() error {
	var err error
	if c.cfg.Lock == nil {
		if c.lock, err = LockDir(c.cfg.DataDir); err != nil {
			return err
		}
	}
	if c.metrics, err = newMetrics(c.cfg.Registerer); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	if c.keys, err = gossip.NewKeyring(c.cfg.GossipKeys); err != nil {
		return fmt.Errorf("gossip keys: %w", err)
	}
	if c.id, err = openIdentity(c.cfg.DataDir, c.cfg.NodeID, c.cfg.Name); err != nil {
		return err
	}
	fresh := c.id.ClusterID.IsZero()
	if c.stable, err = openStable(c.cfg.DataDir, fresh, c.fatal); err != nil {
		return err
	}
	if c.doubt, err = openDoubt(c.cfg.DataDir); err != nil {
		return err
	}
	if c.book, err = openBook(c.cfg.DataDir, c.cfg.NodeID, fresh, c.moved, c.fatal); err != nil {
		return err
	}
	if c.snaps, err = openSnapshotStore(c.cfg.DataDir, c.log, c.logger, func() {
		c.metrics.damagedSnapshots.Inc()
		c.log.grown.Store(muchGrown) // a new one is due
	}); err != nil {
		return err
	}
	c.floor = newFloorKeeper(c.log, c.sm, c.snaps, c.logger)
	c.snaps.floor = c.floor
	if err := c.checkFresh(fresh); err != nil {
		return err
	}
	if err := c.openCheck(); err != nil {
		return err
	}
	if err := c.writeBootstrap(); err != nil {
		return err
	}
	if err := c.listen(); err != nil {
		return err
	}
	if c.repairLog != nil {
		c.log.heal = c.heal
		c.wg.Go(func() { c.mends(c.ctx) })
		if c.cfg.ScrubEvery > 0 {
			c.wg.Go(func() { c.scrubs(c.ctx) })
		}
	}
	c.wg.Go(func() { c.join(c.ctx) })
	c.wg.Go(func() { c.reports(c.ctx) })
	c.wg.Go(func() { c.renewals(c.ctx) })
	c.wg.Go(func() { c.upkeep(c.ctx) })
	c.wg.Go(func() { c.catchUp(c.ctx) })
	c.wg.Go(func() { c.settleDoubt(c.ctx) })
	return nil
}

// checkFresh refuses a directory that has a log or a state but no cluster: the identity was replaced under them.
func (c *Cluster) checkFresh(fresh bool) error {
	last, err := c.log.LastIndex()
	if err != nil {
		return fmt.Errorf("read the end of the log: %w", err)
	}
	applied, _ := c.sm.Applied()
	if fresh && (last > 0 || applied > 0 || c.snaps.newest() != nil) {
		return damaged("a log that ends at %d and a state at %d, but no cluster they belong to", last, applied)
	}
	return nil
}

func (c *Cluster) listen() error {
	c.server = newPeerServer(c.ctx, c.cfg.NodeID, c.cfg.Admit)
	c.server.handle(methodPropose, laneBulk, c.servePropose)
	c.server.handle(methodReadIndex, laneControl, c.serveReadIndex)
	c.server.handle(methodReport, laneControl, c.serveReport)
	c.server.handle(methodLease, laneControl, c.serveLease)
	c.server.handle(methodWall, laneControl, c.serveWall)
	c.server.handle(methodMember, laneControl, c.serveMember)
	c.server.handle(methodSnapOpen, laneBulk, c.serveSnapOpen)
	c.server.handle(methodSnapRead, laneBulk, c.serveSnapRead)
	c.server.handle(methodLogState, laneControl, c.serveLogState)
	c.server.handle(methodLogRead, laneBulk, c.serveLogRead)
	c.client = newPeerClient(c.dialPeer)
	var err error
	if c.raftPort, err = listen(c.cfg.RaftAddr, c.logger, c.acceptPeer); err != nil {
		return err
	}
	if c.raftAddr, err = c.advertised("raft", c.cfg.RaftAdvertise, c.raftPort); err != nil {
		return err
	}
	c.raftPort.handle(kindPeer, c.server.serve)
	c.raftPort.handle(kindRaft, func(conn net.Conn, h connHeader) {
		if in := c.instance(); in != nil {
			in.stream.serve(conn, h)
		}
	})
	if c.cfg.GossipAddr == "" {
		return nil
	}
	if err := c.listenGossip(); err != nil {
		return err
	}
	if c.gossipAddr, err = c.advertised("gossip", c.cfg.GossipAdvertise, c.gossipPort); err != nil {
		return err
	}
	c.gossipPort.handle(kindHello, c.answerHello)
	c.gossipPort.handle(kindGossip, c.serveGossip)
	return nil
}

// advertised is what the others are told to dial: what is configured, with the listener's port for port 0, or what is listened on.
func (c *Cluster) advertised(what, configured string, l *listener) (string, error) {
	bound := l.ln.Addr().(*net.TCPAddr)
	if configured == "" {
		configured = bound.String()
	}
	host, port, err := net.SplitHostPort(configured)
	if err != nil {
		return "", fmt.Errorf("advertised %s address: %w", what, err)
	}
	if ip := net.ParseIP(host); !c.cfg.Single && (host == "" || ip != nil && ip.IsUnspecified()) {
		return "", fmt.Errorf("advertised %s address %s: nobody can dial it; name the address the other nodes see", what, configured)
	}
	if port == "0" {
		port = strconv.Itoa(bound.Port)
	}
	return net.JoinHostPort(host, port), nil
}

// acceptPeer refuses connections of other clusters, for other nodes, and from no node.
func (c *Cluster) acceptPeer(h connHeader) error {
	id := c.clusterID()
	switch {
	case ID16(id).IsZero():
		return errors.New("this node has no cluster yet")
	case h.Cluster != ID16(id):
		return fmt.Errorf("cluster %s", h.Cluster)
	case h.To != c.cfg.NodeID:
		return fmt.Errorf("meant for node %q", h.To)
	case checkNodeID(h.From) != nil:
		return fmt.Errorf("from %q", h.From)
	}
	return c.linkUp(h.From)
}

func (c *Cluster) linkUp(peer string) error {
	if blocked := c.blocked.Load(); blocked != nil && (*blocked)(peer) {
		return errors.New("link cut")
	}
	return nil
}

func (c *Cluster) dialPeer(ctx context.Context, node string) (net.Conn, error) {
	return c.dialNode(ctx, node, kindPeer)
}

func (c *Cluster) dialRaft(ctx context.Context, node string) (net.Conn, error) {
	return c.dialNode(ctx, node, kindRaft)
}

func (c *Cluster) dialNode(ctx context.Context, node string, kind connKind) (net.Conn, error) {
	addr := c.raftAddr
	if node != c.cfg.NodeID {
		p, ok := c.book.get(node)
		if !ok || p.Raft == "" {
			return nil, fmt.Errorf("dial node %s: its address is not known", node)
		}
		addr = p.Raft
	}
	if err := c.linkUp(node); err != nil {
		return nil, err
	}
	conn, err := dial(ctx, addr, connHeader{Kind: kind, Cluster: c.clusterID(), From: c.cfg.NodeID, To: node})
	if err != nil {
		return nil, fmt.Errorf("dial node %s: %w", node, err)
	}
	return conn, nil
}

// moved closes connections to a node that has a new address.
func (c *Cluster) moved(id string) {
	if c.client != nil {
		c.client.drop(id)
	}
	if in := c.instance(); in != nil {
		in.stream.drop(id)
	}
}

// upkeep takes snapshots when they are due and replaces the Raft instance when an installation asks for it.
func (c *Cluster) upkeep(ctx context.Context) {
	tick := time.NewTicker(snapshotLook)
	defer tick.Stop()
	var failed atomic.Int64 // when the last snapshot did, unix seconds
	var rest quietLog
	for {
		select {
		case <-c.rebuilds:
			c.rebuild(ctx)
		case <-tick.C:
			if grown, due := c.log.grown.Load(), c.snapshotDue(); grown < due && !rest.due(grown, due) || time.Now().Unix()-failed.Load() < snapshotRetry || !c.snapping.TryLock() {
				continue
			}
			c.wg.Go(func() { // beside the loop: a large state takes its time, and a rebuild must not wait for it
				defer c.snapping.Unlock()
				if err := c.takeSnapshot(); err != nil && ctx.Err() == nil {
					failed.Store(time.Now().Unix())
					c.logger.Warn("snapshot", "error", err)
				}
			})
		case <-ctx.Done():
			return
		}
	}
}

const (
	snapshotLook    = 250 * time.Millisecond
	snapshotTimeout = 10 * time.Minute
	muchGrown       = 1 << 60 // bytes: a snapshot is due, whatever the interval
	snapshotRetry   = 30      // seconds after one that failed
)

// TakeSnapshot takes a snapshot of this node's state now. Nothing new since the last one is no error.
func (c *Cluster) TakeSnapshot() error {
	c.snapping.Lock()
	defer c.snapping.Unlock()
	return c.takeSnapshot()
}

func (c *Cluster) takeSnapshot() error {
	in := c.instance()
	if in == nil {
		return fmt.Errorf("take snapshot: %w", ErrNoLeader)
	}
	ctx, cancel := context.WithTimeout(c.ctx, snapshotTimeout)
	defer cancel()
	grown := c.log.grown.Load()
	err := await(ctx, in.raft.Snapshot())
	if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("take snapshot: %w", err)
	}
	c.log.grown.Add(-grown)
	c.floor.advance()
	return nil
}

// catchUp finds out when this node has applied all that was committed when it started.
func (c *Cluster) catchUp(ctx context.Context) {
	for ctx.Err() == nil {
		if _, err := c.ReadIndex(ctx); err == nil {
			c.caughtUp.Store(true)
			c.changed.fire()
			return
		}
	}
}

// Call sends a request to another node, or to this one, and returns its answer. An error is a *CallError.
func (c *Cluster) Call(ctx context.Context, nodeID, method string, body []byte) ([]byte, error) {
	if nodeID != c.cfg.NodeID {
		return c.client.call(ctx, laneBulk, nodeID, method, body)
	}
	m, ok := c.server.method(method)
	if !ok {
		return nil, &CallError{Node: nodeID, Method: method, Err: errNoMethod}
	}
	if err := c.admit(ctx); err != nil {
		return nil, &CallError{Node: nodeID, Method: method, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, defaultCallTimeout(ctx))
	defer cancel()
	b, err := m.fn(ctx, nodeID, body)
	if err != nil {
		return nil, &CallError{Node: nodeID, Method: method, Started: true, Remote: true, Err: err}
	}
	return b, nil
}

// Handle serves the requests of other nodes for one method. Names that begin with "cluster." are this package's.
func (c *Cluster) Handle(method string, fn func(ctx context.Context, from string, body []byte) ([]byte, error)) {
	c.server.handle(method, laneBulk, fn)
}

// fatal ends the process. If it does not, as in tests, this node does nothing more.
func (c *Cluster) fatal(code int, err error) {
	c.failed.Lock()
	first := c.failed.err == nil
	if first {
		c.failed.err = &ExitError{Code: code, Err: err}
	}
	c.failed.Unlock()
	if !first {
		return
	}
	c.logger.Error("this node cannot go on", "exit_code", code, "error", err)
	c.cfg.Fatal(code, err)
}

func (c *Cluster) failure() error {
	c.failed.Lock()
	defer c.failed.Unlock()
	return c.failed.err
}
