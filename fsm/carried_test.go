package fsm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/event"
	"penstock/fsm/command"
	"penstock/internal/spec"
)

// carryOf is a carry of the events first..last of a channel, all of which lie in one entry.
func (r *rig) carryOf(channel string, first, last, old uint64, at []event.Position) command.Carry {
	c, _ := r.m.Channel(channel)
	x := command.Carry{ChannelIndex: c.Index, First: first, Old: old}
	for seq := first; seq <= last; seq++ {
		x.Spans = append(x.Spans, command.Span{Position: at[seq-1], Count: 1, Stamp: r.stamp})
	}
	x.Body = batchOf(r.t, c.Index, c.Version, nil, make([]string, last-first+1)...).Body
	return x
}

func (r *rig) carry(x command.Carry) command.Status {
	res, err := command.DecodePlainResult(r.apply(x)[0])
	require.NoError(r.t, err)
	return res.Status
}

// carryRig is a channel with four events in two entries for an emitter that reports on nothing, and another channel.
func carryRig(t *testing.T) (r *rig, e EmitterInfo, at []event.Position) {
	r = newRig(t)
	c := channelOf("c", fileEmitter("a", 2, 0, 0))
	c.Retention.Keep = 0
	r.put(c)
	other := channelOf("other")
	other.Retention.Keep = 0
	r.put(other)
	e = r.own(r.emitter("c", 0))
	for range 2 {
		res := r.send("c", "", "")
		at = append(at, positions(res.Index, 0, 2)...)
	}
	return r, e, at
}

func TestTheFloorGoesToWhereTheBytesWereCarried(t *testing.T) {
	r, e, at := carryRig(t)
	require.Equal(t, at[0].Index, r.m.Floor())
	require.Equal(t, []Needed{{ChannelIndex: e.ChannelIndex, First: 1, Last: 4}}, r.m.NeededBelow(r.index+1, 10))
	require.Equal(t, command.OK, r.carry(r.carryOf("c", 1, 2, 0, at)))
	first := r.index
	require.Equal(t, at[0].Index, r.m.Floor(), "the second entry is still needed, and this is the last point before it")
	require.Equal(t, command.OK, r.carry(r.carryOf("c", 3, 4, 0, at)))
	require.Equal(t, first, r.m.Floor())
	require.Len(t, r.m.NeededBelow(first, 10), 0)
	require.Len(t, r.m.NeededBelow(r.index, 10), 1)

	// New events are needed where they are committed; what was carried is carried again when it is in the way.
	r.send("c", "", "")
	require.Equal(t, command.OK, r.carry(r.carryOf("c", 1, 2, first, at)))
	require.Equal(t, first+1, r.m.Floor())

	// Delivered, it goes; the ledger never noticed anything.
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: 1, Last: 2, Kind: command.Delivered}))
	require.EqualValues(t, 2, r.m.CarriedTotal().Events)
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: 3, Last: 4, Kind: command.Delivered}))
	require.Zero(t, r.m.CarriedTotal())
	require.Equal(t, LedgerRow{Emitter: "a", EmitterIndex: e.EmitterIndex, Accepted: 6, Delivered: 4, Pending: 2}, r.ledger("c")[0])
	require.Equal(t, dumpOf(t, r.m), dumpOf(t, r.reopen()))
}

func TestACarryOfWhatLiesElsewhereOrNobodyNeedsIsIgnored(t *testing.T) {
	r, e, at := carryRig(t)
	require.Equal(t, command.NotNeeded, r.carry(r.carryOf("c", 1, 2, at[0].Index, at)), "it was not carried before")
	require.Equal(t, command.OK, r.carry(r.carryOf("c", 1, 2, 0, at)))
	carried := r.index
	require.Equal(t, command.NotNeeded, r.carry(r.carryOf("c", 1, 2, 0, at)), "the same again, of another leader")
	require.Equal(t, command.NotNeeded, r.carry(r.carryOf("c", 1, 3, carried, at)), "one of them lies elsewhere")
	require.Equal(t, command.NotNeeded, r.carry(r.carryOf("c", 2, 3, 0, at)), "one of them lies elsewhere")
	wrong := r.carryOf("c", 1, 2, carried, at)
	wrong.Spans[1].Ordinal = 7
	require.Equal(t, command.NotNeeded, r.carry(wrong), "other positions")
	require.Equal(t, command.Malformed, r.carry(r.carryOf("other", 1, 1, 0, at)), "of events that were never accepted")
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: 1, Last: 4, Kind: command.Delivered}))
	require.Equal(t, command.NotNeeded, r.carry(r.carryOf("c", 3, 4, 0, at)))
	require.Zero(t, r.m.CarriedTotal())
	require.Equal(t, r.index+1, r.m.Floor())
}

// A compaction of which a part is delivered, and a part dead, keeps its id: that is made of its first and last event.
func TestAPartlyResolvedCompactionIsNeededWhole(t *testing.T) {
	r, e, at := carryRig(t)
	require.Equal(t, command.OK, r.report(e,
		command.Outcome{First: 1, Last: 1, Kind: command.Delivered}, command.Outcome{First: 3, Last: 4, Kind: command.Delivered}))
	require.Equal(t, at[0].Index, r.m.Floor())
	require.Equal(t, []Needed{{ChannelIndex: e.ChannelIndex, First: 1, Last: 2}}, r.m.NeededBelow(r.index+1, 10))
	require.Equal(t, command.OK, r.carry(r.carryOf("c", 1, 2, 0, at)))
	require.Equal(t, r.index, r.m.Floor())
	// A dead letter needs its event and no other.
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: 2, Last: 2, Kind: command.Dead, Positions: at[1:2]}))
	require.Equal(t, []Needed{{ChannelIndex: e.ChannelIndex, First: 2, Last: 2, Location: r.index - 1}}, r.m.NeededBelow(r.index+1, 10))
	require.Equal(t, command.OK, r.carry(r.carryOf("c", 2, 2, r.index-1, at)))
	require.EqualValues(t, 1, r.m.CarriedTotal().Events, "the other half is let go")
	require.Equal(t, r.index, r.m.Floor())
	r.apply(command.AuditIntent{ID: [16]byte{1}, Actor: "ops", Action: "dlq.discard"})
	r.apply(command.Discard{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Intent: [16]byte{1}, Seqs: []uint64{2}})
	require.Zero(t, r.m.CarriedTotal())
	require.Equal(t, r.index+1, r.m.Floor())
}

func TestWhatIsCarriedStaysUntilTheLastEmitterHasItAndGoesWithIt(t *testing.T) {
	r := newRig(t)
	c := channelOf("c", fileEmitter("a", 1, 0, 0), fileEmitter("b", 3, 0, spec.Duration(100*second)))
	r.put(c)
	a := r.own(r.emitter("c", 0))
	at := positions(r.send("c", "", "").Index, 0, 2)
	require.Equal(t, command.OK, r.carry(r.carryOf("c", 1, 2, 0, at)))
	require.Equal(t, command.OK, r.report(a, command.Outcome{First: 1, Last: 2, Kind: command.Delivered}))
	require.EqualValues(t, 2, r.m.CarriedTotal().Events, "b gathers them")
	require.Equal(t, r.index-1, r.m.Floor())
	c = channelOf("c", fileEmitter("a", 1, 0, 0))
	r.putWith(command.ChannelPut{Spec: c.Canonical(), Discard: true})
	require.Zero(t, r.m.CarriedTotal())
	require.Equal(t, r.index+1, r.m.Floor())
	require.Equal(t, dumpOf(t, r.m), dumpOf(t, r.reopen()))
}

// Yield takes what is kept and nothing that is needed, and keep does not bring it back.
func TestYieldRaisesTheHorizonUpToTheFloor(t *testing.T) {
	r := newRig(t)
	c := channelOf("c", fileEmitter("a", 1, 0, 0))
	c.Retention.Keep = spec.Duration(3600 * second)
	r.put(c)
	e := r.own(r.emitter("c", 0))
	first := r.send("c", "").Index
	second := r.send("c", "").Index
	require.Equal(t, command.OK, r.report(e, command.Outcome{First: 1, Last: 1, Kind: command.Delivered}))
	r.stamp += 5e9
	r.apply(command.Tick{})
	require.LessOrEqual(t, r.m.Horizon(), first)
	r.apply(command.Yield{Index: second + 100})
	require.Equal(t, r.m.Floor(), r.m.Horizon(), "what is pending stays")
	horizon := r.m.Horizon()
	r.stamp += 5e9
	r.apply(command.Tick{})
	require.Equal(t, horizon, r.m.Horizon())
}

// TestGoldenSnapshotWithCarriedEventsRestoresForEver is the committed snapshot of the tables that came with carry.
func TestGoldenSnapshotWithCarriedEventsRestoresForEver(t *testing.T) {
	path := filepath.Join("testdata", "format", "v1", "snapshot-carry.bin")
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) && *update {
		r, _, at := carryRig(t)
		require.Equal(t, command.OK, r.carry(r.carryOf("c", 1, 3, 0, at)))
		b = snapshotOf(t, r.m)
		err = os.WriteFile(path, b, 0o644)
	}
	require.NoError(t, err)
	m, err := readSnapshotMachine(b)
	require.NoError(t, err)
	c, ok := m.Channel("c")
	require.True(t, ok)
	got, ok := m.Carried(c.Index, 1)
	require.True(t, ok)
	require.Equal(t, CarriedRun{First: 1, Last: 3, Location: 6, Spans: []command.Span{
		{Position: event.Position{Index: 4}, Count: 1, Stamp: 1_000 * second},
		{Position: event.Position{Index: 4, Ordinal: 1}, Count: 1, Stamp: 1_000 * second},
		{Position: event.Position{Index: 5}, Count: 1, Stamp: 1_000 * second},
	}}, got)
	require.EqualValues(t, 4, m.Floor())
	require.Equal(t, b, snapshotOf(t, m), "written again it is the same, byte for byte")
}
