package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"penstock/fsm"
	"penstock/fsm/command"
	"penstock/internal/spec"
)

// maxSpecBytes bounds the body of a channel's spec.
const maxSpecBytes = 256 << 10

type channelAnswer struct {
	Name     string       `json:"name"`
	Index    uint64       `json:"index"`
	Version  uint64       `json:"version"`
	Accepted uint64       `json:"accepted"`
	Spec     spec.Channel `json:"spec"`
}

func channelOf(c fsm.ChannelInfo) channelAnswer {
	return channelAnswer{Name: c.Name, Index: c.Index, Version: c.Version, Accepted: c.Accepted, Spec: c.Spec}
}

// channel looks the channel up here, and when it is unknown here once more behind a read index: it may have been made a
// moment ago through another node.
func (a *API) channel(ctx context.Context, name string) (fsm.ChannelInfo, *problem) {
	if ch, ok := a.deps.Machine.Channel(name); ok {
		return ch, nil
	}
	return a.refreshed(ctx, name)
}

func (a *API) refreshed(ctx context.Context, name string) (fsm.ChannelInfo, *problem) {
	if prob := a.readIndex(ctx); prob != nil {
		return fsm.ChannelInfo{}, prob
	}
	ch, ok := a.deps.Machine.Channel(name)
	if !ok {
		return fsm.ChannelInfo{}, newProblem(http.StatusNotFound, kindNoSuchChannel, "no such channel", fmt.Sprintf("there is no channel %.128q", name)).notCommitted()
	}
	return ch, nil
}

// readIndex makes what this node reads next at least as new as everything committed before the call.
func (a *API) readIndex(ctx context.Context) *problem {
	if _, err := a.deps.Cluster.ReadIndex(ctx); err != nil {
		return newProblem(http.StatusServiceUnavailable, kindNoLeader, "no leader", err.Error()).notCommitted()
	}
	return nil
}

func (a *API) requestContext(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), a.config().Timeout)
}

// changeContext is of a request that may change something. It has the deadline that the client asked for, but not the
// connection's end: what was accepted is seen through, and a drain that cuts bodies off cuts no commit off.
func (a *API) changeContext(r *http.Request) (context.Context, context.CancelFunc) {
	timeout, err := a.timeout(r)
	if err != nil { // accepted has refused it before
		timeout = a.config().Timeout
	}
	return context.WithTimeout(context.WithoutCancel(r.Context()), timeout)
}

// fresh makes a read linearizable unless the client asked for ?stale=1.
func (a *API) fresh(ctx context.Context, r *http.Request) *problem {
	if r.URL.Query().Get("stale") == "1" {
		return nil
	}
	return a.readIndex(ctx)
}

func (a *API) listChannels(w http.ResponseWriter, r *http.Request) {
	out := []channelAnswer{}
	for _, c := range a.deps.Machine.Channels() {
		out = append(out, channelOf(c))
	}
	writeJSON(w, map[string]any{"channels": out})
}

func (a *API) getChannel(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := a.requestContext(r)
	defer cancel()
	ch, prob := a.channel(ctx, r.PathValue("channel"))
	if prob != nil {
		prob.write(w)
		return
	}
	writeJSON(w, channelOf(ch))
}

func (a *API) putChannel(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxSpecBytes))
	if err != nil {
		bodyProblem(err).notCommitted().write(w)
		return
	}
	c, err := spec.ParseJSON(body)
	if err == nil {
		if c.Name == "" {
			c.Name = r.PathValue("channel")
		}
		c.ApplyDefaults()
		err = c.Validate()
	}
	if err == nil && c.Name != r.PathValue("channel") {
		err = fmt.Errorf("name: the body says %.128q, the path %.128q", c.Name, r.PathValue("channel"))
	}
	if err != nil {
		newProblem(http.StatusBadRequest, kindBadRequest, "bad channel spec", err.Error()).notCommitted().write(w)
		return
	}
	if r.URL.Query().Get("dry_run") == "1" {
		a.dryRun(w, r, &c)
		return
	}
	a.changeChannel(w, r, command.Encode(command.ChannelPut{Spec: c.Canonical(), Discard: r.URL.Query().Get("discard") == "1"}))
}

// dryRun says what applying the spec would change, and what would stand in its way. It changes nothing.
func (a *API) dryRun(w http.ResponseWriter, r *http.Request, want *spec.Channel) {
	ctx, cancel := a.requestContext(r)
	defer cancel()
	if prob := a.readIndex(ctx); prob != nil {
		prob.write(w)
		return
	}
	out := map[string]any{"name": want.Name, "semantics": want.Semantics, "dry_run": true}
	changes := spec.Diff(nil, want)
	if ch, ok := a.deps.Machine.Channel(want.Name); ok {
		changes = spec.Diff(&ch.Spec, want)
		out["index"], out["version"] = ch.Index, ch.Version
		if why := a.goingDeliveries(ch, want); why != "" && r.URL.Query().Get("discard") != "1" {
			out["refused"] = why
		}
	}
	out["changed"], out["changes"] = len(changes) > 0, changes
	writeJSON(w, out)
}

// goingDeliveries names the emitters that the spec takes out and that still have deliveries to lose; "" when there are none.
func (a *API) goingDeliveries(ch fsm.ChannelInfo, want *spec.Channel) string {
	var all []string
	for _, old := range ch.Spec.Emitters {
		e, ok := a.deps.Machine.EmitterNamed(ch.Index, old.Name)
		stays := slices.ContainsFunc(want.Emitters, func(n spec.Emitter) bool { return n.Name == old.Name })
		if ok && !stays && e.Pending+e.Dead+e.Poison > 0 {
			all = append(all, fmt.Sprintf("emitter %s has %d pending, %d dead and %d poison deliveries", old.Name, e.Pending, e.Dead, e.Poison))
		}
	}
	return strings.Join(all, "; ")
}

func (a *API) deleteChannel(w http.ResponseWriter, r *http.Request) {
	a.changeChannel(w, r, command.Encode(command.ChannelDelete{Name: r.PathValue("channel"), Discard: r.URL.Query().Get("discard") == "1"}))
}

// changeChannel commits a change and answers once it is applied here too, so that the same client may go on here.
func (a *API) changeChannel(w http.ResponseWriter, r *http.Request, cmd []byte) {
	ctx, cancel := a.changeContext(r)
	defer cancel()
	answer, err := a.deps.Cluster.Propose(ctx, cmd)
	if err != nil {
		a.proposeProblem(err, 0).write(w)
		return
	}
	result, err := command.DecodeChannelResult(answer)
	if err != nil {
		a.unknown(err, 0).write(w)
		return
	}
	if prob := channelProblem(result); prob != nil {
		prob.notCommitted().write(w)
		return
	}
	_ = a.readIndex(ctx) // it is committed either way
	a.schemas.forget(func(index uint64) bool {
		return slices.ContainsFunc(a.deps.Machine.Channels(), func(c fsm.ChannelInfo) bool { return c.Index == index })
	})
	name := r.PathValue("channel")
	out := map[string]any{"name": name, "index": result.Index, "version": result.Version, "changed": result.Changed}
	if ch, ok := a.deps.Machine.Channel(name); ok {
		out["semantics"], out["spec"] = ch.Spec.Semantics, ch.Spec
	}
	writeJSON(w, out)
}

func channelProblem(r command.ChannelResult) *problem {
	switch r.Status {
	case command.OK:
		return nil
	case command.NoSuchChannel:
		return newProblem(http.StatusNotFound, kindNoSuchChannel, "no such channel", r.Message)
	case command.Malformed:
		return newProblem(http.StatusBadRequest, kindBadRequest, "bad channel spec", r.Message)
	default:
		return newProblem(http.StatusConflict, kindConflict, "channel not changed", r.Message)
	}
}
