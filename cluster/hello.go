package cluster

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/raft"

	"penstock/cluster/gossip"
)

const (
	helloTimeout = 2 * time.Second
	maxHello     = 1 << 20
)

// hello is what two nodes tell each other on the gossip port, the same in both directions: a length (u32, little-endian), then JSON.
type hello struct {
	Self        peerInfo `json:"self"`
	ClusterName string   `json:"cluster_name"`
	ClusterID   ID16     `json:"cluster_id"`
	HasState    bool     `json:"has_state"`
	SeedsHash   uint64   `json:"seeds_hash"`
	// Voters are those of the newest configuration the node holds, as of ConfigIndex.
	Voters      []string `json:"voters,omitempty"`
	ConfigIndex uint64   `json:"config_index,omitempty"`
	// Members are all of that configuration, with or without a vote.
	Members []string   `json:"members,omitempty"`
	Peers   []peerInfo `json:"peers,omitempty"`
	// You is what the answering node knows of the asking one, from before it heard it.
	You *peerInfo `json:"you,omitempty"`
	// Boot is of the process: whoever answers with another one under our id is somebody else.
	Boot ID16 `json:"boot"`
	// Supersedes are the clusters that were recovered as this one.
	Supersedes []ID16 `json:"supersedes,omitempty"`
	// Refused is all that a node answers, unsealed, whose keys do not open what it was asked.
	Refused string `json:"refused,omitempty"`
}

// helloBound is authenticated with a sealed hello, so that nothing else of the port can be passed off as one.
var helloBound = []byte("penstock hello")

// seedsHash tells whether two nodes were given the same seeds; the order does not matter.
func seedsHash(seeds []string) uint64 {
	sorted := slices.Clone(seeds)
	slices.Sort(sorted)
	return xxhash.Sum64String(strings.Join(slices.Compact(sorted), "\n"))
}

func writeHello(w io.Writer, h *hello, keys *gossip.Keyring) error {
	body, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("encode hello: %w", err)
	}
	if h.Refused == "" {
		if body, err = keys.Seal(body, helloBound); err != nil {
			return fmt.Errorf("seal hello: %w", err)
		}
	}
	_, err = w.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

func readHello(r io.Reader, keys *gossip.Keyring) (*hello, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, fmt.Errorf("read hello: %w", err)
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxHello {
		return nil, fmt.Errorf("read hello: %d bytes", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, fmt.Errorf("read hello: %w", err)
	}
	h := &hello{}
	if json.Unmarshal(body, h) == nil && h.Refused != "" {
		return nil, fmt.Errorf("refused: %.200q", h.Refused)
	}
	opened, err := keys.Open(body, helloBound)
	if err != nil {
		return nil, fmt.Errorf("hello: %w", err)
	}
	h = &hello{}
	if err := json.Unmarshal(opened, h); err != nil {
		return nil, fmt.Errorf("decode hello: %w", err)
	}
	return h, checkNodeID(h.Self.ID)
}

// ourHello describes this node as of now.
func (c *Cluster) ourHello() *hello {
	c.idMu.Lock()
	defer c.idMu.Unlock()
	conf, index := c.book.configuration()
	h := &hello{
		Self:        c.selfLocked(),
		ClusterName: c.cfg.Name, ClusterID: c.id.ClusterID, HasState: !c.id.ClusterID.IsZero(),
		SeedsHash: seedsHash(c.cfg.Seeds), ConfigIndex: index, Peers: c.book.all(), Boot: c.boot, Supersedes: c.id.Supersedes,
	}
	for _, s := range conf.Servers {
		h.Members = append(h.Members, string(s.ID))
		if s.Suffrage == raft.Voter {
			h.Voters = append(h.Voters, string(s.ID))
		}
	}
	return h
}

func (c *Cluster) selfLocked() peerInfo {
	return peerInfo{
		ID: c.cfg.NodeID, Directory: c.id.Directory, Incarnation: c.id.Incarnation,
		Raft: c.raftAddr, Gossip: c.gossipAddr, HTTP: c.cfg.HTTPAdvertise,
	}
}

// answerHello serves one hello. A node that is not who it says is told so, and not remembered.
func (c *Cluster) answerHello(conn net.Conn, _ connHeader) {
	conn.SetDeadline(time.Now().Add(helloTimeout))
	asked, err := readHello(conn, c.keys)
	if errors.Is(err, gossip.ErrKey) {
		c.refuse("key", conn.RemoteAddr().String(), "a hello from "+conn.RemoteAddr().String()+" is not sealed with a key of cluster.gossip_keys")
		writeHello(conn, &hello{Refused: "hello " + err.Error()}, c.keys)
		return
	}
	if err != nil {
		c.logger.Debug("hello not understood", "remote", conn.RemoteAddr().String(), "error", err)
		return
	}
	ours := c.ourHello()
	if known, ok := c.book.get(asked.Self.ID); ok && known.Member {
		ours.You = &known
	}
	if err := writeHello(conn, ours, c.keys); err != nil {
		return
	}
	if asked.Self.ID == c.cfg.NodeID && asked.Boot != c.boot {
		c.refuse("conflict", asked.Self.ID, "another process goes by the id of this node: hello from "+conn.RemoteAddr().String())
		return
	}
	if asked.ClusterName == c.cfg.Name && (asked.ClusterID.IsZero() || ours.ClusterID.IsZero() || asked.ClusterID == ours.ClusterID) {
		c.heard(asked)
	}
}

// heard takes what another node said of itself and of others.
func (c *Cluster) heard(h *hello) {
	if err := c.book.learn(h.Self); err != nil {
		c.refuse("conflict", h.Self.ID, "a node is not who it says it is: "+err.Error())
		return
	}
	for _, p := range h.Peers {
		if err := c.book.hear(p); err != nil {
			c.logger.Debug("hearsay not taken", "peer", p.ID, "from", h.Self.ID, "error", err)
		}
	}
}

// helloAnswer is what one address answered.
type helloAnswer struct {
	addr   string
	remote string // the IP address and port behind it
	*hello
	err error
}

// askAll says hello to every seed, to every node known and to those that gossip shows, at once, and gives the answers in the order of
// addresses. Names are resolved at each dial.
func (c *Cluster) askAll(ctx context.Context) []helloAnswer {
	addrs := slices.Clone(c.cfg.Seeds)
	for _, p := range c.book.all() {
		if p.Gossip != "" {
			addrs = append(addrs, p.Gossip)
		}
	}
	addrs = append(addrs, c.gossipHints()...)
	slices.Sort(addrs)
	addrs = slices.Compact(addrs)
	answers := make([]helloAnswer, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		wg.Go(func() {
			answers[i] = c.ask(ctx, addr)
		})
	}
	wg.Wait()
	return answers
}

func (c *Cluster) ask(ctx context.Context, addr string) (a helloAnswer) {
	a.addr = addr
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	var conn net.Conn
	if conn, a.err = dial(ctx, addr, connHeader{Kind: kindHello, From: c.cfg.NodeID}); a.err != nil {
		return a
	}
	defer conn.Close()
	a.remote = conn.RemoteAddr().String()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	conn.SetDeadline(time.Now().Add(helloTimeout))
	if a.err = writeHello(conn, c.ourHello(), c.keys); a.err != nil {
		return a
	}
	a.hello, a.err = readHello(conn, c.keys)
	return a
}
