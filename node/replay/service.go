package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"penstock/cluster"
	"penstock/dlq"
	"penstock/emit"
	"penstock/fsm"
	"penstock/node/logread"
)

// Deps are the parts a Service works with. All are required.
type Deps struct {
	NodeID  string
	Machine *fsm.Machine
	Reader  *logread.Reader
	Cluster Cluster
	Volume  *dlq.Volume
	Sinks   emit.SinkDeps
	Scan    time.Duration // interval of scheduled replays
	Logger  *slog.Logger
}

// Service carries out what operators ask, and runs a Replayer beside each emitter that this node runs.
type Service struct {
	deps  Deps
	audit auditor

	mu struct {
		sync.Mutex
		replayers map[place]*attached
	}
}

type attached struct {
	info fsm.EmitterInfo
	r    *emit.Replayer
	cfg  emit.ReplayConfig
	deps emit.ReplayDeps
}

// method is the request between nodes.
const method = "dlq.replay"

// New makes the service and answers other nodes from now on.
func New(deps Deps) *Service {
	s := &Service{deps: deps, audit: newAuditor(deps.Cluster, deps.Logger)}
	s.mu.replayers = map[place]*attached{}
	deps.Cluster.Handle(method, s.handle)
	return s
}

// Beside runs the replays of an emitter while ctx lasts, next to its Run, whose sink and gate they share. It returns when all of
// them have ended.
func (s *Service) Beside(ctx context.Context, info fsm.EmitterInfo, cfg emit.Config, deps emit.Deps) {
	rc := emit.ReplayConfig{Config: cfg, Scan: s.deps.Scan, Whole: info.Spec.IdempotentBy == "compaction-id"}
	rd := emit.ReplayDeps{Deps: deps, Letters: &letters{
		info: info, nodeID: s.deps.NodeID, machine: s.deps.Machine, reader: s.deps.Reader, cluster: s.deps.Cluster,
		volume: s.deps.Volume, log: s.deps.Logger,
	}}
	r, err := emit.NewReplayer(ctx, rc, rd)
	if err != nil {
		s.deps.Logger.Error("replays do not run", "channel", info.Channel, "emitter", info.Emitter, "error", err)
		return
	}
	defer r.Close()
	if !r.Prepare(ctx) {
		return
	}
	at := place{info.ChannelIndex, info.EmitterIndex}
	a := &attached{info: info, r: r, cfg: rc, deps: rd}
	s.set(at, a)
	defer s.unset(at, a)
	r.Run(ctx)
}

func (s *Service) set(at place, a *attached) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.replayers[at] = a
}

func (s *Service) unset(at place, a *attached) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.replayers[at] == a {
		delete(s.mu.replayers, at)
	}
}

// request is a replay of dead letters of one emitter, sent to its owner.
type request struct {
	ChannelIndex uint64        `json:"channel_index"`
	EmitterIndex uint64        `json:"emitter_index"`
	Intent       []byte        `json:"intent"`
	IDs          []string      `json:"ids"`
	Force        bool          `json:"force,omitempty"`
	DryRun       bool          `json:"dry_run,omitempty"`
	To           string        `json:"to,omitempty"` // an emitter of the same channel to send to instead
	Within       time.Duration `json:"within"`
}

// maxWithin bounds how long an owner works on one request.
const maxWithin = 60 * time.Second

func (s *Service) handle(ctx context.Context, _ string, body []byte) ([]byte, error) {
	var q request
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, fmt.Errorf("replay request: %w", err)
	}
	all, err := s.replayHere(ctx, q)
	if err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

// replayHere replays on this node, which must run the emitter.
func (s *Service) replayHere(ctx context.Context, q request) ([]emit.ReplayStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, min(max(q.Within, time.Millisecond), maxWithin))
	defer cancel()
	s.mu.Lock()
	a := s.mu.replayers[place{q.ChannelIndex, q.EmitterIndex}]
	s.mu.Unlock()
	if a == nil {
		return same(q.IDs, emit.ReplayNotDelivered, "not sent: the emitter does not run on "+s.deps.NodeID+" now"), nil
	}
	claim := emit.Claim{Force: q.Force}
	copy(claim.ID[:], q.Intent)
	// The intent was committed before we were asked; this node may not have applied it yet, nor the letters.
	if _, err := s.deps.Cluster.ReadIndex(ctx); err != nil {
		return same(q.IDs, emit.ReplayNotDelivered, "not sent: "+err.Error()), nil
	}
	if q.To == "" {
		return a.r.Replay(ctx, claim, q.IDs, q.DryRun)
	}
	return s.replayTo(ctx, a, claim, q)
}

// replayTo sends to another emitter of the channel; the dead letter is then delivered.
func (s *Service) replayTo(ctx context.Context, a *attached, claim emit.Claim, q request) ([]emit.ReplayStatus, error) {
	other, ok := s.deps.Machine.EmitterNamed(q.ChannelIndex, q.To)
	if !ok {
		return same(q.IDs, emit.ReplayNotDelivered, "not sent: no emitter "+q.To), nil
	}
	if other.Paused {
		return same(q.IDs, emit.ReplayForbidden, "not sent: the emitter "+q.To+" is paused; resume it first"), nil
	}
	sink, err := emit.NewSink(other.Spec, s.deps.Sinks)
	if err != nil {
		return same(q.IDs, emit.ReplayNotDelivered, "not sent: "+err.Error()), nil
	}
	deps := a.deps
	deps.Sink, deps.Gate = sink, nil
	cfg := a.cfg
	cfg.Whole = other.Spec.IdempotentBy == "compaction-id"
	r, err := emit.NewReplayer(ctx, cfg, deps)
	if err != nil {
		return nil, errors.Join(err, sink.Close())
	}
	all, err := r.Replay(ctx, claim, q.IDs, q.DryRun)
	r.Close()
	return all, errors.Join(err, sink.Close())
}

// askOwner sends the request to the owner of its emitter.
func (s *Service) askOwner(ctx context.Context, owner string, q request) []emit.ReplayStatus {
	if owner == "" {
		return same(q.IDs, emit.ReplayNotDelivered, "not sent: the emitter has no owner now")
	}
	if owner == s.deps.NodeID {
		all, err := s.replayHere(ctx, q)
		if err != nil {
			return same(q.IDs, emit.ReplayNotDelivered, "not sent: "+err.Error())
		}
		return all
	}
	body, err := json.Marshal(q)
	if err != nil {
		return same(q.IDs, emit.ReplayNotDelivered, "not sent: "+err.Error())
	}
	answer, err := s.deps.Cluster.Call(ctx, owner, method, body)
	if err != nil {
		var call *cluster.CallError
		if errors.As(err, &call) && !call.Started {
			return same(q.IDs, emit.ReplayNotDelivered, "not sent: "+err.Error())
		}
		return same(q.IDs, emit.ReplayUnknown, "node "+owner+" did not answer in time; look the id up")
	}
	var all []emit.ReplayStatus
	if err := json.Unmarshal(answer, &all); err != nil {
		return same(q.IDs, emit.ReplayUnknown, "the answer of node "+owner+" is not complete; look the id up")
	}
	if _, err := emit.CountReplay(q.IDs, all); err != nil { // K20: checked before it is answered
		return same(q.IDs, emit.ReplayUnknown, "the answer of node "+owner+" is not complete; look the id up")
	}
	return all
}

func same(ids []string, state emit.ReplayState, detail string) []emit.ReplayStatus {
	all := make([]emit.ReplayStatus, len(ids))
	for i, id := range ids {
		all[i] = emit.ReplayStatus{ID: id, State: state, Detail: detail}
	}
	return all
}
