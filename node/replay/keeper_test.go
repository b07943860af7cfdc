package replay

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/dlq"
	"penstock/event"
	"penstock/fsm"
	"penstock/fsm/command"
	"penstock/internal/spec"
	"penstock/internal/vfs/memfs"
	"penstock/node/internal/testbed"
	"penstock/node/logread"
)

// A compaction of several events of which some became dead letters: a new owner, which has neither the volume nor the memory of the
// one before, rebuilds each under the same id and compaction id, with the event byte for byte (P6, DESIGN 4.18).
func TestAPartOfACompactionIsRebuiltAsItWas(t *testing.T) {
	b := testbed.New(t)
	c := spec.Channel{Name: "c", Semantics: spec.AtLeastOnce, Order: spec.OrderNone, Emitters: []spec.Emitter{{
		Name: "e", Kind: "webhook", Start: "earliest", Webhook: &spec.Webhook{URL: "http://x.example/"}, Compaction: spec.Compaction{Events: 4},
	}}}
	c.ApplyDefaults()
	b.Put(c)
	e := b.Own(b.Emitter("c", "e"), "n1")
	var events []event.Event
	for i := range 4 {
		x := testbed.Event(fmt.Sprint("k", i))
		x.Data = fmt.Appendf(nil, `{"n": %d.10, "s":"\u00e9 "}`, i)
		events = append(events, x)
	}
	batch := b.BatchOf("c", events...)
	index, _ := b.Commit(batch)
	at := func(i uint32) event.Position { return event.Position{Index: index, Ordinal: i} }
	id := b.Machine.CompactionID(e.ChannelIndex, e.EmitterIndex, at(0), at(3))
	var raw [16]byte
	_, err := hex.Decode(raw[:], []byte(id))
	require.NoError(t, err)
	require.Equal(t, command.OK, b.Report(e,
		command.Outcome{First: 1, Last: 1, Kind: command.Delivered},
		command.Outcome{First: 2, Last: 2, Kind: command.Poison, Positions: []event.Position{at(1)}, Compaction: raw},
		command.Outcome{First: 3, Last: 4, Kind: command.Dead, Positions: []event.Position{at(2), at(3)}, Compaction: raw},
	))
	open := b.Machine.DeadLetters("", "", "")
	require.Len(t, open, 3)

	for _, owner := range []string{"n2", "n3"} {
		b.Own(b.Emitter("c", "e"), owner)
		volume, err := dlq.Open("/dlq", dlq.Config{NodeID: owner, FS: memfs.New()})
		require.NoError(t, err)
		k := &Keeper{NodeID: owner, Machine: b.Machine, Reader: logread.New(b.Log, b.Machine, 1<<20), Volume: volume, Logger: slog.New(slog.DiscardHandler)}
		k.Upkeep(context.Background())
		for i, l := range open {
			r, ok, err := volume.Get(l.ID)
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, id, r.CompactionID)
			require.Equal(t, owner, r.Owner)
			require.Equal(t, at(uint32(i+1)), r.Position)
			require.Equal(t, events[i+1].Data, r.Event.Data)
			require.True(t, json.Valid(r.Event.Data))
			require.Equal(t, l.State == fsm.StatePoison, r.State == dlq.Poison)
		}
		found, err := (&letters{info: b.Emitter("c", "e"), machine: b.Machine}).Compaction(context.Background(), id)
		require.NoError(t, err)
		require.Len(t, found, 3, "they are replayed together where the destination tells compactions apart")
		require.NoError(t, volume.Close())
	}
}

// A node that starts knows only what its last checkpoint held. What it does not know of is not gone: the records, and what the
// destination answered then, stay as they are until it has caught up.
func TestRecordsAreLeftAloneUntilTheNodeHasCaughtUp(t *testing.T) {
	b := testbed.New(t)
	volume, err := dlq.Open("/dlq", dlq.Config{NodeID: "n1", FS: memfs.New()})
	require.NoError(t, err)
	defer volume.Close()
	r := dlq.Record{ID: "0123", State: dlq.Dead, ChannelIndex: 7, EmitterIndex: 8, Seq: 1, Owner: "n1", Event: testbed.Event("a")}
	require.NoError(t, volume.Append(t.Context(), []dlq.Record{r}))
	caughtUp := false
	k := &Keeper{
		NodeID: "n1", Machine: b.Machine, Reader: logread.New(b.Log, b.Machine, 1<<20), Volume: volume, Logger: slog.New(slog.DiscardHandler),
		CaughtUp: func() bool { return caughtUp },
	}
	k.Upkeep(t.Context())
	require.True(t, volume.Holds("0123"))
	caughtUp = true
	k.Upkeep(t.Context())
	require.False(t, volume.Holds("0123"), "its emitter is really gone")
}
