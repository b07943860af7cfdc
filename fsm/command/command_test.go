package command

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/event"
)

var update = flag.Bool("update", false, "write fixtures that do not exist yet; never changes one that does")

// samples has one command of each kind with every field set. What is written here and the fixtures belong together for
// ever: neither may change, a new version gets its own folder.
func samples() map[string]Command {
	id, key := [16]byte{1, 2, 3, 15: 16}, event.HashKey{9, 8, 7, 31: 1}
	p := func(i uint64, o uint32) event.Position { return event.Position{Index: i, Ordinal: o} }
	return map[string]Command{
		"cluster-init":   ClusterInit{ClusterID: id, Key: key, Name: "prod"},
		"batch":          Batch{Body: []byte("\x01the body is an event batch, opaque here")},
		"channel-put":    ChannelPut{Spec: []byte(`{"name":"orders"}`), IfVersion: 300, Discard: true},
		"channel-delete": ChannelDelete{Name: "orders", Discard: true},
		"tick":           Tick{},
		"assign": Assign{Items: []Assignment{
			{ChannelIndex: 7, EmitterIndex: 8, Node: "n1", IfEpoch: 3}, {ChannelIndex: 7, EmitterIndex: 1 << 40, IfEpoch: 128},
		}},
		"outcomes": Outcomes{ChannelIndex: 7, EmitterIndex: 8, Epoch: 4, Node: "n2", Outcomes: []Outcome{
			{First: 1, Last: 1, Kind: Delivered, Attempts: 1, At: 1_700_000_000_000_000_000, Status: 200},
			{First: 2, Last: 3, Kind: Failed, Attempts: 2, At: -1, Class: ClassTransient, Status: 503, Reason: "busy"},
			{First: 4, Last: 5, Kind: Dead, Attempts: 9, At: 5, Class: ClassPermanent, Status: 410, Reason: "gone",
				Positions: []event.Position{p(1000, 4), p(1002, 0)}, Compaction: [16]byte{1, 2, 3}},
			{First: 6, Last: 6, Kind: Poison, Class: ClassPoison, Positions: []event.Position{p(1002, 1)}},
			{First: 7, Last: 7, Kind: Lost, Class: ClassAuth, Status: 401},
			{First: 8, Last: 8, Kind: Attempted},
			{First: 4, Last: 4, Kind: Replayed, Attempts: 1},
			{First: 5, Last: 5, Kind: ReplayFailed, Attempts: 1},
			{First: 6, Last: 6, Kind: Discarded, Reason: "não é preciso"},
		}},
		"carry": Carry{ChannelIndex: 7, First: 40, Old: 9,
			Spans: []Span{{p(5, 6), 2, 1_700_000_000_000_000_000}, {p(5, 9), 1, 1_700_000_000_000_000_000}, {p(1<<33, 0), 300, -1}}, Body: []byte("\x01an event batch")},
		"yield": Yield{Index: 1 << 40},
		"audit-intent": AuditIntent{ID: id, Actor: "ops", Action: "dlq.replay", Reason: "fixed", RequestID: "r-1",
			Targets: []string{"a", "b"}},
		"audit-outcome": AuditOutcome{ID: id, Result: "success", Detail: "2 delivered"},
		"feature":       Feature{Level: 1},
		"emitter-pause": EmitterPause{ChannelIndex: 7, EmitterIndex: 8, Paused: true},
		"replay-claim": ReplayClaim{ChannelIndex: 7, EmitterIndex: 8, Epoch: 4, Node: "n2", ID: id, Scheduled: true, Force: true,
			Seqs: []uint64{1, 5, 1 << 40}},
		"replay-release": ReplayRelease{ChannelIndex: 7, EmitterIndex: 8, Epoch: 4, Node: "n2", ID: id, Seqs: []uint64{300}},
		"discard":        Discard{ChannelIndex: 7, EmitterIndex: 8, Intent: id, Seqs: []uint64{4, 5}},
	}
}

func golden(t *testing.T, name string, have []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", "format", "v1", name+".bin")
	want, err := os.ReadFile(path)
	if os.IsNotExist(err) && *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, have, 0o644))
		return have
	}
	require.NoError(t, err)
	return want
}

func TestGoldenCommandsDecodeForEver(t *testing.T) {
	all := samples()
	require.Len(t, all, int(lastKind), "a kind without a fixture")
	for name, c := range all {
		require.Equal(t, name, c.Kind().String())
		b := golden(t, name, Encode(c))
		got, err := Decode(b)
		require.NoError(t, err, name)
		require.Equal(t, c, got, name)
		require.Equal(t, b, Encode(c), "%s: the encoding changed", name)
	}
}

func TestGoldenEntryDecodesForEver(t *testing.T) {
	e := Entry{Stamp: 1_700_000_000_123_456_789, Commands: [][]byte{Encode(Tick{}), Encode(Feature{Level: 1})}}
	b := golden(t, "entry", AppendEntry(nil, e.Stamp, e.Commands))
	got, err := DecodeEntry(b)
	require.NoError(t, err)
	require.Equal(t, e, got)
}

func TestGoldenResultsDecodeForEver(t *testing.T) {
	batch := BatchResult{
		Status: OK, Index: 1000, FirstOrdinal: 5, Count: 3, Accepted: 1, Duplicates: 2, Poisoned: 1,
		Dups: []Dup{{Ordinal: 6, Of: event.Position{Index: 9, Ordinal: 1}}, {Ordinal: 7, Of: event.Position{Index: 1000, Ordinal: 5}, Conflict: true}},
	}
	gotBatch, err := DecodeBatchResult(golden(t, "result-batch", batch.Append(nil)))
	require.NoError(t, err)
	require.Equal(t, batch, gotBatch)
	channel := ChannelResult{Status: HasDeliveries, Index: 7, Version: 3, Changed: true, Message: "emitter x"}
	gotChannel, err := DecodeChannelResult(golden(t, "result-channel", channel.Append(nil)))
	require.NoError(t, err)
	require.Equal(t, channel, gotChannel)
	outcomes, err := DecodeOutcomesResult(golden(t, "result-outcomes", OutcomesResult{Status: StaleEpoch}.Append(nil)))
	require.NoError(t, err)
	require.Equal(t, StaleEpoch, outcomes.Status)
	plain, err := DecodePlainResult(golden(t, "result-plain", PlainResult{Status: NotEnabled, Message: "no"}.Append(nil)))
	require.NoError(t, err)
	require.Equal(t, PlainResult{Status: NotEnabled, Message: "no"}, plain)
	letters := LettersResult{Status: NoSuchIntent, States: []LetterState{
		LetterDone, LetterNotFound, LetterResolved, LetterInProgress, LetterExhausted, LetterForbidden,
	}}
	gotLetters, err := DecodeLettersResult(golden(t, "result-letters", letters.Append(nil)))
	require.NoError(t, err)
	require.Equal(t, letters, gotLetters)
}

func TestUnknownKindsAndVersionsAreUnknownNotMalformed(t *testing.T) {
	for _, b := range [][]byte{{0, 1}, {byte(lastKind) + 1, 1}, {255, 1}, {byte(KindTick), 0}, {byte(KindTick), 2}, {byte(KindBatch), 2, 1}} {
		_, err := Decode(b)
		require.ErrorIs(t, err, ErrUnknown)
		require.NotErrorIs(t, err, ErrMalformed)
	}
	entry := AppendEntry(nil, 1, nil)
	entry[1]++
	_, err := DecodeEntry(entry)
	require.ErrorIs(t, err, ErrUnknown)
	result := OutcomesResult{Status: OK}.Append(nil)
	result[1]++
	_, err = DecodeOutcomesResult(result)
	require.ErrorIs(t, err, ErrUnknown)
}

func TestEveryCutAndEveryLongerFormIsMalformed(t *testing.T) {
	for name, c := range samples() {
		b := Encode(c)
		if c.Kind() == KindBatch {
			continue // its body is opaque
		}
		for n := range b {
			_, err := Decode(b[:n])
			require.Error(t, err, "%s cut at %d", name, n)
		}
		_, err := Decode(append(bytes.Clone(b), 0))
		require.ErrorIs(t, err, ErrMalformed, name)
	}
	e := AppendEntry(nil, 5, [][]byte{Encode(Tick{})})
	for n := range e {
		_, err := DecodeEntry(e[:n])
		require.ErrorIs(t, err, ErrMalformed)
	}
}

func TestReasonsAreCutAtARune(t *testing.T) {
	o := Outcomes{Outcomes: []Outcome{{First: 1, Last: 1, Kind: Failed, Reason: strings.Repeat("é", MaxReason)}}}
	got, err := Decode(Encode(o))
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("é", MaxReason/2), got.(Outcomes).Outcomes[0].Reason)
}

func FuzzDecode(f *testing.F) {
	for _, c := range samples() {
		f.Add(Encode(c))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Decode(b)
		if err != nil {
			return
		}
		// What decodes has one encoding: the bytes it came from.
		require.Equal(t, b, Encode(c))
	})
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add(AppendEntry(nil, 1, [][]byte{Encode(Tick{})}))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := DecodeEntry(b)
		if err != nil {
			return
		}
		require.Equal(t, b, AppendEntry(nil, e.Stamp, e.Commands))
	})
}

func FuzzDecodeResults(f *testing.F) {
	f.Add(BatchResult{Status: OK, Dups: []Dup{{Ordinal: 1}}}.Append(nil))
	f.Add(ChannelResult{Status: OK, Message: "m"}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := DecodeBatchResult(b); err == nil {
			require.Equal(t, b, r.Append(nil))
		}
		if r, err := DecodeChannelResult(b); err == nil {
			require.Equal(t, b, r.Append(nil))
		}
		if r, err := DecodePlainResult(b); err == nil {
			require.Equal(t, b, r.Append(nil))
		}
		if r, err := DecodeLettersResult(b); err == nil {
			require.Equal(t, b, r.Append(nil))
		}
	})
}
