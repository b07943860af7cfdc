package command

import (
	"fmt"

	"penstock/event"
	"penstock/fsm/internal/wire"
)

// Command is one command. Append appends [kind][version][body].
type Command interface {
	Kind() Kind
	Append(dst []byte) []byte
}

// ClusterInit is the first command of a cluster: its identity and the key of its dedup hashes. The first one wins.
type ClusterInit struct {
	ClusterID [16]byte
	Key       event.HashKey
	Name      string
}

// Batch is the events of one ingest request; Body is the event batch of docs/format/batch.md.
type Batch struct{ Body []byte }

// ChannelPut creates or changes a channel. Spec is the canonical JSON of a spec that the proposing node validated.
type ChannelPut struct {
	Spec      []byte
	IfVersion uint64 // the version it must replace; 0 = any, or none
	Discard   bool   // emitters that go away may have pending or dead deliveries; those become discarded
}

// ChannelDelete removes a channel.
type ChannelDelete struct {
	Name    string
	Discard bool
}

// Tick carries nothing but the stamp of its entry, so that open runs past their linger are closed.
type Tick struct{}

// Assign gives emitters to nodes. Each item counts alone; each raises the epoch.
type Assign struct{ Items []Assignment }

// Assignment gives one emitter to Node ("" = to nobody) if its epoch is still IfEpoch.
type Assignment struct {
	ChannelIndex, EmitterIndex uint64
	Node                       string
	IfEpoch                    uint64
}

// Outcomes reports what the owner of an emitter did, under its epoch.
type Outcomes struct {
	ChannelIndex, EmitterIndex uint64
	Epoch                      uint64
	Node                       string
	Outcomes                   []Outcome
}

// Carry appends old needed events again so that the log behind them can go (DESIGN 4.8): the events of one channel with the
// sequence numbers from First on, without gaps. It changes where their bytes are, and nothing else: not their positions, ids,
// order, nor what becomes of them.
type Carry struct {
	ChannelIndex uint64
	First        uint64 // sequence number
	Old          uint64 // entry of the carry that holds their bytes, 0: where they were committed; ignored if that is no longer so
	Spans        []Span // where they were committed
	Body         []byte // an event batch of just these events
}

// Span is the positions of Count events with consecutive ordinals in one entry.
type Span struct {
	event.Position
	Count uint32
	Stamp int64 // of the entry
}

// CountSpans is the number of events in spans.
func CountSpans(spans []Span) (n uint64) {
	for i := range spans {
		n += uint64(spans[i].Count)
	}
	return n
}

// Yield raises the horizon: what lies below Index and nobody needs is no longer readable, whatever retention.keep says. It
// is what a node proposes whose disk or log is nearly full.
type Yield struct{ Index uint64 }

// AuditIntent is an operator's act before it is dispatched (I9, P9). The id is the proposer's; the same one again changes
// nothing.
type AuditIntent struct {
	ID                               [16]byte
	Actor, Action, Reason, RequestID string
	Targets                          []string
}

// AuditOutcome closes an intent. The first one stays.
type AuditOutcome struct {
	ID     [16]byte
	Result string // success | failure | rejected | timeout | unknown
	Detail string
}

// Feature raises the feature level of the cluster.
type Feature struct{ Level uint64 }

// EmitterPause stops or resumes the attempts of an emitter; deliveries stay pending.
type EmitterPause struct {
	ChannelIndex, EmitterIndex uint64
	Paused                     bool
}

// Kind implements Command.
func (ClusterInit) Kind() Kind   { return KindClusterInit }
func (Batch) Kind() Kind         { return KindBatch }
func (ChannelPut) Kind() Kind    { return KindChannelPut }
func (ChannelDelete) Kind() Kind { return KindChannelDelete }
func (Tick) Kind() Kind          { return KindTick }
func (Assign) Kind() Kind        { return KindAssign }
func (Outcomes) Kind() Kind      { return KindOutcomes }
func (Carry) Kind() Kind         { return KindCarry }
func (AuditIntent) Kind() Kind   { return KindAuditIntent }
func (AuditOutcome) Kind() Kind  { return KindAuditOutcome }
func (Feature) Kind() Kind       { return KindFeature }
func (EmitterPause) Kind() Kind  { return KindEmitterPause }
func (Yield) Kind() Kind         { return KindYield }

// version is the version byte that this binary writes, and the only one it reads, of every kind.
const version = 1

// Encode gives the bytes of one command.
func Encode(c Command) []byte { return c.Append(nil) }

// EncodeBatch gives the batch command around an encoded event batch.
func EncodeBatch(body []byte) []byte { return Batch{Body: body}.Append(make([]byte, 0, len(body)+2)) }

// Split reads kind and version and gives the body, which aliases b. ErrUnknown when either is unknown.
func Split(b []byte) (Kind, []byte, error) {
	if len(b) < 2 {
		return 0, nil, fmt.Errorf("decode command: %w: %d bytes", ErrMalformed, len(b))
	}
	k := Kind(b[0])
	if k < KindClusterInit || k > lastKind || b[1] != version {
		return 0, nil, fmt.Errorf("decode command: kind %d version %d: %w", b[0], b[1], ErrUnknown)
	}
	return k, b[2:], nil
}

// Decode reads one command. Byte slices in it alias b.
func Decode(b []byte) (Command, error) {
	k, body, err := Split(b)
	if err != nil {
		return nil, err
	}
	r := wire.NewReader(body)
	c := decoders[k](&r)
	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("decode %s: %w", k, err)
	}
	return c, nil
}
