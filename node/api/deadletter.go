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
	CompactionID   string         `json:"compaction_id,omitempty"`
	Redeliveries   uint32         `json:"redeliveries"`
	MaxRetries     int            `json:"max_retries"`
	InReplay       bool           `json:"in_replay"`
}

// resolvedAnswer is a dead letter that was resolved a while ago: what a replay with an unknown status came to.
type resolvedAnswer struct {
	ID         string         `json:"id"`
	Channel    string         `json:"channel,omitempty"`
	Emitter    string         `json:"emitter,omitempty"`
	Position   event.Position `json:"position"`
	State      string         `json:"state"` // replayed | discarded
	ResolvedAt string         `json:"resolved_at"`
}

func deadLetterOf(d fsm.DeadLetter) deadLetterAnswer {
	return deadLetterAnswer{
		ID: d.ID, Channel: d.Channel, Emitter: d.Emitter, Position: d.Position, State: d.State, Class: d.Class.String(),
		Status: int(d.Status), Attempts: d.Attempts, Reason: d.Reason, DeadLetteredAt: stampText(d.Stamp), Owner: d.Node, Epoch: d.Epoch,
		CompactionID: d.CompactionID, Redeliveries: d.Redeliveries, MaxRetries: d.MaxRetries, InReplay: d.Claimed,
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
	query := fsm.LetterQuery{Channel: q.Get("channel"), Emitter: q.Get("emitter"), State: state, Limit: maxDeadLetters}
	if after := q.Get("after"); after != "" {
		c := &query.After
		if n, err := fmt.Sscanf(after, "%d.%d.%d", &c.ChannelIndex, &c.EmitterIndex, &c.Seq); n != 3 || err != nil {
			badRequest(fmt.Sprintf("after %.64q: want what next said", after)).write(w)
			return
		}
	}
	page, next, more := a.deps.Machine.DeadLetterPage(query)
	out := []deadLetterAnswer{}
	for _, d := range page {
		out = append(out, deadLetterOf(d))
	}
	answer := map[string]any{"dead_letters": out, "truncated": more}
	if more {
		answer["next"] = fmt.Sprintf("%d.%d.%d", next.ChannelIndex, next.EmitterIndex, next.Seq)
	}
	writeJSON(w, answer)
}

func (a *API) getDeadLetter(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := a.requestContext(r)
	defer cancel()
	if prob := a.fresh(ctx, r); prob != nil {
		prob.write(w)
		return
	}
	switch l := a.deps.Machine.FindLetter(r.PathValue("id")); {
	case l.Open:
		writeJSON(w, deadLetterOf(l.Letter))
	case l.Settled:
		out := resolvedAnswer{ID: r.PathValue("id"), Position: l.Position, State: l.Result.String(), ResolvedAt: stampText(l.At)}
		if e, ok := a.deps.Machine.Emitter(l.ChannelIndex, l.EmitterIndex); ok {
			out.Channel, out.Emitter = e.Channel, e.Emitter
		}
		writeJSON(w, out)
	default:
		newProblem(http.StatusNotFound, kindNotFound, "no such dead letter", "it is unknown, or was resolved too long ago").write(w)
	}
}

func stampText(ns int64) string {
	if ns == 0 {
		return ""
	}
	return time.Unix(0, ns).UTC().Format(time.RFC3339Nano)
}
