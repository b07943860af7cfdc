package cluster

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/raft"
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
	Voters      []string   `json:"voters,omitempty"`
	ConfigIndex uint64     `json:"config_index,omitempty"`
	Peers       []peerInfo `json:"peers,omitempty"`
	// You is what the answering node knows of the asking one, from before it heard it.
	You *peerInfo `json:"you,omitempty"`
}

// seedsHash tells whether two nodes were given the same seeds; the order does not matter.
func seedsHash(seeds []string) uint64 {
	sorted := slices.Clone(seeds)
	slices.Sort(sorted)
	return xxhash.Sum64String(strings.Join(slices.Compact(sorted), "\n"))
}

func writeHello(w io.Writer, h *hello) error {
	body, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("encode hello: %w", err)
	}
	_, err = w.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

func readHello(r io.Reader) (*hello, error) {
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
	if err := json.Unmarshal(body, h); err != nil {
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
		SeedsHash: seedsHash(c.cfg.Seeds), ConfigIndex: index, Peers: c.book.all(),
	}
	for _, s := range conf.Servers {
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
	asked, err := readHello(conn)
	if err != nil {
		c.logger.Debug("hello not understood", "remote", conn.RemoteAddr().String(), "error", err)
		return
	}
	ours := c.ourHello()
	if known, ok := c.book.get(asked.Self.ID); ok && known.Member {
		ours.You = &known
	}
	if err := writeHello(conn, ours); err != nil {
		return
	}
	if asked.ClusterName == c.cfg.Name && (asked.ClusterID.IsZero() || ours.ClusterID.IsZero() || asked.ClusterID == ours.ClusterID) {
		c.heard(asked)
	}
}

// heard takes what another node said of itself and of others.
func (c *Cluster) heard(h *hello) {
	if err := c.book.learn(h.Self); err != nil {
		c.logger.Warn("a node is not who it says it is", "peer", h.Self.ID, "error", err)
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
	addr string
	*hello
	err error
}

// askAll says hello to every seed and to every node known, at once, and gives the answers in the order of addresses.
func (c *Cluster) askAll(ctx context.Context) []helloAnswer {
	addrs := slices.Clone(c.cfg.Seeds)
	for _, p := range c.book.all() {
		if p.Gossip != "" {
			addrs = append(addrs, p.Gossip)
		}
	}
	slices.Sort(addrs)
	addrs = slices.Compact(addrs)
	answers := make([]helloAnswer, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		wg.Go(func() {
			h, err := c.ask(ctx, addr)
			answers[i] = helloAnswer{addr: addr, hello: h, err: err}
		})
	}
	wg.Wait()
	return answers
}

func (c *Cluster) ask(ctx context.Context, addr string) (*hello, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	conn, err := dial(ctx, addr, connHeader{Kind: kindHello, From: c.cfg.NodeID})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	conn.SetDeadline(time.Now().Add(helloTimeout))
	if err := writeHello(conn, c.ourHello()); err != nil {
		return nil, err
	}
	return readHello(conn)
}
