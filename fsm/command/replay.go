package command

import (
	"fmt"

	"penstock/fsm/internal/wire"
)

// ReplayClaim asks for the right to replay dead letters or poison of one emitter: while a letter is claimed nobody else may
// replay or discard it. Only the owner of the epoch may ask; a claim ends with an outcome, a release, or the epoch.
type ReplayClaim struct {
	ChannelIndex, EmitterIndex uint64
	Epoch                      uint64
	Node                       string
	// ID names the claim, so that the same claim may be sent twice. Of a replay that an operator asked for it is the id of the
	// audit intent, which must be open.
	ID [16]byte
	// Scheduled is a replay by the owner itself: it needs no intent, and is bound by max_retries.
	Scheduled bool
	// Force lets poison be replayed too. Operators only.
	Force bool
	Seqs  []uint64 // ascending
}

// ReplayRelease gives claimed letters back without an attempt having been made.
type ReplayRelease struct {
	ChannelIndex, EmitterIndex uint64
	Epoch                      uint64
	Node                       string
	ID                         [16]byte // of the claim
	Seqs                       []uint64 // ascending
}

// Discard gives up dead letters or poison of one emitter, for an audit intent that is open. Any node may ask.
type Discard struct {
	ChannelIndex, EmitterIndex uint64
	Intent                     [16]byte
	Seqs                       []uint64 // ascending
}

// Kind implements Command.
func (ReplayClaim) Kind() Kind   { return KindReplayClaim }
func (ReplayRelease) Kind() Kind { return KindReplayRelease }
func (Discard) Kind() Kind       { return KindDiscard }

// Append implements Command.
func (c ReplayClaim) Append(dst []byte) []byte {
	dst = wire.AppendUint(wire.AppendUint(head(dst, KindReplayClaim), c.ChannelIndex), c.EmitterIndex)
	dst = wire.AppendString(wire.AppendUint(dst, c.Epoch), c.Node)
	dst = wire.AppendBool(wire.AppendBool(append(dst, c.ID[:]...), c.Scheduled), c.Force)
	return appendSeqs(dst, c.Seqs)
}

func decodeReplayClaim(r *wire.Reader) Command {
	c := ReplayClaim{ChannelIndex: r.Uint(), EmitterIndex: r.Uint(), Epoch: r.Uint(), Node: r.String(maxName)}
	copy(c.ID[:], r.Raw(len(c.ID)))
	c.Scheduled, c.Force, c.Seqs = r.Bool(), r.Bool(), readSeqs(r)
	return c
}

// Append implements Command.
func (c ReplayRelease) Append(dst []byte) []byte {
	dst = wire.AppendUint(wire.AppendUint(head(dst, KindReplayRelease), c.ChannelIndex), c.EmitterIndex)
	dst = wire.AppendString(wire.AppendUint(dst, c.Epoch), c.Node)
	return appendSeqs(append(dst, c.ID[:]...), c.Seqs)
}

func decodeReplayRelease(r *wire.Reader) Command {
	c := ReplayRelease{ChannelIndex: r.Uint(), EmitterIndex: r.Uint(), Epoch: r.Uint(), Node: r.String(maxName)}
	copy(c.ID[:], r.Raw(len(c.ID)))
	c.Seqs = readSeqs(r)
	return c
}

// Append implements Command.
func (c Discard) Append(dst []byte) []byte {
	dst = wire.AppendUint(wire.AppendUint(head(dst, KindDiscard), c.ChannelIndex), c.EmitterIndex)
	return appendSeqs(append(dst, c.Intent[:]...), c.Seqs)
}

func decodeDiscard(r *wire.Reader) Command {
	c := Discard{ChannelIndex: r.Uint(), EmitterIndex: r.Uint()}
	copy(c.Intent[:], r.Raw(len(c.Intent)))
	c.Seqs = readSeqs(r)
	return c
}

// appendSeqs appends | count n | { seq - the one before n } ... |. They ascend and none is 0.
func appendSeqs(dst []byte, seqs []uint64) []byte {
	dst = wire.AppendUint(dst, uint64(len(seqs)))
	last := uint64(0)
	for _, s := range seqs {
		dst = wire.AppendUint(dst, s-last)
		last = s
	}
	return dst
}

func readSeqs(r *wire.Reader) []uint64 {
	var seqs []uint64
	last := uint64(0)
	for range r.Count(1) {
		d := r.Uint()
		if d == 0 || last+d < last {
			r.Fail("sequence numbers do not ascend")
			return nil
		}
		last += d
		seqs = append(seqs, last)
	}
	return seqs
}

// LetterState says what a command did with one dead letter. The numbers are part of the format.
type LetterState uint8

// The states.
const (
	LetterDone       LetterState = 1 // claimed, released, discarded
	LetterNotFound   LetterState = 2 // no dead letter, and never was one here
	LetterResolved   LetterState = 3 // was replayed or discarded, or is otherwise resolved
	LetterInProgress LetterState = 4 // in another replay
	LetterExhausted  LetterState = 5 // scheduled only: max_retries is reached
	LetterForbidden  LetterState = 6 // poison without force, or on an at-most-once channel
)

var letterStates = [...]string{
	LetterDone: "done", LetterNotFound: "not_found", LetterResolved: "resolved", LetterInProgress: "in_progress",
	LetterExhausted: "exhausted", LetterForbidden: "forbidden",
}

// String is the state's name.
func (s LetterState) String() string {
	if int(s) < len(letterStates) && letterStates[s] != "" {
		return letterStates[s]
	}
	return "unknown"
}

const resultLetters = 0xB5

// LettersResult answers ReplayClaim, ReplayRelease and Discard: one state per sequence number, in order, when OK.
type LettersResult struct {
	Status Status
	States []LetterState
}

// Append appends | 0xB5 | 1 | status | count n | { state } ... |.
func (r LettersResult) Append(dst []byte) []byte {
	dst = wire.AppendUint(append(dst, resultLetters, version, byte(r.Status)), uint64(len(r.States)))
	for _, s := range r.States {
		dst = append(dst, byte(s))
	}
	return dst
}

// DecodeLettersResult reads the answer to a ReplayClaim, ReplayRelease or Discard.
func DecodeLettersResult(b []byte) (LettersResult, error) {
	r, status, err := openResult(b, resultLetters)
	if err != nil {
		return LettersResult{}, err
	}
	res := LettersResult{Status: status}
	for range r.Count(1) {
		s := LetterState(r.Byte())
		if s < LetterDone || s > LetterForbidden {
			return LettersResult{}, fmt.Errorf("decode result: letter state %d: %w", s, ErrUnknown)
		}
		res.States = append(res.States, s)
	}
	return res, closeResult(&r)
}
