// Package command is what goes through the log: the entry frame, the commands inside it, and the results that the state
// machine answers them with. The formats are described in docs/format/command.md.
//
// It promises that a format once written is read for ever: kinds have fixed numbers, every kind carries its own version
// byte, and each (kind, version) has a committed fixture in testdata/format. A kind or version that this binary does not
// know is ErrUnknown, and whoever applies the log ends the process on it: skipping a command would make nodes differ
// (DESIGN 4.16). What a given version accepts never changes either; a change of it is a new version, proposed only once
// the cluster's feature level allows it.
//
// Decoders never panic, never allocate for more than their input can hold, and alias the input for byte slices. The package
// does no I/O, reads no clock and keeps no state.
package command

import (
	"errors"

	"penstock/fsm/internal/wire"
)

// ErrUnknown is a kind, or a version of a kind, that this binary does not know. The process must end.
var ErrUnknown = errors.New("unknown command kind or version: this binary is too old for the log")

// ErrMalformed is the root of every other decoding error.
var ErrMalformed = wire.ErrCorrupt

// MaxReason bounds the text of an outcome, in bytes. Longer text is cut when it is encoded, at a rune boundary.
const MaxReason = 256

// Bounds of names and other short texts in commands, in bytes. Decoding refuses longer ones.
const (
	maxName = 256
	maxText = 1024
)

// Kind says what a command is.
type Kind uint8

// The kinds. The numbers are part of the format and never change; 0 is never valid, so that zeroed bytes are no command.
const (
	KindClusterInit   Kind = 1
	KindBatch         Kind = 2
	KindChannelPut    Kind = 3
	KindChannelDelete Kind = 4
	KindTick          Kind = 5
	KindAssign        Kind = 6
	KindOutcomes      Kind = 7
	KindCarry         Kind = 8
	KindAuditIntent   Kind = 9
	KindAuditOutcome  Kind = 10
	KindFeature       Kind = 11
	KindEmitterPause  Kind = 12
	KindReplayClaim   Kind = 13
	KindReplayRelease Kind = 14
	KindDiscard       Kind = 15
	KindYield         Kind = 16

	lastKind = KindYield
)

var kindNames = [...]string{
	KindClusterInit: "cluster-init", KindBatch: "batch", KindChannelPut: "channel-put", KindChannelDelete: "channel-delete",
	KindTick: "tick", KindAssign: "assign", KindOutcomes: "outcomes", KindCarry: "carry", KindAuditIntent: "audit-intent",
	KindAuditOutcome: "audit-outcome", KindFeature: "feature", KindEmitterPause: "emitter-pause",
	KindReplayClaim: "replay-claim", KindReplayRelease: "replay-release", KindDiscard: "discard", KindYield: "yield",
}

// String is the kind's name, as it stands in docs/format/command.md.
func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return "unknown"
}
