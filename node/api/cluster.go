package api

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"penstock/cluster"
)

type clusterAnswer struct {
	ClusterID    string         `json:"cluster_id"`
	Cluster      string         `json:"cluster"`
	NodeID       string         `json:"node_id"`
	State        string         `json:"state"`
	Leader       string         `json:"leader"`
	Term         uint64         `json:"term"`
	CommitIndex  uint64         `json:"commit_index"`
	AppliedIndex uint64         `json:"applied_index"`
	FirstIndex   uint64         `json:"first_index"`
	LastIndex    uint64         `json:"last_index"`
	BaseIndex    uint64         `json:"base_index"`
	Floor        uint64         `json:"floor"`
	Horizon      uint64         `json:"horizon"`
	Installs     uint64         `json:"installs"`
	Lease        bool           `json:"lease"`
	Waiting      string         `json:"waiting_for,omitempty"`
	StateHash    stateHash      `json:"state_hash"`
	Hashes       []ringHash     `json:"hashes"`
	Members      []memberAnswer `json:"members"`
	// Known are nodes that gossip shows and that are no members: they can be joined, or were removed.
	Known []outsiderAnswer `json:"known"`
}

// stateHash is of the state at Index: two nodes with the same index have the same hash (I4).
type stateHash struct {
	Index  uint64            `json:"index"`
	Hash   string            `json:"hash"`
	Tables map[string]string `json:"tables"`
}

// ringHash was taken before the first command at or past K*4096, so it compares between nodes under load.
type ringHash struct {
	K     uint64 `json:"k"`
	Index uint64 `json:"index"`
	Hash  string `json:"hash"`
}

type memberAnswer struct {
	ID              string `json:"id"`
	Suffrage        string `json:"suffrage"`
	Raft            string `json:"raft"`
	HTTP            string `json:"http"`
	Leader          bool   `json:"leader"`
	Reachable       bool   `json:"reachable"`
	LastIndex       uint64 `json:"last_index"`
	AppliedIndex    uint64 `json:"applied_index"`
	Lag             uint64 `json:"lag"`
	Incarnation     uint64 `json:"incarnation"`
	PayloadComplete bool   `json:"payload_complete"`
	Health          string `json:"health"`
	toldAnswer
}

// toldAnswer is what a node tells of itself by gossip.
type toldAnswer struct {
	Version    string `json:"version,omitempty"`
	Zone       string `json:"zone,omitempty"`
	FeatureMin uint32 `json:"feature_min,omitempty"`
	FeatureMax uint32 `json:"feature_max,omitempty"`
}

func toldOf(t cluster.NodeTold) toldAnswer {
	return toldAnswer{Version: t.Version, Zone: t.Zone, FeatureMin: t.FeatureMin, FeatureMax: t.FeatureMax}
}

type outsiderAnswer struct {
	ID        string `json:"id"`
	Raft      string `json:"raft"`
	HTTP      string `json:"http"`
	Health    string `json:"health"`
	WasMember bool   `json:"was_member"`
	toldAnswer
}

func (a *API) clusterStatus(w http.ResponseWriter, r *http.Request) {
	s := a.deps.Cluster.Status()
	first, _ := a.deps.Log.FirstIndex()
	last, _ := a.deps.Log.LastIndex()
	base, _ := a.deps.Log.Base()
	out := clusterAnswer{
		ClusterID: s.ClusterID, Cluster: s.ClusterName, NodeID: a.deps.NodeID, State: s.State, Leader: s.Leader, Term: s.Term,
		CommitIndex: s.CommitIndex, AppliedIndex: s.AppliedIndex, FirstIndex: first, LastIndex: last, BaseIndex: base,
		Floor: a.deps.Machine.Floor(), Horizon: a.deps.Machine.Horizon(), Installs: s.Installs,
		Lease: a.deps.Cluster.Lease().Valid(), Waiting: s.Waiting,
		Hashes: []ringHash{}, Members: []memberAnswer{}, Known: []outsiderAnswer{},
	}
	out.StateHash.Index, out.StateHash.Hash, out.StateHash.Tables = a.deps.Machine.StateHash()
	for _, h := range a.deps.Machine.Hashes() {
		out.Hashes = append(out.Hashes, ringHash{K: h.K, Index: h.Index, Hash: h.Hash})
	}
	for _, m := range a.deps.Cluster.Members() {
		out.Members = append(out.Members, memberOf(m, last))
	}
	for _, o := range a.deps.Cluster.Outsiders() {
		out.Known = append(out.Known, outsiderAnswer{
			ID: o.ID, Raft: o.RaftAddr, HTTP: o.HTTPAddr, Health: string(o.Health), WasMember: o.Was, toldAnswer: toldOf(o.NodeTold),
		})
	}
	writeJSON(w, out)
}

func memberOf(m cluster.Member, last uint64) memberAnswer {
	out := memberAnswer{
		ID: m.ID, Suffrage: m.Suffrage, Raft: m.RaftAddr, HTTP: m.HTTPAddr, Leader: m.Leader, Reachable: m.Reachable,
		LastIndex: m.LastIndex, AppliedIndex: m.Applied, Incarnation: m.Incarnation, PayloadComplete: m.PayloadComplete,
		Health: string(m.Health), toldAnswer: toldOf(m.NodeTold),
	}
	if last > m.LastIndex {
		out.Lag = last - m.LastIndex
	}
	return out
}

// snapshot takes one now, on this node.
func (a *API) snapshot(w http.ResponseWriter, r *http.Request) {
	if err := a.deps.Cluster.TakeSnapshot(); err != nil {
		newProblem(http.StatusConflict, kindConflict, "no snapshot taken", err.Error()).write(w)
		return
	}
	writeJSON(w, map[string]string{"status": "ok"})
}

// readJSON reads a small strict JSON body; an empty one leaves v as it is.
func readJSON(w http.ResponseWriter, r *http.Request, v any) *problem {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil && !errors.Is(err, io.EOF) {
		return bodyProblem(err).notCommitted()
	}
	return nil
}
