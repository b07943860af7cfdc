package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"penstock/cluster"
	"penstock/fsm"
	"penstock/node/replay"
)

type memberRequest struct {
	ID       string `json:"id"`
	Suffrage string `json:"suffrage"`
	Reason   string `json:"reason"`
	Force    bool   `json:"force"`
}

// maxActReason bounds a reason in the trail.
const maxActReason = 1000

// addMember adds a node that is known by its hello as a non-voter, or makes a non-voter a voter once it holds every needed payload.
func (a *API) addMember(w http.ResponseWriter, r *http.Request) {
	var req memberRequest
	if prob := readJSON(w, r, &req); prob != nil {
		prob.write(w)
		return
	}
	switch req.Suffrage {
	case "", "nonvoter":
		a.changeMembers(w, r, "cluster.join", req, func(ctx context.Context) error { return a.deps.Cluster.AddNonvoter(ctx, req.ID) })
	case "voter":
		a.changeMembers(w, r, "cluster.promote", req, func(ctx context.Context) error { return a.deps.Cluster.Promote(ctx, req.ID) })
	default:
		badRequest(fmt.Sprintf("suffrage %.32q: want nonvoter or voter", req.Suffrage)).notCommitted().write(w)
	}
}

// demoteMember takes a voter's vote.
func (a *API) demoteMember(w http.ResponseWriter, r *http.Request) {
	var req memberRequest
	if prob := readJSON(w, r, &req); prob != nil {
		prob.write(w)
		return
	}
	req.ID = r.PathValue("id")
	a.changeMembers(w, r, "cluster.demote", req, func(ctx context.Context) error { return a.deps.Cluster.Demote(ctx, req.ID, req.Force) })
}

func (a *API) removeMember(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	req := memberRequest{ID: r.PathValue("id"), Reason: q.Get("reason"), Force: q.Get("force") == "1"}
	a.changeMembers(w, r, "cluster.remove", req, func(ctx context.Context) error { return a.deps.Cluster.Remove(ctx, req.ID, req.Force) })
}

func (a *API) changeMembers(w http.ResponseWriter, r *http.Request, action string, req memberRequest, do func(context.Context) error) {
	switch {
	case req.ID == "" || len(req.ID) > 63:
		badRequest("id: the node's id is missing, or too long").notCommitted().write(w)
		return
	case len(req.Reason) > maxActReason:
		badRequest(fmt.Sprintf("reason: want at most %d bytes", maxActReason)).notCommitted().write(w)
		return
	}
	if err := a.clusterAct(r, action, req, do); err != nil {
		a.memberProblem(err, "members not changed").write(w)
		return
	}
	writeJSON(w, map[string]string{"id": req.ID, "status": "ok"})
}

// transfer hands leadership to a node, or to the best one.
func (a *API) transfer(w http.ResponseWriter, r *http.Request) {
	var req struct {
		To     string `json:"to"`
		Reason string `json:"reason"`
	}
	if prob := readJSON(w, r, &req); prob != nil {
		prob.write(w)
		return
	}
	if len(req.To) > 63 || len(req.Reason) > maxActReason {
		badRequest("to, reason: too long").notCommitted().write(w)
		return
	}
	err := a.clusterAct(r, "cluster.transfer", memberRequest{ID: req.To, Reason: req.Reason}, func(ctx context.Context) error {
		return transferTo(ctx, a.deps.Cluster, req.To)
	})
	if err != nil {
		a.memberProblem(err, "leadership not transferred").write(w)
		return
	}
	writeJSON(w, map[string]string{"status": "ok", "leader": a.deps.Cluster.Status().Leader})
}

func transferTo(ctx context.Context, c Cluster, id string) error {
	if id == "" {
		return c.Transfer(ctx)
	}
	return c.TransferTo(ctx, id)
}

// clusterAct does one act between its audit intent and its outcome (P9).
func (a *API) clusterAct(r *http.Request, action string, req memberRequest, do func(context.Context) error) error {
	ctx, cancel := a.changeContext(r)
	defer cancel()
	if a.deps.Audit == nil {
		return do(ctx)
	}
	act := replay.Act{Actor: ActorOf(r), Action: action, Reason: req.Reason, RequestID: r.Header.Get(requestHeader)}
	if req.ID != "" {
		act.Targets = []string{req.ID}
	}
	if req.Force {
		act.Reason = "forced: " + act.Reason
	}
	var done error
	err := a.deps.Audit.Audited(ctx, act, func(ctx context.Context) (string, string) {
		done = do(ctx)
		return actResult(done)
	})
	return errors.Join(err, done)
}

func actResult(err error) (result, detail string) {
	switch {
	case err == nil:
		return fsm.AuditSuccess, ""
	case errors.Is(err, cluster.ErrRefused):
		return fsm.AuditRejected, err.Error()
	case errors.Is(err, cluster.ErrNoLeader), errors.Is(err, cluster.ErrClosed), errors.Is(err, cluster.ErrForbidden):
		return fsm.AuditFailure, err.Error()
	}
	return fsm.AuditUnknown, err.Error()
}

// memberProblem tells a refusal and a missing leader, after which nothing was done, from a change that was begun and whose
// end is not known: Raft may still commit it (P7).
func (a *API) memberProblem(err error, title string) *problem {
	p := newProblem(http.StatusGatewayTimeout, kindUnknownOutcome, "unknown outcome", "it was begun and may still happen: "+err.Error())
	p.Committed = "unknown"
	switch {
	case errors.Is(err, cluster.ErrForbidden):
		p = newProblem(http.StatusForbidden, kindForbidden, title, err.Error()).notCommitted()
	case errors.Is(err, cluster.ErrRefused):
		p = newProblem(http.StatusConflict, kindConflict, title, err.Error()).notCommitted()
	case errors.Is(err, cluster.ErrNoLeader), errors.Is(err, replay.ErrNoIntent):
		p = newProblem(http.StatusServiceUnavailable, kindNoLeader, "no leader", err.Error()).notCommitted()
	case errors.Is(err, cluster.ErrClosed):
		p = newProblem(http.StatusServiceUnavailable, kindShuttingDown, "shutting down", err.Error()).notCommitted()
	}
	p.Leader = a.deps.Cluster.Status().Leader
	return p
}
