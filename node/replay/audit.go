package replay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"penstock/cluster"
	"penstock/fsm"
	"penstock/fsm/command"
)

// auditor commits intents and outcomes. Ingest and emission never wait for it.
type auditor struct {
	cluster Cluster
	log     *slog.Logger
	// rejections bounds how many refused requests a second leave a record: whoever floods us must not push the trail out.
	rejections *rate.Limiter
}

func newAuditor(c Cluster, log *slog.Logger) auditor {
	return auditor{cluster: c, log: log, rejections: rate.NewLimiter(5, 50)}
}

// outcomeWait bounds the commit of an outcome; without one the intent closes as unknown by itself.
const outcomeWait = 10 * time.Second

// Act is what an operator asks for.
type Act struct {
	Actor, Action, Reason, RequestID string
	Targets                          []string
}

// intend commits the intent. Nothing may be dispatched after an error (P9).
func (a *auditor) intend(ctx context.Context, act Act) ([16]byte, error) {
	id := [16]byte(uuid.New())
	res, err := a.propose(ctx, command.AuditIntent{
		ID: id, Actor: act.Actor, Action: act.Action, Reason: act.Reason, RequestID: act.RequestID, Targets: act.Targets,
	})
	if err != nil {
		return id, err
	}
	if res.Status != command.OK {
		return id, fmt.Errorf("audit intent refused: %s: %s", res.Status, res.Message)
	}
	a.log.Info("act begins", "action", act.Action, "actor", act.Actor, "intent", fmt.Sprintf("%x", id), "request", act.RequestID, "ids", act.Targets)
	return id, nil
}

// conclude commits the outcome, also when the request that asked for the act is over.
func (a *auditor) conclude(ctx context.Context, id [16]byte, result, detail string) {
	// The trail is the node's own: that the actor's token is gone by now must not keep the outcome out of it.
	ctx, cancel := context.WithTimeout(cluster.WithGrant(context.WithoutCancel(ctx), nil), outcomeWait)
	defer cancel()
	for {
		res, err := a.propose(ctx, command.AuditOutcome{ID: id, Result: result, Detail: detail})
		if err == nil {
			a.log.Info("act ended", "intent", fmt.Sprintf("%x", id), "result", result, "detail", detail, "status", res.Status)
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			a.log.Error("outcome of an act is not committed; it closes as unknown", "intent", fmt.Sprintf("%x", id), "result", result, "error", err)
			return
		}
	}
}

// reject leaves a record of a request that was refused before anything was dispatched.
func (a *auditor) reject(ctx context.Context, act Act, why string) {
	if !a.rejections.Allow() {
		a.log.Warn("refused act without an audit record: too many", "action", act.Action, "actor", act.Actor, "why", why)
		return
	}
	if len(act.Targets) > 100 {
		act.Targets = act.Targets[:100]
	}
	ctx, cancel := context.WithTimeout(cluster.WithGrant(context.WithoutCancel(ctx), nil), outcomeWait)
	defer cancel()
	id, err := a.intend(ctx, act)
	if err != nil {
		a.log.Warn("refused act without an audit record", "action", act.Action, "actor", act.Actor, "why", why, "error", err)
		return
	}
	a.conclude(ctx, id, fsm.AuditRejected, why)
}

func (a *auditor) propose(ctx context.Context, c command.Command) (command.PlainResult, error) {
	answer, err := a.cluster.Propose(ctx, command.Encode(c))
	if err != nil {
		return command.PlainResult{}, err
	}
	res, err := command.DecodePlainResult(answer)
	if err != nil {
		return res, errors.Join(errors.New("audit"), err)
	}
	return res, nil
}
