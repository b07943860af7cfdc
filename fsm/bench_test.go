package fsm

import (
	"encoding/binary"
	"fmt"
	"testing"

	"penstock/event"
	"penstock/fsm/command"
	"penstock/internal/spec"
)

// BenchmarkApply is one batch of 100 events, each with a new producer id, at a channel with one emitter of single events
// and one of files; the reports of the first come every 10 batches.
func BenchmarkApply(b *testing.B) {
	r := newRig(b)
	c := channelOf("c", fileEmitter("single", 1, 0, 0), fileEmitter("file", 10_000, 8<<20, spec.Duration(second)))
	c.Dedup.Window = spec.Duration(600 * second)
	info := r.put(c)
	e := r.own(r.emitter("c", 0))
	const events = 100
	ids := make([]string, events)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	body := batchOf(b, info.Index, info.Version, nil, ids...).Body
	keys := envelopeOffsets(b, body)
	n := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		for _, at := range keys {
			n++
			binary.LittleEndian.PutUint64(body[at:], mix(2*n))
			binary.LittleEndian.PutUint64(body[at+8:], mix(2*n+1))
		}
		r.stamp += 1e6
		r.index++
		data := command.AppendEntry(nil, r.stamp, [][]byte{command.EncodeBatch(body)})
		if _, err := r.m.Apply(r.index, 1, data); err != nil {
			b.Fatal(err)
		}
		if n%(10*events) == 0 {
			r.report(e, command.Outcome{First: n - 10*events + 1, Last: n, Kind: command.Delivered})
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
}

// mix spreads the bits of n as a hash does (splitmix64): a multiple of a constant has the low bits of n in its low bits, which
// are what a hash table looks at.
func mix(n uint64) uint64 {
	n += 0x9E3779B97F4A7C15
	n = (n ^ n>>30) * 0xBF58476D1CE4E5B9
	n = (n ^ n>>27) * 0x94D049BB133111EB
	return n ^ n>>31
}

// envelopeOffsets finds where in the encoded batch the dedup keys stand.
func envelopeOffsets(tb testing.TB, body []byte) (all []int) {
	batch, err := event.DecodeBatch(body)
	if err != nil {
		tb.Fatal(err)
	}
	for i := range batch.Len() {
		x := batch.Envelope(i)
		for at := 0; ; at++ {
			if at+16 > len(body) {
				tb.Fatal("key not found")
			}
			if [16]byte(body[at:at+16]) == x.DedupKey {
				all = append(all, at)
				break
			}
		}
	}
	return all
}
