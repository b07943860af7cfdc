package fsm

import (
	"slices"

	"penstock/fsm/command"
	"penstock/fsm/internal/wire"
	"penstock/internal/spec"
)

// claim is a replay of one dead letter that is under way. While it stands nobody else may replay or discard the letter: this
// is what keeps one record out of two replays, on any node. It ends with the outcome, with a release, and with the epoch.
type claim struct {
	id        [16]byte
	scheduled bool
	stamp     int64
	row       string
}

// letterRef says where an open dead letter is.
type letterRef struct {
	e   *emitter
	seq uint64
}

// letterAt is the letter of a delivery, open or not; nil when it is none.
func (e *emitter) letterAt(seq uint64) (*deadRun, *letter) {
	i := e.lettersAt(seq) - 1
	if i < 0 {
		return nil, nil
	}
	d := e.letters[i]
	if at := seq - d.first; at < uint64(len(d.letters)) {
		return d, &d.letters[at]
	}
	return nil, nil
}

// openLetter is the open letter of a delivery, and otherwise what it is.
func (e *emitter) openLetter(seq uint64) (*deadRun, *letter, command.LetterState) {
	d, l := e.letterAt(seq)
	switch {
	case l != nil && !l.closed:
		return d, l, command.LetterDone
	case seq > e.start && seq <= e.ch.seq && e.has(seq):
		return nil, nil, command.LetterResolved
	}
	return nil, nil, command.LetterNotFound
}

// claimLetters gives the owner the right to replay dead letters.
func (s *state) claimLetters(c command.ReplayClaim) command.LettersResult {
	e := s.emitter(c.ChannelIndex, c.EmitterIndex)
	switch {
	case e == nil:
		return command.LettersResult{Status: command.NoSuchEmitter}
	case e.epoch != c.Epoch || e.owner != c.Node || c.Node == "":
		return command.LettersResult{Status: command.StaleEpoch}
	case c.ID == [16]byte{}:
		return command.LettersResult{Status: command.Malformed}
	case !c.Scheduled && !s.audit.openIntent(c.ID):
		return command.LettersResult{Status: command.NoSuchIntent}
	}
	res := command.LettersResult{Status: command.OK}
	for _, seq := range c.Seqs {
		res.States = append(res.States, s.claimLetter(e, seq, &c))
	}
	return res
}

func (s *state) claimLetter(e *emitter, seq uint64, c *command.ReplayClaim) command.LetterState {
	d, l, state := e.openLetter(seq)
	if state != command.LetterDone {
		return state
	}
	if have := e.claims[seq]; have != nil {
		if have.id == c.ID && have.scheduled == c.Scheduled {
			return command.LetterDone // the same claim again, after an unknown outcome
		}
		return command.LetterInProgress
	}
	switch {
	case e.ch.spec.Semantics == spec.AtMostOnce, d.poison && !c.Force, d.poison && c.Scheduled:
		return command.LetterForbidden
	case c.Scheduled && l.replays >= uint32(max(e.spec.DeadLetter.MaxRetries, 0)):
		return command.LetterExhausted
	}
	k := &claim{id: c.ID, scheduled: c.Scheduled, stamp: s.stamp, row: rowKey(tableClaims, e.ch.index, e.index, seq)}
	e.claims[seq] = k
	s.mark(k.row)
	return command.LetterDone
}

// releaseLetters takes claims back that came to nothing.
func (s *state) releaseLetters(c command.ReplayRelease) command.LettersResult {
	e := s.emitter(c.ChannelIndex, c.EmitterIndex)
	switch {
	case e == nil:
		return command.LettersResult{Status: command.NoSuchEmitter}
	case e.epoch != c.Epoch || e.owner != c.Node || c.Node == "":
		return command.LettersResult{Status: command.StaleEpoch}
	}
	res := command.LettersResult{Status: command.OK}
	for _, seq := range c.Seqs {
		_, _, state := e.openLetter(seq)
		if k := e.claims[seq]; k != nil && k.id == c.ID {
			s.unclaim(e, seq)
		}
		res.States = append(res.States, state)
	}
	return res
}

func (s *state) unclaim(e *emitter, seq uint64) {
	if k := e.claims[seq]; k != nil {
		delete(e.claims, seq)
		s.mark(k.row)
	}
}

// endClaims ends every claim of an emitter because its epoch ended. Whether the old owner's replays arrived nobody knows: the
// letters stay open, and the intents behind them close as unknown (I9).
func (s *state) endClaims(e *emitter, why string) {
	for _, seq := range e.claimed() {
		k := e.claims[seq]
		s.unclaim(e, seq)
		if !k.scheduled {
			s.abandonIntent(k.id, why)
		}
	}
}

// claimed are the claimed sequence numbers, ascending.
func (e *emitter) claimed() []uint64 {
	if len(e.claims) == 0 {
		return nil
	}
	seqs := make([]uint64, 0, len(e.claims))
	for seq := range e.claims {
		seqs = append(seqs, seq)
	}
	slices.Sort(seqs)
	return seqs
}

// discard gives up dead letters for an open intent (P9). What is in a replay stays.
func (s *state) discard(c command.Discard) command.LettersResult {
	e := s.emitter(c.ChannelIndex, c.EmitterIndex)
	switch {
	case e == nil:
		return command.LettersResult{Status: command.NoSuchEmitter}
	case !s.audit.openIntent(c.Intent):
		return command.LettersResult{Status: command.NoSuchIntent}
	}
	res := command.LettersResult{Status: command.OK}
	for _, seq := range c.Seqs {
		_, _, state := e.openLetter(seq)
		if state == command.LetterDone && e.claims[seq] != nil {
			state = command.LetterInProgress
		}
		if state == command.LetterDone {
			s.exhume(e, &command.Outcome{First: seq, Last: seq, Kind: command.Discarded})
		}
		res.States = append(res.States, state)
	}
	if n := len(c.Seqs); n > 0 {
		s.dropCarried(e.ch, c.Seqs[0], c.Seqs[n-1]) // ascending
	}
	s.mark(e.rowProgress)
	return res
}

func (e *emitter) appendClaim(dst []byte, seq uint64) ([]byte, bool) {
	k := e.claims[seq]
	if k == nil {
		return dst, false
	}
	return wire.AppendInt(wire.AppendBool(append(dst, k.id[:]...), k.scheduled), k.stamp), true
}

func readClaim(row string, r *wire.Reader) *claim {
	k := &claim{row: row}
	copy(k.id[:], r.Raw(len(k.id)))
	k.scheduled, k.stamp = r.Bool(), r.Int()
	return k
}
