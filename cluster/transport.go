package cluster

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// errSilent is what Raft gets for an RPC that a silent leader does not send.
var errSilent = errors.New("not sent: a write to the local log has been outstanding for too long")

// rpcTimeout bounds one RPC; an InstallSnapshot, which includes the follower's restore, gets it at least.
const rpcTimeout = 10 * time.Second

// transport is Raft's network transport with the corrections of DESIGN 4.3:
//
//   - Heartbeats go through Consumer like everything else. The fast path of the stock transport runs them on the connection's goroutine,
//     where they change the term under the leader's feet: it then stamps its next entry with a term it never won (hashicorp/raft#695).
//   - A server's address is its node id; only the dialler resolves it. Votes are stored by address.
//   - AppendEntries is bounded in bytes, by cutting its tail: Raft goes on from the entries left in the request.
//   - While a write to the local log is outstanding for over silentAfter nothing is sent, heartbeats included, so that the others elect.
//   - gate may answer an RPC for this node (gate.go), and mayStand forbid to ask for votes (doubt.go).
//   - Entries for a node that does not answer wait until it answers heartbeats again (await).
type transport struct {
	*raft.NetworkTransport
	stream    *streamLayer
	maxBytes  int
	silent    func() bool
	mayStand  func() bool
	leads     func(peer string, term uint64) bool
	gate      func(rpc raft.RPC) (answered bool)
	contacts  contacts
	onInstall func(peer string)
	consumer  chan raft.RPC
	done      chan struct{}
	close     sync.Once
	wg        sync.WaitGroup
}

type transportConfig struct {
	stream    *streamLayer
	maxBytes  int
	silent    func() bool
	mayStand  func() bool                         // nil: always
	leads     func(peer string, term uint64) bool // nil: nothing is waited for
	gate      func(raft.RPC) bool
	onInstall func(peer string)
	logger    *raftLogger
}

func newTransport(cfg transportConfig) *transport {
	t := &transport{
		stream: cfg.stream, maxBytes: cfg.maxBytes, silent: cfg.silent, gate: cfg.gate, onInstall: cfg.onInstall,
		mayStand: cfg.mayStand, leads: cfg.leads,
		consumer: make(chan raft.RPC), done: make(chan struct{}),
	}
	t.NetworkTransport = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Logger: cfg.logger.Named("net"), Stream: cfg.stream, MaxPool: 3, MaxRPCsInFlight: 2, Timeout: rpcTimeout,
	})
	t.wg.Go(t.forward)
	return t
}

// forward takes each incoming RPC past the gate.
func (t *transport) forward() {
	in := t.NetworkTransport.Consumer()
	for {
		select {
		case rpc := <-in:
			if t.gate != nil && t.gate(rpc) {
				continue
			}
			select {
			case t.consumer <- rpc:
			case <-t.done:
				return
			}
		case <-t.done:
			return
		}
	}
}

// Consumer implements raft.Transport.
func (t *transport) Consumer() <-chan raft.RPC { return t.consumer }

// SetHeartbeatHandler implements raft.Transport by doing nothing, which its contract allows.
func (t *transport) SetHeartbeatHandler(func(raft.RPC)) {}

// LocalAddr implements raft.Transport.
func (t *transport) LocalAddr() raft.ServerAddress { return raft.ServerAddress(t.stream.id) }

// EncodePeer implements raft.Transport.
func (t *transport) EncodePeer(_ raft.ServerID, addr raft.ServerAddress) []byte { return []byte(addr) }

// AppendEntries implements raft.Transport.
func (t *transport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	t.cut(args)
	for !t.silent() {
		start := time.Now()
		err := t.NetworkTransport.AppendEntries(id, target, args, resp)
		if err == nil {
			t.heard(string(id), start, args, resp)
			return nil
		}
		if isHeartbeat(args) || !t.await(string(id), args.Term, start) {
			return err
		}
	}
	return errSilent
}

// isHeartbeat tells a heartbeat from a request with entries, or for some: it names no entry before it.
func isHeartbeat(args *raft.AppendEntriesRequest) bool {
	return len(args.Entries) == 0 && args.PrevLogEntry == 0 && args.LeaderCommitIndex == 0
}

const awaitPause = 20 * time.Millisecond

// await waits, for entries that could not be sent, until the peer has answered a heartbeat that was sent after the attempt; false when this
// node leads no more, or the peer is none. Raft itself would try again and again with pauses that grow to 10 s, and sit in one of them when the peer is back:
// heartbeats, whose pauses are short, are the better sign.
func (t *transport) await(peer string, term uint64, since time.Time) bool {
	if t.leads == nil {
		return false
	}
	tick := time.NewTicker(awaitPause)
	defer tick.Stop()
	for t.leads(peer, term) {
		if t.contacts.at(peer, term).After(since) {
			return true
		}
		select {
		case <-tick.C:
		case <-t.done:
			return false
		}
	}
	return false
}

func (t *transport) heard(peer string, sent time.Time, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) {
	if !resp.Success || resp.Term != args.Term {
		return
	}
	t.contacts.note(peer, args.Term, sent)
}

// cut drops entries from the tail until the request is within the bound; one entry always stays.
func (t *transport) cut(args *raft.AppendEntriesRequest) {
	total := 0
	for i, e := range args.Entries {
		total += len(e.Data) + 64
		if total > t.maxBytes && i > 0 {
			args.Entries = args.Entries[:i]
			return
		}
	}
}

// AppendEntriesPipeline implements raft.Transport.
func (t *transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	if t.silent() {
		return nil, errSilent
	}
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return &pipeline{AppendPipeline: p, t: t}, nil
}

type pipeline struct {
	raft.AppendPipeline
	t *transport
}

// AppendEntries implements raft.AppendPipeline.
func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if p.t.silent() {
		return nil, errSilent
	}
	p.t.cut(args)
	return p.AppendPipeline.AppendEntries(args, resp)
}

// InstallSnapshot implements raft.Transport. data is what our SnapshotStore.Open returned: its pin learns here whom it is for.
func (t *transport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	if t.silent() {
		return errSilent
	}
	if r, ok := data.(*snapshotReader); ok {
		r.assign(string(id))
	}
	t.onInstall(string(id))
	return t.NetworkTransport.InstallSnapshot(id, target, args, resp, data)
}

// RequestVote implements raft.Transport.
func (t *transport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if err := t.mayAsk(); err != nil {
		return err
	}
	return t.NetworkTransport.RequestVote(id, target, args, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (t *transport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if err := t.mayAsk(); err != nil {
		return err
	}
	return t.NetworkTransport.RequestPreVote(id, target, args, resp)
}

// mayAsk tells whether this node may ask for a vote.
func (t *transport) mayAsk() error {
	if t.silent() {
		return errSilent
	}
	if t.mayStand != nil && !t.mayStand() {
		return errMuzzled
	}
	return nil
}

// Close ends the transport with all its connections. It may be called twice; Raft calls it too.
func (t *transport) Close() error {
	t.close.Do(func() {
		close(t.done)
		t.NetworkTransport.Close()
		t.NetworkTransport.CloseStreams()
		t.stream.Close()
		t.wg.Wait()
	})
	return nil
}

// contacts remembers, per peer, when the newest request that the peer accepted in a term was *sent*. It is what makes a lease safe: an
// answer to an old request says nothing about now.
type contacts struct {
	mu   sync.Mutex
	term uint64
	sent map[string]time.Time
}

func (c *contacts) note(peer string, term uint64, sent time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if term < c.term {
		return
	}
	if term > c.term || c.sent == nil {
		c.term, c.sent = term, map[string]time.Time{}
	}
	if sent.After(c.sent[peer]) {
		c.sent[peer] = sent
	}
}

// at gives when peer was last heard in term; zero for never.
func (c *contacts) at(peer string, term uint64) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if term != c.term {
		return time.Time{}
	}
	return c.sent[peer]
}
