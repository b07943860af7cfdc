// Package sinktest makes compactions for tests of emitter kinds, and holds what every kind must do.
package sinktest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/emit/sink"
	"penstock/event"
)

// Awkward are data that careless code changes on the way.
var Awkward = []string{
	`{"n":228930314431312345,"m":9007199254740993,"z":-0,"e":1e400,"f":0.1000}`,
	`{"b":1,"a":2,"b":3}`,
	`"\u2028  \u00e9 é \ud83d\ude00 </script>"`,
	`null`,
	`[]`,
	"{\n  \"spread\": \"over\\nlines\"\n}",
	` 7 `,
}

// Compaction gives a compaction with one event for each data.
func Compaction(id string, data ...string) *sink.Compaction {
	c := &sink.Compaction{ID: id, First: 1, Last: uint64(len(data))}
	for i, d := range data {
		c.Deliveries = append(c.Deliveries, sink.Delivery{
			Seq: uint64(i + 1), Position: event.Position{Index: 12, Ordinal: uint32(i)},
			Event: event.Event{
				ID: fmt.Sprintf("id-%d", i), Source: "/src", Type: "t.example", Subject: "käse \"1\"", Time: "2026-01-02T03:04:05Z",
				DataContentType: "application/json", DataKind: event.DataJSON, Data: []byte(d),
				Extensions: []event.Extension{{Name: "partitionkey", Value: "k 1"}},
			},
		})
	}
	return c
}

// Run holds a sink to the contract of sink.Sink as far as every kind can be held to it. received gives all that the
// destination has got so far, in the order in which it came.
func Run(t *testing.T, s sink.Sink, received func() []string) {
	t.Helper()
	t.Run("RepeatsSendTheSameBytes", func(t *testing.T) {
		c := Compaction("0123456789abcdef0123456789abcdef", Awkward...)
		before := len(received())
		require.True(t, s.Deliver(t.Context(), c).OK)
		first := received()[before:]
		require.NotEmpty(t, first)
		require.True(t, s.Deliver(t.Context(), c).OK)
		all := received()
		require.Equal(t, first, all[len(all)-len(first):])
	})
	t.Run("ConcurrentDeliveriesDoNotMix", func(t *testing.T) {
		results := make(chan sink.Result)
		for i := range 8 {
			go func() { results <- s.Deliver(t.Context(), Compaction(fmt.Sprintf("%032x", i), Awkward...)) }()
		}
		for range 8 {
			r := <-results
			require.True(t, r.OK, "%+v", r)
		}
	})
}
