package event

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Joined events are what they were: same envelope, same event, whatever of which batch is taken.
func TestJoinedEventsAreTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var j Joiner
		var envelopes []Envelope
		var events []Event
		for range rapid.IntRange(1, 3).Draw(t, "batches") {
			all := rapid.SliceOfN(rapid.Custom(genEvent), 0, 5).Draw(t, "events")
			if rapid.Bool().Draw(t, "large") {
				all = append(all, Event{ID: "l", Source: "/s", Type: "t", DataKind: DataText, Data: make([]byte, 8192)})
			}
			raw, err := EncodeBatch(nil, BatchHeader{ChannelIndex: 7, SpecVersion: 2}, HashKey{1}, all, nil)
			require.NoError(t, err)
			b, err := DecodeBatch(raw)
			require.NoError(t, err)
			decoded, err := b.Events()
			require.NoError(t, err)
			for i := range b.Len() {
				if rapid.Bool().Draw(t, "take") {
					require.NoError(t, j.Add(b, i))
					envelopes, events = append(envelopes, b.Envelope(i)), append(events, decoded[i])
				}
			}
		}
		got, err := DecodeBatch(j.Encode(7))
		require.NoError(t, err)
		require.Equal(t, BatchHeader{ChannelIndex: 7}, got.Header())
		require.Equal(t, len(events), got.Len())
		require.Equal(t, j.Bytes(), got.PayloadBytes())
		decoded, err := got.Events()
		require.NoError(t, err)
		for i := range events {
			require.Equal(t, envelopes[i], got.Envelope(i))
			require.Equal(t, events[i], decoded[i])
		}
	})
}
