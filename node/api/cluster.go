package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
		Hashes: []ringHash{}, Members: []memberAnswer{},
	}
	out.StateHash.Index, out.StateHash.Hash, out.StateHash.Tables = a.deps.Machine.StateHash()
	for _, h := range a.deps.Machine.Hashes() {
		out.Hashes = append(out.Hashes, ringHash{K: h.K, Index: h.Index, Hash: h.Hash})
	}
	for _, m := range a.deps.Cluster.Members() {
		out.Members = append(out.Members, memberOf(m, last))
	}
	writeJSON(w, out)
}

func memberOf(m cluster.Member, last uint64) memberAnswer {
	out := memberAnswer{
		ID: m.ID, Suffrage: m.Suffrage, Raft: m.RaftAddr, HTTP: m.HTTPAddr, Leader: m.Leader, Reachable: m.Reachable,
		LastIndex: m.LastIndex, AppliedIndex: m.Applied, Incarnation: m.Incarnation, PayloadComplete: m.PayloadComplete,
	}
	if last > m.LastIndex {
		out.Lag = last - m.LastIndex
	}
	return out
}

type memberRequest struct {
	ID       string `json:"id"`
	Suffrage string `json:"suffrage"`
}

// addMember adds a node that is known by its hello as a non-voter, or makes a non-voter a voter once it holds every needed payload.
func (a *API) addMember(w http.ResponseWriter, r *http.Request) {
	var req memberRequest
	if prob := readJSON(w, r, &req); prob != nil {
		prob.write(w)
		return
	}
	var act func(context.Context, string) error
	switch req.Suffrage {
	case "", "nonvoter":
		act = a.deps.Cluster.AddNonvoter
	case "voter":
		act = a.deps.Cluster.Promote
	default:
		badRequest(fmt.Sprintf("suffrage %.32q: want nonvoter or voter", req.Suffrage)).notCommitted().write(w)
		return
	}
	a.changeMembers(w, r, req.ID, act)
}

func (a *API) removeMember(w http.ResponseWriter, r *http.Request) {
	a.changeMembers(w, r, r.PathValue("id"), a.deps.Cluster.Remove)
}

func (a *API) changeMembers(w http.ResponseWriter, r *http.Request, id string, act func(context.Context, string) error) {
	ctx, cancel := a.changeContext(r)
	defer cancel()
	if id == "" {
		badRequest("id: the node's id is missing").notCommitted().write(w)
		return
	}
	if err := act(ctx, id); err != nil {
		a.memberProblem(err, "members not changed").write(w)
		return
	}
	writeJSON(w, map[string]string{"id": id, "status": "ok"})
}

func (a *API) transfer(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := a.changeContext(r)
	defer cancel()
	var req struct {
		To string `json:"to"`
	}
	if prob := readJSON(w, r, &req); prob != nil {
		prob.write(w)
		return
	}
	if err := transferTo(ctx, a.deps.Cluster, req.To); err != nil {
		a.memberProblem(err, "leadership not transferred").write(w)
		return
	}
	writeJSON(w, map[string]string{"status": "ok", "leader": a.deps.Cluster.Status().Leader})
}

// memberProblem tells a refusal and a missing leader, after which nothing was done, from a change that was begun and whose
// end is not known: Raft may still commit it (P7).
func (a *API) memberProblem(err error, title string) *problem {
	p := newProblem(http.StatusGatewayTimeout, kindUnknownOutcome, "unknown outcome", "it was begun and may still happen: "+err.Error())
	p.Committed = "unknown"
	switch {
	case errors.Is(err, cluster.ErrRefused):
		p = newProblem(http.StatusConflict, kindConflict, title, err.Error()).notCommitted()
	case errors.Is(err, cluster.ErrForbidden):
		p = newProblem(http.StatusForbidden, kindForbidden, "not allowed", err.Error()).notCommitted()
	case errors.Is(err, cluster.ErrNoLeader):
		p = newProblem(http.StatusServiceUnavailable, kindNoLeader, "no leader", err.Error()).notCommitted()
	case errors.Is(err, cluster.ErrClosed):
		p = newProblem(http.StatusServiceUnavailable, kindShuttingDown, "shutting down", err.Error()).notCommitted()
	}
	p.Leader = a.deps.Cluster.Status().Leader
	return p
}

func transferTo(ctx context.Context, c Cluster, id string) error {
	if id == "" {
		return c.Transfer(ctx)
	}
	return c.TransferTo(ctx, id)
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
