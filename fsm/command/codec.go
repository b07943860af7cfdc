package command

import (
	"penstock/event"
	"penstock/fsm/internal/wire"
)

// Every command begins with two bytes:
//
//	+------+---------+----------------------+
//	| kind | version | body, by the kind    |     version is 1 for every kind
//	+------+---------+----------------------+
//
// The bodies, with  n = varint, s = varint length + bytes, w = 8 bytes little-endian, z = zigzag varint, b = 0 or 1:
//
//	cluster-init    | id [16] | key [32] | name s |
//	batch           | an event batch, docs/format/batch.md, up to the end |
//	channel-put     | if_version n | discard b | spec s |
//	channel-delete  | name s | discard b |
//	tick            | |
//	assign          | count n | { channel n | emitter n | node s | if_epoch n } ... |
//	outcomes        | channel n | emitter n | epoch n | node s | count n | outcome ... |        see outcome.go
//	carry           | channel n | first n | old n | spans | event batch s |     see carry.go
//	audit-intent    | id [16] | actor s | action s | reason s | request id s | count n | { target s } ... |
//	audit-outcome   | id [16] | result s | detail s |
//	feature         | level n |
//	emitter-pause   | channel n | emitter n | paused b |
//	replay-claim    | channel n | emitter n | epoch n | node s | id [16] | scheduled b | force b | seqs |
//	replay-release  | channel n | emitter n | epoch n | node s | id [16] | seqs |
//	yield           | index n |
//	discard         | channel n | emitter n | intent [16] | seqs |        seqs: | count n | { seq - the one before n } ... |

func head(dst []byte, k Kind) []byte { return append(dst, byte(k), version) }

var decoders = [...]func(r *wire.Reader) Command{
	KindClusterInit: decodeClusterInit,
	KindBatch:       func(r *wire.Reader) Command { return Batch{Body: r.Rest()} },
	KindChannelPut: func(r *wire.Reader) Command {
		return ChannelPut{IfVersion: r.Uint(), Discard: r.Bool(), Spec: r.Bytes()}
	},
	KindChannelDelete: func(r *wire.Reader) Command {
		return ChannelDelete{Name: r.String(maxName), Discard: r.Bool()}
	},
	KindTick:         func(*wire.Reader) Command { return Tick{} },
	KindAssign:       decodeAssign,
	KindOutcomes:     decodeOutcomes,
	KindCarry:        decodeCarry,
	KindAuditIntent:  decodeAuditIntent,
	KindAuditOutcome: decodeAuditOutcome,
	KindFeature:      func(r *wire.Reader) Command { return Feature{Level: r.Uint()} },
	KindEmitterPause: func(r *wire.Reader) Command {
		return EmitterPause{ChannelIndex: r.Uint(), EmitterIndex: r.Uint(), Paused: r.Bool()}
	},
	KindReplayClaim:   decodeReplayClaim,
	KindReplayRelease: decodeReplayRelease,
	KindDiscard:       decodeDiscard,
	KindYield:         func(r *wire.Reader) Command { return Yield{Index: r.Uint()} },
}

// Append implements Command.
func (c ClusterInit) Append(dst []byte) []byte {
	dst = append(head(dst, KindClusterInit), c.ClusterID[:]...)
	dst = append(dst, c.Key[:]...)
	return wire.AppendString(dst, c.Name)
}

func decodeClusterInit(r *wire.Reader) Command {
	var c ClusterInit
	copy(c.ClusterID[:], r.Raw(len(c.ClusterID)))
	copy(c.Key[:], r.Raw(len(c.Key)))
	c.Name = r.String(maxName)
	return c
}

// Append implements Command.
func (c Batch) Append(dst []byte) []byte { return append(head(dst, KindBatch), c.Body...) }

// Append implements Command.
func (c ChannelPut) Append(dst []byte) []byte {
	dst = wire.AppendUint(head(dst, KindChannelPut), c.IfVersion)
	dst = wire.AppendBool(dst, c.Discard)
	return wire.AppendBytes(dst, c.Spec)
}

// Append implements Command.
func (c ChannelDelete) Append(dst []byte) []byte {
	return wire.AppendBool(wire.AppendString(head(dst, KindChannelDelete), c.Name), c.Discard)
}

// Append implements Command.
func (Tick) Append(dst []byte) []byte { return head(dst, KindTick) }

// Append implements Command.
func (c Assign) Append(dst []byte) []byte {
	dst = wire.AppendUint(head(dst, KindAssign), uint64(len(c.Items)))
	for _, a := range c.Items {
		dst = wire.AppendUint(dst, a.ChannelIndex)
		dst = wire.AppendUint(dst, a.EmitterIndex)
		dst = wire.AppendString(dst, a.Node)
		dst = wire.AppendUint(dst, a.IfEpoch)
	}
	return dst
}

func decodeAssign(r *wire.Reader) Command {
	var c Assign
	for range r.Count(4) {
		c.Items = append(c.Items, Assignment{
			ChannelIndex: r.Uint(), EmitterIndex: r.Uint(), Node: r.String(maxName), IfEpoch: r.Uint(),
		})
	}
	return c
}

// Append implements Command.
func (c AuditIntent) Append(dst []byte) []byte {
	dst = append(head(dst, KindAuditIntent), c.ID[:]...)
	for _, s := range [...]string{c.Actor, c.Action, c.Reason, c.RequestID} {
		dst = wire.AppendString(dst, cutText(s, maxText))
	}
	dst = wire.AppendUint(dst, uint64(len(c.Targets)))
	for _, t := range c.Targets {
		dst = wire.AppendString(dst, cutText(t, maxText))
	}
	return dst
}

func decodeAuditIntent(r *wire.Reader) Command {
	var c AuditIntent
	copy(c.ID[:], r.Raw(len(c.ID)))
	c.Actor, c.Action, c.Reason, c.RequestID = r.String(maxText), r.String(maxText), r.String(maxText), r.String(maxText)
	for range r.Count(1) {
		c.Targets = append(c.Targets, r.String(maxText))
	}
	return c
}

// Append implements Command.
func (c AuditOutcome) Append(dst []byte) []byte {
	dst = append(head(dst, KindAuditOutcome), c.ID[:]...)
	return wire.AppendString(wire.AppendString(dst, c.Result), cutText(c.Detail, maxText))
}

func decodeAuditOutcome(r *wire.Reader) Command {
	var c AuditOutcome
	copy(c.ID[:], r.Raw(len(c.ID)))
	c.Result, c.Detail = r.String(maxText), r.String(maxText)
	return c
}

// Append implements Command.
func (c Feature) Append(dst []byte) []byte { return wire.AppendUint(head(dst, KindFeature), c.Level) }

// Append implements Command.
func (c EmitterPause) Append(dst []byte) []byte {
	dst = wire.AppendUint(head(dst, KindEmitterPause), c.ChannelIndex)
	return wire.AppendBool(wire.AppendUint(dst, c.EmitterIndex), c.Paused)
}

func appendPosition(dst []byte, p event.Position) []byte {
	return wire.AppendUint(wire.AppendUint(dst, p.Index), uint64(p.Ordinal))
}

func readPosition(r *wire.Reader) event.Position {
	return event.Position{Index: r.Uint(), Ordinal: r.Uint32()}
}
