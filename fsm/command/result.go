package command

import (
	"fmt"

	"penstock/event"
	"penstock/fsm/internal/wire"
)

// Status is the answer to a command. The numbers are part of the format. Every status but OK means that the command
// changed nothing, which for a batch is "certainly not committed".
type Status uint8

// The statuses.
const (
	OK                 Status = 1
	StaleSpec          Status = 2  // the batch was validated by another version of the channel's spec: validate again, retry
	NoSuchChannel      Status = 3  // also: the channel was deleted and made anew since
	DedupFull          Status = 4  // max_keys reached and on_full is refuse
	Malformed          Status = 5  // the proposer sent what no proposer should
	StaleEpoch         Status = 6  // another owner, another epoch
	NoSuchEmitter      Status = 7  //
	VersionMismatch    Status = 8  // IfVersion does not hold
	HasDeliveries      Status = 9  // what would go has pending or dead deliveries, and Discard was not said
	NotEnabled         Status = 10 // the command's feature is not enabled
	AlreadyInitialized Status = 11 // the cluster has another id already
	TooMany            Status = 12 // a bound on channels, emitters, source partitions or open audit intents
	NoSuchIntent       Status = 13 // no act without an open audit intent, no outcome without an intent (I9)
	AlreadyClosed      Status = 14 // the intent has another outcome
	NotNeeded          Status = 15 // a carry of events that nobody needs, or that lie elsewhere by now
)

var statusNames = [...]string{
	OK: "ok", StaleSpec: "stale-spec", NoSuchChannel: "no-such-channel", DedupFull: "dedup-full", Malformed: "malformed",
	StaleEpoch: "stale-epoch", NoSuchEmitter: "no-such-emitter", VersionMismatch: "version-mismatch",
	HasDeliveries: "has-deliveries", NotEnabled: "not-enabled", AlreadyInitialized: "already-initialized", TooMany: "too-many",
	NoSuchIntent: "no-such-intent", AlreadyClosed: "already-closed", NotNeeded: "not-needed",
}

// String is the status's name.
func (s Status) String() string {
	if int(s) < len(statusNames) && statusNames[s] != "" {
		return statusNames[s]
	}
	return "unknown"
}

// The results begin with the kind of result and a version. They live as long as one answer travels between two nodes.
const (
	resultBatch    = 0xB1
	resultChannel  = 0xB2
	resultOutcomes = 0xB3
	resultPlain    = 0xB4
)

// BatchResult answers Batch.
type BatchResult struct {
	Status       Status
	Index        uint64 // of the entry
	FirstOrdinal uint32 // of the batch's first event in the entry
	Count        uint32 // events of the batch; Count = Accepted + Duplicates when OK
	Accepted     uint32
	Duplicates   uint32
	Poisoned     uint32 // of the accepted ones: kept, poison at every emitter
	Dups         []Dup  // by ordinal
}

// Dup is one event that was not accepted because its producer id was seen before.
type Dup struct {
	Ordinal  uint32         // in the entry, as of all positions
	Of       event.Position // the first one
	Conflict bool           // its content differs from the first one's
}

// ChannelResult answers ChannelPut and ChannelDelete.
type ChannelResult struct {
	Status  Status
	Index   uint64 // creation index of the channel
	Version uint64 // of its spec
	Changed bool   // false when the very same spec was there already
	Message string // why not
}

// OutcomesResult answers Outcomes.
type OutcomesResult struct{ Status Status }

// PlainResult answers every other command.
type PlainResult struct {
	Status  Status
	Message string
}

// Append appends the result.
//
//	+------+---+--------+-------+---------------+-------+----------+----------+-------+----------------------------+
//	| 0xB1 | 1 | status | index | first ordinal | count | accepted | poisoned | count | duplicates                 |
//	+------+---+--------+-------+---------------+-------+----------+----------+-------+----------------------------+
//	  1      1   1        n       n               n       n          n          n       { ordinal - first ordinal  n,
//	                                                                                     of n n, conflict b } ...
func (r BatchResult) Append(dst []byte) []byte {
	dst = wire.AppendUint(append(dst, resultBatch, version, byte(r.Status)), r.Index)
	dst = wire.AppendUint(dst, uint64(r.FirstOrdinal))
	dst = wire.AppendUint(dst, uint64(r.Count))
	dst = wire.AppendUint(dst, uint64(r.Accepted))
	dst = wire.AppendUint(dst, uint64(r.Poisoned))
	dst = wire.AppendUint(dst, uint64(len(r.Dups)))
	for _, d := range r.Dups {
		dst = wire.AppendUint(dst, uint64(d.Ordinal-r.FirstOrdinal))
		dst = wire.AppendBool(appendPosition(dst, d.Of), d.Conflict)
	}
	return dst
}

// DecodeBatchResult reads the answer to a Batch.
func DecodeBatchResult(b []byte) (BatchResult, error) {
	r, status, err := openResult(b, resultBatch)
	if err != nil {
		return BatchResult{}, err
	}
	res := BatchResult{
		Status: status, Index: r.Uint(), FirstOrdinal: r.Uint32(), Count: r.Uint32(), Accepted: r.Uint32(), Poisoned: r.Uint32(),
	}
	n := r.Count(4)
	for range n {
		res.Dups = append(res.Dups, Dup{Ordinal: res.FirstOrdinal + r.Uint32(), Of: readPosition(&r), Conflict: r.Bool()})
	}
	res.Duplicates = uint32(n)
	return res, closeResult(&r)
}

// Append appends | 0xB2 | 1 | status | index n | version n | changed b | message s |.
func (r ChannelResult) Append(dst []byte) []byte {
	dst = wire.AppendUint(append(dst, resultChannel, version, byte(r.Status)), r.Index)
	dst = wire.AppendBool(wire.AppendUint(dst, r.Version), r.Changed)
	return wire.AppendString(dst, cutText(r.Message, maxText))
}

// DecodeChannelResult reads the answer to a ChannelPut or ChannelDelete.
func DecodeChannelResult(b []byte) (ChannelResult, error) {
	r, status, err := openResult(b, resultChannel)
	if err != nil {
		return ChannelResult{}, err
	}
	res := ChannelResult{Status: status, Index: r.Uint(), Version: r.Uint(), Changed: r.Bool(), Message: r.String(maxText)}
	return res, closeResult(&r)
}

// Append appends | 0xB3 | 1 | status |.
func (r OutcomesResult) Append(dst []byte) []byte {
	return append(dst, resultOutcomes, version, byte(r.Status))
}

// DecodeOutcomesResult reads the answer to an Outcomes.
func DecodeOutcomesResult(b []byte) (OutcomesResult, error) {
	r, status, err := openResult(b, resultOutcomes)
	if err != nil {
		return OutcomesResult{}, err
	}
	return OutcomesResult{Status: status}, closeResult(&r)
}

// Append appends | 0xB4 | 1 | status | message s |.
func (r PlainResult) Append(dst []byte) []byte {
	return wire.AppendString(append(dst, resultPlain, version, byte(r.Status)), cutText(r.Message, maxText))
}

// DecodePlainResult reads the answer to any other command.
func DecodePlainResult(b []byte) (PlainResult, error) {
	r, status, err := openResult(b, resultPlain)
	if err != nil {
		return PlainResult{}, err
	}
	res := PlainResult{Status: status, Message: r.String(maxText)}
	return res, closeResult(&r)
}

func openResult(b []byte, want byte) (wire.Reader, Status, error) {
	if len(b) < 3 || b[0] != want {
		return wire.Reader{}, 0, fmt.Errorf("decode result: %w: %d bytes, want kind 0x%02x", ErrMalformed, len(b), want)
	}
	if b[1] != version {
		return wire.Reader{}, 0, fmt.Errorf("decode result: version %d: %w", b[1], ErrUnknown)
	}
	s := Status(b[2])
	if s < OK || s > NotNeeded {
		return wire.Reader{}, 0, fmt.Errorf("decode result: status %d: %w", b[2], ErrUnknown)
	}
	return wire.NewReader(b[3:]), s, nil
}

func closeResult(r *wire.Reader) error {
	if err := r.Done(); err != nil {
		return fmt.Errorf("decode result: %w", err)
	}
	return nil
}
