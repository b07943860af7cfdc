package fsm

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/event"
	"penstock/fsm/command"
	"penstock/internal/spec"
)

func (r *rig) runs(e EmitterInfo) []Run { return r.m.Runs(e.ChannelIndex, e.EmitterIndex, 0, 1000) }

func TestRunsAreCutByEventsBytesAndLinger(t *testing.T) { // I6
	r := newRig(t)
	one := int(batchEventBytes(t))
	r.put(channelOf("c",
		fileEmitter("events", 3, 0, spec.Duration(10*second)),
		fileEmitter("bytes", 100, spec.Size(2*one+one/2), spec.Duration(10*second)),
		fileEmitter("batch", 100, 0, 0),
		fileEmitter("single", 1, 0, 0),
	))
	r.send("c", "a", "b")
	r.send("c", "c", "d", "e")
	require.Equal(t, []Run{{1, 3}}, r.runs(r.emitter("c", 0)))
	require.Equal(t, []Run{{1, 2}, {3, 4}}, r.runs(r.emitter("c", 1)))
	require.Equal(t, []Run{{1, 2}, {3, 5}}, r.runs(r.emitter("c", 2)), "linger 0 waits for nothing beyond the batch")
	require.Equal(t, []Run{{1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}}, r.runs(r.emitter("c", 3)))

	require.False(t, r.m.TickDue(r.stamp+10*second-1))
	require.True(t, r.m.TickDue(r.stamp+10*second))
	r.apply(command.Tick{})
	require.Equal(t, []Run{{1, 3}}, r.runs(r.emitter("c", 0)), "a tick before the linger cuts nothing")
	r.stamp += 10 * second
	r.apply(command.Tick{})
	require.Equal(t, []Run{{1, 3}, {4, 5}}, r.runs(r.emitter("c", 0)))
	require.False(t, r.m.TickDue(r.stamp+1000*second))

	r.send("c", "f")
	r.stamp += 11 * second
	r.send("c", "g")
	require.Equal(t, []Run{{1, 3}, {4, 5}, {6, 6}}, r.runs(r.emitter("c", 0)), "an event does not join a run past its linger")
}

// batchEventBytes is the encoded length of an event with an id of one letter.
func batchEventBytes(t *testing.T) uint32 {
	b, err := event.DecodeBatch(batchOf(t, 1, 1, nil, "a").Body)
	require.NoError(t, err)
	return b.Envelope(0).Length
}

func TestPutIsIdempotentAndAChangeCutsTheOpenRun(t *testing.T) {
	r := newRig(t)
	c := channelOf("c", fileEmitter("f", 10, 0, spec.Duration(60*second)))
	first := r.put(c)
	require.True(t, first.Changed)
	e := r.own(r.emitter("c", 0))
	r.send("c", "a", "b")
	again := r.put(c)
	require.Equal(t, command.ChannelResult{Status: command.OK, Index: first.Index, Version: 1}, again)
	require.Empty(t, r.runs(e))

	c.Retention.Keep = spec.Duration(5 * second)
	res := r.put(c)
	require.EqualValues(t, 2, res.Version)
	require.Empty(t, r.runs(e), "the emitter itself did not change")
	c.Emitters[0].Compaction.Events = 20
	c.Emitters[0].Kind = "webhook"
	require.EqualValues(t, 3, r.put(c).Version)
	require.Equal(t, []Run{{1, 2}}, r.runs(e))
	now := r.emitter("c", 0)
	require.Equal(t, e.EmitterIndex, now.EmitterIndex)
	require.Equal(t, e.Epoch, now.Epoch)

	require.Equal(t, command.VersionMismatch, r.putWith(command.ChannelPut{Spec: c.Canonical(), IfVersion: 2}).Status)
	require.Equal(t, command.OK, r.putWith(command.ChannelPut{Spec: c.Canonical(), IfVersion: 3}).Status)
	require.Equal(t, command.Malformed, r.putWith(command.ChannelPut{Spec: []byte(`{"name":`)}).Status)
}

func TestRemovalNeedsDiscardWhileAnythingIsOpen(t *testing.T) {
	r := newRig(t)
	c := channelOf("c", fileEmitter("f", 1, 0, 0), fileEmitter("g", 1, 0, 0))
	r.put(c)
	r.send("c", "a", "b")
	e := r.own(r.emitter("c", 0))
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: 1, Last: 1, Kind: command.Dead, Positions: positions(2, 0, 1)}))
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: 2, Last: 2, Kind: command.Delivered}))

	without := channelOf("c", fileEmitter("g", 1, 0, 0))
	res := r.put(without)
	require.Equal(t, command.HasDeliveries, res.Status)
	require.Contains(t, res.Message, "emitter f has 0 pending, 1 dead")
	res, err := command.DecodeChannelResult(r.apply(command.ChannelDelete{Name: "c"})[0])
	require.NoError(t, err)
	require.Equal(t, command.HasDeliveries, res.Status)

	require.Equal(t, command.OK, r.putWith(command.ChannelPut{Spec: without.Canonical(), Discard: true}).Status)
	rows := r.ledger("c")
	require.Len(t, rows, 2)
	require.Equal(t, LedgerRow{Emitter: "f", EmitterIndex: e.EmitterIndex, Accepted: 2, Delivered: 1, Discarded: 1, Removed: true}, rows[1])
	require.True(t, rows[1].Balanced())
	require.Empty(t, r.m.DeadLetters("", "", ""))
	require.Equal(t, command.NoSuchEmitter, r.report(e, command.Outcome{First: 1, Last: 1, Kind: command.Delivered}))

	r.put(c) // the same name again is another emitter
	require.NotEqual(t, e.EmitterIndex, r.emitter("c", 0).EmitterIndex)
	require.EqualValues(t, 0, r.ledger("c")[0].Accepted)

	res, err = command.DecodeChannelResult(r.apply(command.ChannelDelete{Name: "c", Discard: true})[0])
	require.NoError(t, err)
	require.Equal(t, command.OK, res.Status)
	_, ok := r.m.Channel("c")
	require.False(t, ok)
	require.Equal(t, dumpOf(t, r.reopen()), dumpOf(t, r.m))
	again := r.put(c)
	require.Greater(t, again.Index, res.Index, "a channel made anew has another creation index")
}

func TestOnlyTheOwnerOfTheEpochReports(t *testing.T) {
	r := newRig(t)
	r.put(channelOf("c", fileEmitter("f", 1, 0, 0)))
	r.send("c", "a")
	delivered := command.Outcome{First: 1, Last: 1, Kind: command.Delivered}
	nobody := r.emitter("c", 0)
	require.Equal(t, command.StaleEpoch, r.report(nobody, delivered))
	first := r.own(nobody)
	require.EqualValues(t, 1, first.Epoch)
	r.own(nobody) // the epoch is no longer 0: refused
	require.EqualValues(t, 1, r.emitter("c", 0).Epoch)
	second := r.own(first)
	require.EqualValues(t, 2, second.Epoch)
	require.Equal(t, command.StaleEpoch, r.report(first, delivered))
	other := second
	other.Owner = "n2"
	require.Equal(t, command.StaleEpoch, r.report(other, delivered))
	require.Equal(t, command.OK, r.report(second, delivered))
}

func TestWhatWasSaidFirstStays(t *testing.T) {
	r := newRig(t)
	r.put(channelOf("c", fileEmitter("f", 3, 0, 0)))
	r.send("c", "a", "b", "c")
	e := r.own(r.emitter("c", 0))
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: 2, Last: 2, Kind: command.Poison, Positions: positions(2, 1, 1)}))
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: 1, Last: 3, Kind: command.Delivered}))
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: 1, Last: 3, Kind: command.Dead, Positions: positions(2, 0, 3)}))
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: 1, Last: 3, Kind: command.Lost}))
	require.Equal(t, LedgerRow{Emitter: "f", EmitterIndex: e.EmitterIndex, Accepted: 3, Delivered: 2, Poison: 1}, r.ledger("c")[0])
}

func TestReportsOutOfFormChangeNothing(t *testing.T) {
	r := newRig(t)
	r.put(channelOf("c", fileEmitter("f", 1, 0, 0), fileEmitter("g", 10, 0, spec.Duration(second))))
	r.send("c", "a", "b")
	e := r.own(r.emitter("c", 0))
	good := command.Outcome{First: 1, Last: 1, Kind: command.Delivered}
	for name, bad := range map[string]command.Outcome{
		"of no delivery":          {First: 0, Last: 0, Kind: command.Delivered},
		"beyond the tip":          {First: 3, Last: 3, Kind: command.Delivered},
		"ends beyond the tip":     {First: 2, Last: 3, Kind: command.Delivered},
		"dead without a position": {First: 2, Last: 2, Kind: command.Dead},
		"positions in disorder":   {First: 1, Last: 2, Kind: command.Dead, Positions: []event.Position{{Index: 2, Ordinal: 1}, {Index: 2}}},
		"positions of a success":  {First: 1, Last: 1, Kind: command.Delivered, Positions: positions(2, 0, 1)},
	} {
		require.Equal(t, command.Malformed, r.report(e, good, bad), name)
	}
	open := r.own(r.emitter("c", 1))
	require.Equal(t, command.Malformed, r.report(open, good), "the run is not closed")
	require.EqualValues(t, 2, r.ledger("c")[0].Pending)
}

func TestTheWindowBoundsWhatMayBeReported(t *testing.T) {
	r := newRig(t)
	c := channelOf("c", fileEmitter("f", 1, 0, 0))
	c.Dedup.Window = 0
	r.put(c)
	ids := make([]string, 10_000)
	for range 7 {
		r.send("c", ids...)
	}
	e := r.own(r.emitter("c", 0))
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: Window, Last: Window, Kind: command.Delivered}))
	require.Equal(t, command.Malformed, r.report(e, command.Outcome{First: Window + 1, Last: Window + 1, Kind: command.Delivered}))
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: 1, Last: 1, Kind: command.Delivered}))
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: Window + 1, Last: Window + 1, Kind: command.Delivered}))
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: 2, Last: Window - 1, Kind: command.Delivered}))
	e = r.emitter("c", 0)
	require.EqualValues(t, Window+1, e.LowWater)
	s := r.m.mu.state.emitter(e.ChannelIndex, e.EmitterIndex)
	require.Empty(t, s.blocks, "blocks that are used up go")
	require.Len(t, s.runs.chunks, 1)
	require.Equal(t, []runPair{{1, 70_000}}, s.runs.chunks[0].pairs, "a backlog of single events is one pair")
}

func TestAttemptsAreRememberedUntilTheRunIsResolved(t *testing.T) {
	r := newRig(t)
	r.put(channelOf("c", fileEmitter("f", 3, 0, 0)))
	r.send("c", "a", "b", "c")
	e := r.own(r.emitter("c", 0))
	failed := func(at int64, status uint16) command.Outcome {
		return command.Outcome{First: 1, Last: 3, Kind: command.Failed, Attempts: 2, At: at, Class: command.ClassTransient, Status: status, Reason: "r"}
	}
	require.Equal(t, command.OK, r.report(e, failed(100, 500), failed(200, 503)))
	require.Equal(t, command.OK, r.report(e, failed(100, 500), failed(200, 503)), "the same reports again, after an unknown outcome, count once")
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: 1, Last: 1, Kind: command.Poison, Positions: positions(2, 0, 1)}))
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: 1, Last: 3, Kind: command.Attempted}))
	info, ok := r.m.Retry(e.ChannelIndex, e.EmitterIndex, 1)
	require.True(t, ok, "a part of the run is still open")
	require.Equal(t, RetryInfo{
		Attempts: 4, FirstFailed: 100, LastFailed: 200, Class: command.ClassTransient, Status: 503, Reason: "r", Attempted: true,
	}, info)
	require.Equal(t, dumpOf(t, r.m), dumpOf(t, r.reopen()))

	id := r.m.CompactionID(e.ChannelIndex, e.EmitterIndex, event.Position{Index: 2}, event.Position{Index: 2, Ordinal: 2})
	dead := command.Outcome{
		First: 2, Last: 3, Kind: command.Dead, Attempts: 1, Class: command.ClassPermanent, Status: 410, Reason: "gone", Positions: positions(2, 1, 2),
	}
	_, err := hex.Decode(dead.Compaction[:], []byte(id))
	require.NoError(t, err)
	require.Equal(t, command.OK, r.report(e, dead))
	_, ok = r.m.Retry(e.ChannelIndex, e.EmitterIndex, 1)
	require.False(t, ok)
	letters := r.m.DeadLetters("c", "f", StateDead)
	require.Len(t, letters, 2)
	require.EqualValues(t, 5, letters[0].Attempts)
	require.Equal(t, id, letters[0].CompactionID, "a part of a compaction knows the whole one's id")
	require.Equal(t, dumpOf(t, r.m), dumpOf(t, r.reopen()))
	require.Equal(t, DeadLetterID(e.ChannelIndex, e.EmitterIndex, event.Position{Index: 2, Ordinal: 1}), letters[0].ID)
	got, ok := r.m.DeadLetterOf(e.ChannelIndex, e.EmitterIndex, 2)
	require.True(t, ok)
	require.Equal(t, letters[0], got)
	_, ok = r.m.DeadLetterOf(e.ChannelIndex, e.EmitterIndex, 4)
	require.False(t, ok)
}

func TestReplayAndDiscardMoveDeadLetters(t *testing.T) {
	r := newRig(t)
	r.put(channelOf("c", fileEmitter("f", 1, 0, 0)))
	r.send("c", "a", "b", "c", "d")
	e := r.own(r.emitter("c", 0))
	r.report(e, command.Outcome{First: 1, Last: 4, Kind: command.Dead, Positions: positions(2, 0, 4)})
	r.report(e,
		command.Outcome{First: 2, Last: 2, Kind: command.Replayed},
		command.Outcome{First: 3, Last: 3, Kind: command.ReplayFailed, Attempts: 1}, // nobody claimed it
		command.Outcome{First: 4, Last: 4, Kind: command.Discarded},
		command.Outcome{First: 2, Last: 2, Kind: command.Discarded}, // is resolved already
	)
	require.Equal(t, LedgerRow{Emitter: "f", EmitterIndex: e.EmitterIndex, Accepted: 4, Delivered: 1, Dead: 2, Discarded: 1}, r.ledger("c")[0])
	letters := r.m.DeadLetters("", "", "")
	require.Len(t, letters, 2)
	require.Zero(t, letters[1].Redeliveries)
	require.Equal(t, dumpOf(t, r.m), dumpOf(t, r.reopen()))
	r.report(e, command.Outcome{First: 1, Last: 4, Kind: command.Discarded})
	require.Empty(t, r.m.DeadLetters("", "", ""))
	require.Equal(t, r.index+1, r.m.Floor())
}

func TestTheFloorWaitsForPendingAndDeadDeliveries(t *testing.T) { // I3
	r := newRig(t)
	r.put(channelOf("c", fileEmitter("f", 1, 0, 0)))
	require.Equal(t, r.index+1, r.m.Floor())
	e := r.own(r.emitter("c", 0))
	a := r.send("c", "a").Index
	b := r.send("c", "b").Index
	require.Equal(t, a, r.m.Floor())
	r.report(e, command.Outcome{First: 1, Last: 1, Kind: command.Dead, Positions: positions(a, 0, 1)})
	r.report(e, command.Outcome{First: 2, Last: 2, Kind: command.Dead, Positions: positions(b, 0, 1)})
	require.Equal(t, a, r.m.Floor())
	r.report(e, command.Outcome{First: 1, Last: 1, Kind: command.Discarded})
	require.Equal(t, b, r.m.Floor())
	r.report(e, command.Outcome{First: 2, Last: 2, Kind: command.Replayed})
	require.Equal(t, r.index+1, r.m.Floor())
	c := r.send("c", "c").Index
	require.Equal(t, c, r.m.Floor(), "not the last point: what lies before it may be gone")
	p, ok := r.m.Point(e.ChannelIndex, 3)
	require.True(t, ok)
	require.Equal(t, Point{Seq: 3, Index: c}, p)
}

func TestTheHorizonFollowsKeepAndForgetsRejects(t *testing.T) {
	r := newRig(t)
	c := channelOf("c")
	c.Retention.Keep = spec.Duration(100 * second)
	r.put(c)
	first := r.send("c", "a", "a").Index
	_, ok := r.m.Rejects(first)
	require.True(t, ok)
	r.stamp += 70 * second
	later := r.send("c", "b").Index
	require.LessOrEqual(t, r.m.Horizon(), first)
	r.stamp += 40 * second
	r.apply(command.Tick{})
	require.Equal(t, later, r.m.Horizon(), "what is older than keep is behind it")
	_, ok = r.m.Rejects(first)
	require.False(t, ok)
	r.stamp += 100 * second
	r.apply(command.Tick{})
	require.Equal(t, r.index, r.m.Horizon(), "a quiet channel holds nothing")
}

func TestStartsResolveAtApply(t *testing.T) {
	r := newRig(t)
	r.put(channelOf("c", fileEmitter("keeps", 1, 0, 0)))
	var indexes []uint64
	for i := range 300 {
		indexes = append(indexes, r.send("c", fmt.Sprint(i)).Index)
	}
	early, late, at := fileEmitter("early", 7, 0, 0), fileEmitter("late", 1, 0, 0), fileEmitter("at", 1, 0, 0)
	early.Start, late.Start, at.Start = "earliest", "latest", fmt.Sprint(indexes[200])
	r.put(channelOf("c", fileEmitter("keeps", 1, 0, 0), early, late, at))
	require.EqualValues(t, 0, r.emitter("c", 1).StartSeq)
	require.EqualValues(t, 300, r.emitter("c", 2).StartSeq)
	start := r.emitter("c", 3).StartSeq
	require.LessOrEqual(t, start, uint64(200), "never one too late")
	require.Greater(t, start, uint64(200-pointEvents))
	runs := r.runs(r.emitter("c", 1))
	next := uint64(1)
	for _, run := range runs {
		require.Equal(t, next, run.First)
		require.LessOrEqual(t, run.Last-run.First, uint64(6))
		next = run.Last + 1
	}
	require.EqualValues(t, 301, next)
	for _, row := range r.ledger("c") {
		require.True(t, row.Balanced())
	}
	require.Equal(t, dumpOf(t, r.m), dumpOf(t, r.reopen()))
}

func TestABacklogIsCutByBytesToo(t *testing.T) {
	r := newRig(t)
	r.put(channelOf("c", fileEmitter("keeps", 1, 0, 0)))
	for i := range 300 {
		r.send("c", fmt.Sprintf("%d=%s", i, strings.Repeat("x", 1000)))
	}
	late := fileEmitter("late", 10_000, 10_000, 0)
	late.Start = "earliest"
	r.put(channelOf("c", fileEmitter("keeps", 1, 0, 0), late))
	for _, run := range r.runs(r.emitter("c", 1)) {
		require.LessOrEqual(t, run.Last-run.First+1, uint64(11))
	}
}

func TestPausedIsReplicated(t *testing.T) {
	r := newRig(t)
	r.put(channelOf("c", fileEmitter("f", 1, 0, 0)))
	e := r.emitter("c", 0)
	r.apply(command.EmitterPause{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Paused: true})
	require.True(t, r.emitter("c", 0).Paused)
	res, err := command.DecodePlainResult(r.apply(command.EmitterPause{ChannelIndex: 1, EmitterIndex: 99})[0])
	require.NoError(t, err)
	require.Equal(t, command.NoSuchEmitter, res.Status)
}

func TestReadsAgreeWithOneAnother(t *testing.T) {
	r := newRig(t)
	info := r.put(channelOf("c", fileEmitter("f", 2, 0, 0)))
	first := r.send("c", "a", "b", "c").Index
	e := r.own(r.emitter("c", 0))
	require.NotZero(t, e.UnresolvedBytes)
	run, ok := r.m.RunOf(e.ChannelIndex, e.EmitterIndex, 2)
	require.True(t, ok)
	require.Equal(t, Run{1, 2}, run)
	p, ok := r.m.PointAtIndex(info.Index, first+100)
	require.True(t, ok)
	require.Equal(t, Point{Seq: 1, Index: first}, p)
	_, ok = r.m.PointAtIndex(info.Index, first-1)
	require.False(t, ok)
	balance, ok := r.m.LedgerOf("c")
	require.True(t, ok)
	require.Equal(t, r.index, balance.AppliedIndex)
	require.Equal(t, r.ledger("c")[0], balance.Rows[0].LedgerRow)
	require.Equal(t, "n1", balance.Rows[0].Owner)
	byIndex, ok := r.m.ChannelByIndex(info.Index)
	require.True(t, ok)
	byName, _ := r.m.Channel("c")
	require.Equal(t, byName, byIndex)
	r.report(e, command.Outcome{First: 1, Last: 3, Kind: command.Delivered})
	e, _ = r.m.Emitter(e.ChannelIndex, e.EmitterIndex)
	require.Zero(t, e.UnresolvedBytes)
	require.False(t, r.m.CheckpointDue())
}

func TestOwnersIndexIsThatOfTheLastMove(t *testing.T) {
	r := newRig(t)
	r.put(channelOf("c", fileEmitter("f", 1, 0, 0)))
	r.own(r.emitter("c", 0))
	moved, _ := r.m.Applied()
	require.Equal(t, moved, r.m.OwnersIndex())
	r.send("c", "a")
	require.Equal(t, moved, r.m.OwnersIndex())
	again := r.reopen()
	applied, _ := again.Applied()
	require.GreaterOrEqual(t, again.OwnersIndex(), moved, "a process that begins anew takes its own beginning")
	require.LessOrEqual(t, again.OwnersIndex(), applied)
}
