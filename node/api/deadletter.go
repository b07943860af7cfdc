package api

import (
	"fmt"
	"net/http"
	"time"

	"penstock/event"
	"penstock/fsm"
)

// maxDeadLetters bounds one listing.
const maxDeadLetters = 1000

type deadLetterAnswer struct {
	ID             string         `json:"id"`
	Channel        string         `json:"channel"`
	Emitter        string         `json:"emitter"`
	Position       event.Position `json:"position"`
	State          string         `json:"state"`
	Class          string         `json:"class"`
	Status         int            `json:"status,omitempty"`
	Attempts       uint32         `json:"attempts"`
	Reason         string         `json:"reason"`
	DeadLetteredAt string         `json:"dead_lettered_at"`
	Owner          string         `json:"owner"`
	Epoch          uint64         `json:"epoch"`
}

func deadLetterOf(d fsm.DeadLetter) deadLetterAnswer {
	return deadLetterAnswer{
		ID: d.ID, Channel: d.Channel, Emitter: d.Emitter, Position: d.Position, State: d.State, Class: d.Class.String(),
		Status: int(d.Status), Attempts: d.Attempts, Reason: d.Reason, DeadLetteredAt: stampText(d.Stamp), Owner: d.Node, Epoch: d.Epoch,
	}
}

// listDeadLetters shows what the replicated state holds: the same on every node, without payloads.
func (a *API) listDeadLetters(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := a.requestContext(r)
	defer cancel()
	if prob := a.fresh(ctx, r); prob != nil {
		prob.write(w)
		return
	}
	q := r.URL.Query()
	state := q.Get("state")
	if state != "" && state != "dead" && state != "poison" {
		badRequest(fmt.Sprintf("state %.32q: want dead or poison", state)).write(w)
		return
	}
	page, _, more := a.deps.Machine.DeadLetterPage(fsm.LetterQuery{
		Channel: q.Get("channel"), Emitter: q.Get("emitter"), State: state, Limit: maxDeadLetters,
	})
	out := []deadLetterAnswer{}
	for _, d := range page {
		out = append(out, deadLetterOf(d))
	}
	writeJSON(w, map[string]any{"dead_letters": out, "truncated": more})
}

func (a *API) getDeadLetter(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := a.requestContext(r)
	defer cancel()
	if prob := a.fresh(ctx, r); prob != nil {
		prob.write(w)
		return
	}
	if l := a.deps.Machine.FindLetter(r.PathValue("id")); l.Open {
		writeJSON(w, deadLetterOf(l.Letter))
		return
	}
	newProblem(http.StatusNotFound, kindNotFound, "no such dead letter", "it is unknown, or was resolved").write(w)
}

func stampText(ns int64) string {
	if ns == 0 {
		return ""
	}
	return time.Unix(0, ns).UTC().Format(time.RFC3339Nano)
}
