package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/fsm/command"
	"penstock/internal/spec"
)

// buried gives an emitter with n dead letters, and poison as the last one.
func (r *rig) buried(n int) EmitterInfo {
	r.put(channelOf("c", fileEmitter("f", 1, 0, 0), fileEmitter("g", 1, 0, 0)))
	ids := make([]string, n+1)
	index := r.send("c", ids...).Index
	e := r.own(r.emitter("c", 0))
	require.Equal(r.t, command.OK, r.report(e,
		command.Outcome{First: 1, Last: uint64(n), Kind: command.Dead, Positions: positions(index, 0, uint32(n))},
		command.Outcome{First: uint64(n) + 1, Last: uint64(n) + 1, Kind: command.Poison, Positions: positions(index, uint32(n), 1)},
	))
	return e
}

func claimOf(e EmitterInfo, id [16]byte, seqs ...uint64) command.ReplayClaim {
	return command.ReplayClaim{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Epoch: e.Epoch, Node: e.Owner, ID: id, Seqs: seqs}
}

const (
	done       = command.LetterDone
	notFound   = command.LetterNotFound
	resolved   = command.LetterResolved
	inProgress = command.LetterInProgress
	exhausted  = command.LetterExhausted
	forbidden  = command.LetterForbidden
)

func TestARecordIsNeverInTwoReplays(t *testing.T) {
	r := newRig(t)
	e := r.buried(4)
	a, b := r.intend(1), r.intend(2)
	require.Equal(t, command.LettersResult{Status: command.OK, States: []command.LetterState{done, done}}, r.letters(claimOf(e, a, 1, 2)))
	require.Equal(t, []command.LetterState{inProgress, done}, r.letters(claimOf(e, b, 2, 3)).States)
	require.Equal(t, []command.LetterState{done, done}, r.letters(claimOf(e, a, 1, 2)).States, "the same claim again is the same claim")
	scheduled := claimOf(e, [16]byte{9}, 1, 4)
	scheduled.Scheduled = true
	require.Equal(t, []command.LetterState{inProgress, done}, r.letters(scheduled).States)
	discard := command.Discard{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Intent: b, Seqs: []uint64{1}}
	require.Equal(t, []command.LetterState{inProgress}, r.letters(discard).States)
	require.Equal(t, dumpOf(t, r.m), dumpOf(t, r.reopen()))

	failed := command.Outcome{First: 1, Last: 1, Kind: command.ReplayFailed, Attempts: 1}
	require.Equal(t, command.OK, r.report(e, failed))
	require.Equal(t, command.OK, r.report(e, failed), "a report that comes twice counts once")
	l, _ := r.m.DeadLetterOf(e.ChannelIndex, e.EmitterIndex, 1)
	require.EqualValues(t, 1, l.Redeliveries)
	require.False(t, l.Claimed)
	require.Equal(t, []command.LetterState{done}, r.letters(claimOf(e, b, 1)).States)

	require.Equal(t, command.OK, r.report(e, command.Outcome{First: 2, Last: 2, Kind: command.Replayed}))
	id := DeadLetterID(e.ChannelIndex, e.EmitterIndex, positions(l.Position.Index, 1, 1)[0])
	require.Equal(t, []command.LetterState{resolved}, r.letters(claimOf(e, a, 2)).States)
	found := r.m.FindLetter(id)
	require.True(t, found.Settled)
	require.Equal(t, command.Replayed, found.Result)
	require.Equal(t, LetterFound{}, r.m.FindLetter("00"))
	require.Equal(t, LetterFound{}, r.m.FindLetter("zz"))

	release := command.ReplayRelease{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Epoch: e.Epoch, Node: e.Owner, ID: b, Seqs: []uint64{3}}
	require.Equal(t, []command.LetterState{done}, r.letters(release).States)
	require.Equal(t, []command.LetterState{done}, r.letters(claimOf(e, a, 3)).States)
	require.Equal(t, []command.LetterState{done}, r.letters(release).States, "not its claim: nothing changes")
	require.Equal(t, []command.LetterState{inProgress}, r.letters(claimOf(e, b, 3)).States)
}

func TestReplayNeedsTheOwnerOfTheEpochAndAnOpenIntent(t *testing.T) { // P9, I9
	r := newRig(t)
	e := r.buried(1)
	require.Equal(t, command.NoSuchIntent, r.letters(claimOf(e, intentID(1), 1)).Status)
	id := r.intend(1)
	stale := e
	stale.Epoch++
	require.Equal(t, command.StaleEpoch, r.letters(claimOf(stale, id, 1)).Status)
	other := e
	other.Owner = "n9"
	require.Equal(t, command.StaleEpoch, r.letters(claimOf(other, id, 1)).Status)
	require.Equal(t, command.OK, r.plain(command.AuditOutcome{ID: id, Result: AuditRejected}))
	require.Equal(t, command.NoSuchIntent, r.letters(claimOf(e, id, 1)).Status, "a closed intent allows nothing")
	require.Equal(t, command.NoSuchIntent,
		r.letters(command.Discard{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Intent: id, Seqs: []uint64{1}}).Status)
	require.Equal(t, command.NoSuchEmitter, r.letters(command.Discard{ChannelIndex: 99, Intent: r.intend(2)}).Status)
	require.EqualValues(t, 1, r.ledger("c")[0].Dead)
}

func TestI9AnEpochChangeEndsClaimsAndClosesTheirIntentsAsUnknown(t *testing.T) {
	r := newRig(t)
	e := r.buried(3)
	id, idle := r.intend(1), r.intend(2)
	r.letters(claimOf(e, id, 1))
	sched := claimOf(e, [16]byte{7}, 2)
	sched.Scheduled = true
	r.letters(sched)
	next := r.own(e)
	rec, _ := r.m.AuditOf(id)
	require.Equal(t, AuditUnknown, rec.Result)
	rec, _ = r.m.AuditOf(idle)
	require.True(t, rec.Open, "it held nothing of this emitter")
	require.Equal(t, command.AlreadyClosed, r.plain(command.AuditOutcome{ID: id, Result: AuditSuccess}))
	require.Equal(t, command.StaleEpoch, r.report(e, command.Outcome{First: 1, Last: 1, Kind: command.Replayed}), "the old owner's replay does not count")
	require.Equal(t, []command.LetterState{done, done}, r.letters(claimOf(next, idle, 1, 2)).States)
	require.Equal(t, dumpOf(t, r.m), dumpOf(t, r.reopen()))
}

func TestMaxRetriesBindsTheScheduleOnly(t *testing.T) { // K16
	r := newRig(t)
	e := r.buried(2)
	limit := e.Spec.DeadLetter.MaxRetries
	require.Equal(t, 5, limit)
	scheduled := func() command.LetterState {
		c := claimOf(e, [16]byte{3}, 1)
		c.Scheduled = true
		return r.letters(c).States[0]
	}
	fail := func() {
		require.Equal(t, command.OK, r.report(e, command.Outcome{First: 1, Last: 1, Kind: command.ReplayFailed, Attempts: 1}))
	}
	for range limit {
		require.Equal(t, done, scheduled())
		fail()
	}
	page, _, _ := r.m.DeadLetterPage(LetterQuery{Replayable: true})
	require.Len(t, page, 1, "at max_retries it is listed no more to the schedule")
	for range 10 {
		require.Equal(t, exhausted, scheduled())
	}
	require.Len(t, r.m.DeadLetters("c", "f", StateDead), 2, "and is still there")
	id := r.intend(1)
	require.Equal(t, []command.LetterState{done}, r.letters(claimOf(e, id, 1)).States, "an operator may")
	fail()
	require.Equal(t, exhausted, scheduled(), "one above the bound")
}

func TestPoisonIsReplayedByForceAndNeverBySchedule(t *testing.T) { // L12
	r := newRig(t)
	e := r.buried(1)
	id := r.intend(1)
	scheduled := claimOf(e, [16]byte{3}, 2)
	scheduled.Scheduled, scheduled.Force = true, true
	require.Equal(t, []command.LetterState{forbidden}, r.letters(scheduled).States)
	require.Equal(t, []command.LetterState{forbidden}, r.letters(claimOf(e, id, 2)).States)
	force := claimOf(e, id, 2, 3)
	force.Force = true
	require.Equal(t, []command.LetterState{done, notFound}, r.letters(force).States)
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: 2, Last: 2, Kind: command.Replayed}))
	require.Equal(t, LedgerRow{Emitter: "f", EmitterIndex: e.EmitterIndex, Accepted: 2, Delivered: 1, Dead: 1}, r.ledger("c")[0])
}

func TestAtMostOnceIsNeverReplayed(t *testing.T) { // L1
	r := newRig(t)
	c := channelOf("c", fileEmitter("f", 1, 0, 0))
	c.Semantics = spec.AtMostOnce
	r.put(c)
	index := r.send("c", "a").Index
	e := r.own(r.emitter("c", 0))
	r.report(e, command.Outcome{First: 1, Last: 1, Kind: command.Poison, Positions: positions(index, 0, 1)})
	force := claimOf(e, r.intend(1), 1)
	force.Force = true
	require.Equal(t, []command.LetterState{forbidden}, r.letters(force).States)
	require.Equal(t, []command.LetterState{done}, r.letters(command.Discard{
		ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Intent: intentID(1), Seqs: []uint64{1},
	}).States)
}

func TestDiscardMovesDeadToDiscardedForAnIntent(t *testing.T) {
	r := newRig(t)
	e := r.buried(2)
	id := r.intend(1)
	got := r.letters(command.Discard{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Intent: id, Seqs: []uint64{1, 3, 9}})
	require.Equal(t, []command.LetterState{done, done, notFound}, got.States)
	row := r.ledger("c")[0]
	require.True(t, row.Balanced())
	require.Equal(t, LedgerRow{Emitter: "f", EmitterIndex: e.EmitterIndex, Accepted: 3, Dead: 1, Discarded: 2}, row)
	again := r.letters(command.Discard{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Intent: id, Seqs: []uint64{1}})
	require.Equal(t, []command.LetterState{resolved}, again.States)
}

func TestRemovingAnEmitterEndsItsClaims(t *testing.T) {
	r := newRig(t)
	e := r.buried(2)
	id := r.intend(1)
	r.letters(claimOf(e, id, 1))
	require.Equal(t, command.OK, r.putWith(command.ChannelPut{Spec: canonical(channelOf("c", fileEmitter("g", 1, 0, 0))), Discard: true}).Status)
	rec, _ := r.m.AuditOf(id)
	require.Equal(t, AuditUnknown, rec.Result)
	require.Empty(t, r.m.mu.open)
	require.Equal(t, dumpOf(t, r.m), dumpOf(t, r.reopen()))
}

func TestDeadLettersComeInPages(t *testing.T) {
	r := newRig(t)
	e := r.buried(7)
	other := r.own(r.emitter("c", 1))
	r.report(other, command.Outcome{First: 1, Last: 2, Kind: command.Dead, Positions: positions(2, 0, 2)})
	var seqs []uint64
	q := LetterQuery{Limit: 3}
	for {
		page, next, more := r.m.DeadLetterPage(q)
		for _, l := range page {
			seqs = append(seqs, l.Seq)
		}
		require.LessOrEqual(t, len(page), 3)
		q.After = next
		if !more {
			break
		}
	}
	require.Equal(t, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 1, 2}, seqs)
	page, _, more := r.m.DeadLetterPage(LetterQuery{Emitter: "f", State: StatePoison})
	require.False(t, more)
	require.Len(t, page, 1)
	require.EqualValues(t, 8, page[0].Seq)
	totals := r.m.LetterTotals()
	require.Len(t, totals, 2)
	require.EqualValues(t, 7, totals[0].Dead)
	require.Equal(t, r.stamp, totals[0].OldestDead)
	_ = e
}

func TestResolvedLettersAreRememberedWithinABound(t *testing.T) {
	r := newRig(t)
	c := channelOf("c", fileEmitter("f", 1, 0, 0))
	c.Dedup.Window = 0
	r.put(c)
	e := r.own(r.emitter("c", 0))
	const batch = 8192
	first := uint64(0)
	for n := range maxSettled/batch + 1 {
		index := r.send("c", make([]string, batch)...).Index
		if n == 0 {
			first = index
		}
		from := uint64(n*batch) + 1
		r.report(e, command.Outcome{First: from, Last: from + batch - 1, Kind: command.Dead, Positions: positions(index, 0, batch)})
		r.report(e, command.Outcome{First: from, Last: from + batch - 1, Kind: command.Replayed})
	}
	require.Equal(t, maxSettled, r.m.mu.settled.size())
	require.Len(t, r.m.mu.settled.byID, maxSettled)
	require.False(t, r.m.FindLetter(DeadLetterID(e.ChannelIndex, e.EmitterIndex, positions(first, 0, 1)[0])).Settled)
	require.Equal(t, dumpOf(t, r.m), dumpOf(t, r.reopen()))
}

func canonical(c spec.Channel) []byte { return c.Canonical() }
