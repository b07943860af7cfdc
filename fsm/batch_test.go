package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/event"
	"penstock/fsm/command"
	"penstock/internal/spec"
)

// Case B11: the same key twice in one batch, once with the same and once with another content; then the batch again.
func TestB11SameKeyTwiceInOneBatchFirstWins(t *testing.T) {
	r := newRig(t)
	r.put(channelOf("c", fileEmitter("f", 1, 0, 0)))
	res := r.send("c", "K1=a", "K2=a", "K1=a", "K3=a", "K2=b")
	require.Equal(t, command.OK, res.Status)
	require.EqualValues(t, 3, res.Accepted)
	require.Equal(t, []command.Dup{
		{Ordinal: 2, Of: event.Position{Index: res.Index, Ordinal: 0}},
		{Ordinal: 4, Of: event.Position{Index: res.Index, Ordinal: 1}, Conflict: true},
	}, res.Dups)
	rej, ok := r.m.Rejects(res.Index)
	require.True(t, ok)
	require.False(t, rej.Batch(0))
	for ordinal, want := range []bool{false, false, true, false, true} {
		require.Equal(t, want, rej.Event(uint32(ordinal)), "ordinal %d", ordinal)
	}

	again := r.send("c", "K1=a", "K2=a", "K1=a", "K3=a", "K2=b")
	require.Equal(t, command.OK, again.Status)
	require.Zero(t, again.Accepted)
	require.EqualValues(t, 5, again.Duplicates)
	require.Equal(t, event.Position{Index: res.Index, Ordinal: 3}, again.Dups[3].Of)
	require.True(t, again.Dups[4].Conflict)

	c, _ := r.m.Channel("c")
	require.EqualValues(t, 3, c.Accepted)
	require.EqualValues(t, 7, c.Duplicates)
	require.EqualValues(t, 1, r.send("c", "K4").Accepted)
	require.True(t, r.ledger("c")[0].Balanced())
}

func TestServerIDsAreNeverDuplicates(t *testing.T) {
	r := newRig(t)
	r.put(channelOf("c"))
	require.EqualValues(t, 2, r.send("c", "", "").Accepted)
	require.EqualValues(t, 2, r.send("c", "", "").Accepted)
}

func TestStaleSpecIsRefusedWholeAndItsOrdinalsStay(t *testing.T) {
	r := newRig(t)
	res := r.put(channelOf("c"))
	out := r.apply(
		batchOf(t, res.Index, res.Version+1, &event.Offset{Source: "s", Partition: "p"}, "a", "b"),
		batchOf(t, res.Index, res.Version, nil, "a"),
		batchOf(t, res.Index+99, res.Version, nil, "z"),
		command.Batch{Body: []byte{1, 2, 3}},
		batchOf(t, res.Index, res.Version, nil, "d"),
	)
	want := []struct {
		status       command.Status
		first, count uint32
	}{{command.StaleSpec, 0, 2}, {command.OK, 2, 1}, {command.NoSuchChannel, 3, 1}, {command.Malformed, 4, 0}, {command.OK, 4, 1}}
	rej, ok := r.m.Rejects(r.index)
	require.True(t, ok)
	for i, w := range want {
		got, err := command.DecodeBatchResult(out[i])
		require.NoError(t, err)
		require.Equal(t, w.status, got.Status)
		require.Equal(t, w.first, got.FirstOrdinal)
		require.Equal(t, w.count, got.Count)
		require.Equal(t, w.status != command.OK, rej.Batch(i))
	}
	for ordinal, rejected := range []bool{true, true, false, true, false} {
		require.Equal(t, rejected, rej.Event(uint32(ordinal)))
	}
	_, ok = r.m.Offset("c", "s", "p")
	require.False(t, ok, "a refused batch commits no source offset")
}

func TestSourceOffsetNeverGoesDown(t *testing.T) { // I7
	r := newRig(t)
	r.put(channelOf("c"))
	_, ok := r.m.Offset("c", "s", "p")
	require.False(t, ok)
	at := func(position, record uint64, closed bool) *event.Offset {
		return &event.Offset{Source: "s", Partition: "p", SourceOffset: event.SourceOffset{Position: position, Record: record, Closed: closed}}
	}
	r.sendWith("c", at(10, 3, false), "a")
	r.sendWith("c", at(5, 4, true), "b")
	res := r.sendWith("c", at(11, 0, false), "a") // all duplicates: the offset still counts
	require.Zero(t, res.Accepted)
	got, ok := r.m.Offset("c", "s", "p")
	require.True(t, ok)
	require.Equal(t, event.SourceOffset{Position: 11, Record: 4, Closed: true}, got)
	require.Len(t, r.m.Offsets("c"), 1)
}

func TestDedupForgetsOnlyAfterTheWindow(t *testing.T) {
	r := newRig(t)
	c := channelOf("c")
	c.Dedup.Window = spec.Duration(160 * second)
	r.put(c)
	r.send("c", "a")
	r.stamp += 160 * second
	require.EqualValues(t, 1, r.send("c", "a").Duplicates, "still within the window")
	r.stamp += 11 * second
	require.EqualValues(t, 1, r.send("c", "a").Accepted)
	info, _ := r.m.Channel("c")
	require.EqualValues(t, 1, info.DedupKeys)
}

func TestTheLastKeyOfAGenerationIsKeptForTheWholeWindow(t *testing.T) {
	r := newRig(t)
	c := channelOf("c")
	c.Dedup.Window = spec.Duration(160 * second)
	r.put(c)
	r.send("c", "a")
	r.stamp += 9 * second // still the same generation
	r.send("c", "b")
	r.stamp += 160 * second
	require.EqualValues(t, 1, r.send("c", "b").Duplicates)
}

func TestDedupFullRefusesOrShortens(t *testing.T) {
	ids := []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}
	for _, onFull := range []string{"refuse", "shorten"} {
		r := newRig(t)
		c := channelOf("c")
		c.Dedup.MaxKeys, c.Dedup.OnFull = 10, onFull
		r.put(c)
		for _, id := range ids {
			require.EqualValues(t, 1, r.send("c", id).Accepted)
		}
		require.EqualValues(t, 10, r.send("c", ids...).Duplicates, "a batch without new keys always fits")
		res := r.send("c", "11", "12")
		info, _ := r.m.Channel("c")
		if onFull == "refuse" {
			require.Equal(t, command.DedupFull, res.Status)
			require.EqualValues(t, 10, info.DedupKeys)
			continue
		}
		require.EqualValues(t, 2, res.Accepted)
		require.LessOrEqual(t, info.DedupKeys, uint64(10))
		require.Less(t, info.DedupWindow, int64(c.Dedup.Window))
		require.EqualValues(t, 1, r.send("c", "10").Duplicates, "the newest stay")
	}
}

// Case B10: the keys live on their own, not as records of the log, so that a restart or an installed snapshot answers as
// before.
func TestB10DuplicatesAreKnownAfterRestartAndSnapshotInstall(t *testing.T) {
	r := newRig(t)
	r.put(channelOf("c", fileEmitter("f", 1, 0, 0)))
	ids := make([]string, 1000)
	first := map[string]event.Position{}
	for i := range ids {
		ids[i] = string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676))
		first[ids[i]] = event.Position{Index: r.send("c", ids[i]).Index}
	}
	check := func(m *Machine) {
		t.Helper()
		saved := *r
		r.m = m
		res := r.send("c", ids...)
		require.Zero(t, res.Accepted)
		for i, d := range res.Dups {
			require.Equal(t, first[ids[i]], d.Of)
			require.False(t, d.Conflict)
		}
		c, _ := m.Channel("c")
		require.EqualValues(t, 1000, c.Accepted)
		*r = saved
	}
	check(r.reopen())
	installed := installSnapshot(t, r.m)
	check(installed)
	check(r.m)
}

// TestL17DedupPerProducer: the key is (source, id) within the channel, whoever sends it and through whatever node, session or
// batch; another source's ids are its own.
func TestL17DedupPerProducer(t *testing.T) {
	r := newRig(t)
	r.put(channelOf("c"))
	require.EqualValues(t, 1, r.send("c", "k1").Accepted)
	c, _ := r.m.Channel("c")
	again := batchOf(t, c.Index, c.Version, &event.Offset{Source: "another producer", Partition: "p"}, "k1")
	res, err := command.DecodeBatchResult(r.apply(again)[0])
	require.NoError(t, err)
	require.EqualValues(t, 1, res.Duplicates)
	r.term++ // another leader
	require.EqualValues(t, 1, r.send("c", "k1").Duplicates)
	events := []event.Event{{ID: "k1", Source: "/other", Type: "t", DataKind: event.DataJSON, Data: []byte("1")}}
	body, err := event.EncodeBatch(nil, event.BatchHeader{ChannelIndex: c.Index, SpecVersion: c.Version}, event.HashKey{1}, events, make([]bool, 1))
	require.NoError(t, err)
	res, err = command.DecodeBatchResult(r.apply(command.Batch{Body: body})[0])
	require.NoError(t, err)
	require.EqualValues(t, 1, res.Accepted, "source and id together name an event")
}
