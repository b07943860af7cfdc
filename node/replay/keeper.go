package replay

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"penstock/dlq"
	"penstock/fsm"
	"penstock/internal/spec"
	"penstock/node/logread"
)

// upkeepEvery is how often the volume is looked after.
const upkeepEvery = 5 * time.Second

// Keeper keeps this node's volume the view that it is meant to be: it has a record for each open dead letter of the emitters
// that this node owns, under their present epoch, rebuilt from the state machine and the log, and no others.
type Keeper struct {
	NodeID  string
	Machine *fsm.Machine
	Reader  *logread.Reader
	Volume  *dlq.Volume
	Logger  *slog.Logger
	// CaughtUp tells whether this node has applied, once since its start, everything committed before; nil: it has. Until then
	// it knows too little to say which records are no longer needed, and leaves the volume alone.
	CaughtUp func() bool

	rebuilt map[place]uint64 // epoch for which the volume was filled
	pruneAt time.Time
}

type place struct{ channelIndex, emitterIndex uint64 }

// pruneEvery is how often records that are no longer open are looked for, which reads the whole volume.
const pruneEvery = time.Minute

// Run looks after the volume until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	k.rebuilt = map[place]uint64{}
	for k.CaughtUp != nil && !k.CaughtUp() {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
	tick := time.NewTicker(upkeepEvery)
	defer tick.Stop()
	for {
		k.Upkeep(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Upkeep is one round.
func (k *Keeper) Upkeep(ctx context.Context) {
	if k.CaughtUp != nil && !k.CaughtUp() {
		return
	}
	if k.rebuilt == nil {
		k.rebuilt = map[place]uint64{}
	}
	if err := k.Volume.Failing(); err != nil {
		if err := k.Volume.Probe(); err != nil {
			k.Logger.Error("dead-letter volume fails; this node gives its emitters up", "error", err)
			return
		}
		k.Logger.Info("dead-letter volume works again")
	}
	if err := k.Volume.Maintain(ctx); err != nil {
		k.Logger.Warn("dead-letter volume cannot be looked after", "error", err)
		return
	}
	moved := false
	for _, e := range k.Machine.Emitters() {
		at := place{e.ChannelIndex, e.EmitterIndex}
		if e.Owner != k.NodeID {
			moved = moved || k.rebuilt[at] != 0
			delete(k.rebuilt, at)
			continue
		}
		if k.rebuilt[at] != e.Epoch && k.rebuild(ctx, e) {
			k.rebuilt[at] = e.Epoch
		}
	}
	if now := time.Now(); moved || now.After(k.pruneAt) {
		k.pruneAt = now.Add(pruneEvery)
		k.prune(ctx)
	}
}

// rebuild fills the volume with what a new owner does not hold.
func (k *Keeper) rebuild(ctx context.Context, e fsm.EmitterInfo) bool {
	added, err := k.Volume.Rebuild(ctx, k.records(e))
	if err != nil {
		k.Logger.Warn("dead letters are not all in the volume yet", "channel", e.Channel, "emitter", e.Emitter, "added", added, "error", err)
		return false
	}
	if added > 0 {
		k.Logger.Info("dead letters rebuilt in the volume", "channel", e.Channel, "emitter", e.Emitter, "epoch", e.Epoch, "records", added)
	}
	return true
}

// records are the open dead letters of an emitter as records of its present epoch.
func (k *Keeper) records(e fsm.EmitterInfo) iter.Seq2[dlq.Record, error] {
	l := &letters{info: e, nodeID: k.NodeID, machine: k.Machine, reader: k.Reader, volume: k.Volume, log: k.Logger}
	return func(yield func(dlq.Record, error) bool) {
		l.each(func(d fsm.DeadLetter) bool {
			ev, _, err := eventAt(k.Reader, d.ChannelIndex, d.Position)
			if err != nil {
				return yield(dlq.Record{}, err)
			}
			r := recordOf(&d, e)
			r.Event = ev
			return yield(r, nil)
		})
	}
}

// recordOf is what the state machine knows of a dead letter; the answers of the destination stayed with the owner before.
func recordOf(d *fsm.DeadLetter, e fsm.EmitterInfo) dlq.Record {
	state := dlq.Dead
	if d.State == fsm.StatePoison {
		state = dlq.Poison
	}
	at := time.Unix(0, d.At).UTC()
	return dlq.Record{
		ID: d.ID, State: state, At: at, Channel: d.Channel, Emitter: d.Emitter, ChannelIndex: d.ChannelIndex,
		EmitterIndex: d.EmitterIndex, Seq: d.Seq, Position: d.Position, CompactionID: d.CompactionID, Owner: e.Owner, Epoch: e.Epoch, Class: d.Class.String(),
		Status: int(d.Status), Cause: "rebuilt from the log after a change of owner", Reason: d.Reason,
		RedeliveryCount: int(d.Redeliveries), AttemptCount: d.Attempts, LastFailedAt: at,
		Limits: limitsOf(e.Spec),
	}
}

func limitsOf(e spec.Emitter) dlq.Limits {
	return dlq.Limits{TTL: time.Duration(e.Retry.TTL), MaxAttempts: e.Retry.MaxAttempts, MaxRetries: e.DeadLetter.MaxRetries}
}

// prune removes records that are resolved, and those of emitters that another node owns: its volume holds them once it has
// rebuilt, and until then the state machine does.
func (k *Keeper) prune(ctx context.Context) {
	removed, err := k.Volume.Prune(ctx, func(r *dlq.Record) bool {
		e, ok := k.Machine.Emitter(r.ChannelIndex, r.EmitterIndex)
		if !ok {
			return false
		}
		if e.Owner != k.NodeID {
			return e.Owner == "" // moving: keep it until somebody has it
		}
		if _, open := k.Machine.DeadLetterOf(r.ChannelIndex, r.EmitterIndex, r.Seq); open {
			return true
		}
		return !k.Machine.Resolved(r.ChannelIndex, r.EmitterIndex, r.Seq) // written, and its outcome is on the way
	})
	if err != nil {
		k.Logger.Warn("resolved records stay in the dead-letter volume for now", "error", err)
	}
	if removed > 0 {
		k.Logger.Info("records that are resolved or moved left the dead-letter volume", "records", removed)
	}
}
