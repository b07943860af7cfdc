package cluster

import (
	"encoding/json"
	"time"

	"github.com/hashicorp/raft"

	"penstock/cluster/gossip"
)

const reachableAfter = 2 * time.Second

// Member is one node of Raft's newest configuration as this node knows it.
type Member struct {
	ID              string
	Suffrage        string // voter or nonvoter
	RaftAddr        string
	GossipAddr      string
	HTTPAddr        string
	Leader          bool
	Reachable       bool
	LastContact     time.Duration // since its last report; negative when there was none
	LastIndex       uint64
	Applied         uint64
	Incarnation     uint64
	PayloadComplete bool
	Extra           json.RawMessage
	Health          Health
	NodeTold
}

// NodeTold is what a node tells of itself by gossip; all of it is empty until it was heard.
type NodeTold struct {
	Version string
	Zone    string
	// FeatureMin and FeatureMax are the feature levels it can run at.
	FeatureMin, FeatureMax uint32
}

// Members gives the members in the order of the configuration.
func (c *Cluster) Members() []Member {
	in := c.instance()
	conf, _ := c.book.configuration()
	if in != nil {
		conf = in.raft.GetConfiguration().Configuration()
	}
	leader := c.Leader()
	now := time.Now()
	out := make([]Member, 0, len(conf.Servers))
	for _, s := range conf.Servers {
		m := Member{ID: string(s.ID), Suffrage: suffrage(s.Suffrage), Leader: string(s.ID) == leader, LastContact: -1}
		info, known := c.book.get(m.ID)
		if m.ID == c.cfg.NodeID {
			c.idMu.Lock()
			info, known = c.selfLocked(), true
			c.idMu.Unlock()
		}
		if known {
			m.RaftAddr, m.GossipAddr, m.HTTPAddr, m.Incarnation, m.LastIndex = info.Raft, info.Gossip, info.HTTP, info.Incarnation, info.LastIndex
		}
		if r, ok := c.table.get(m.ID); ok {
			m.LastContact = now.Sub(r.heard)
			m.LastIndex, m.Applied, m.Incarnation = r.Self.LastIndex, r.Applied, r.Self.Incarnation
			m.PayloadComplete, m.Extra = r.PayloadComplete, r.Extra
			m.Reachable = m.LastContact < reachableAfter+reportPause
		}
		m.Reachable = m.Reachable || m.ID == c.cfg.NodeID
		g, gossiped := c.gossiped(m.ID)
		m.NodeTold = told(g)
		m.Health = healthOf(m.Reachable, m.LastContact >= 0, g.State, gossiped)
		out = append(out, m)
	}
	return out
}

// Health says how a node does, as far as this one can tell from two sides: the reports that members send the leader, and gossip.
type Health string

// The states of health. Suspect: one side hears it and the other does not. Left: it said goodbye. Unknown: nothing was heard yet.
const (
	HealthAlive   Health = "alive"
	HealthSuspect Health = "suspect"
	HealthDead    Health = "dead"
	HealthLeft    Health = "left"
	HealthUnknown Health = "unknown"
)

// healthOf weighs the two sides. Who reports is alive whatever gossip says: its packets may be filtered.
func healthOf(reports, reported bool, state gossip.State, gossiped bool) Health {
	switch {
	case reports && (!gossiped || state == gossip.Alive):
		return HealthAlive
	case reports:
		return HealthSuspect
	case !gossiped && !reported:
		return HealthUnknown
	case !gossiped:
		return HealthSuspect
	case state == gossip.Alive:
		return HealthSuspect
	case state == gossip.Left:
		return HealthLeft
	}
	return HealthDead
}

// Outsider is a node that is known and no member: one that may be joined, or that was removed.
type Outsider struct {
	ID, RaftAddr, HTTPAddr string
	// Was: it was a member once.
	Was    bool
	Health Health
	NodeTold
}

// Outsiders gives the nodes that gossip shows and Raft's configuration does not hold, by id.
func (c *Cluster) Outsiders() []Outsider {
	members := map[string]bool{c.cfg.NodeID: true}
	for _, m := range c.Members() {
		members[m.ID] = true
	}
	var out []Outsider
	g := c.gossip.Load()
	if g == nil {
		return nil
	}
	for _, n := range g.Nodes() {
		if members[n.ID] {
			continue
		}
		p, _ := c.book.get(n.ID)
		o := Outsider{ID: n.ID, RaftAddr: n.Raft, HTTPAddr: n.HTTP, Was: p.Member, Health: HealthAlive, NodeTold: told(n)}
		if n.State != gossip.Alive {
			o.Health = Health(n.State)
		}
		out = append(out, o)
	}
	return out
}

func told(n gossip.Node) NodeTold {
	return NodeTold{Version: n.Version, Zone: n.Zone, FeatureMin: n.FeatureMin, FeatureMax: n.FeatureMax}
}

func suffrage(s raft.ServerSuffrage) string {
	if s == raft.Voter {
		return "voter"
	}
	return "nonvoter"
}
