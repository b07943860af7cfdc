package command

import (
	"penstock/event"
	"penstock/fsm/internal/wire"
)

// Append appends
//
//	| channel n | first n | old n | count n | { index - index before n, ordinal n, count n, stamp - stamp before z } ... | batch s |
func (c Carry) Append(dst []byte) []byte {
	dst = wire.AppendUint(wire.AppendUint(head(dst, KindCarry), c.ChannelIndex), c.First)
	return wire.AppendBytes(AppendSpans(wire.AppendUint(dst, c.Old), c.Spans), c.Body)
}

func decodeCarry(r *wire.Reader) Command {
	return Carry{ChannelIndex: r.Uint(), First: r.Uint(), Old: r.Uint(), Spans: ReadSpans(r), Body: r.Bytes()}
}

// AppendSpans appends spans as they stand in commands and rows.
func AppendSpans(dst []byte, spans []Span) []byte {
	dst = wire.AppendUint(dst, uint64(len(spans)))
	last, stamp := uint64(0), int64(0)
	for i := range spans {
		dst = wire.AppendUint(wire.AppendUint(dst, spans[i].Index-last), uint64(spans[i].Ordinal))
		dst = wire.AppendInt(wire.AppendUint(dst, uint64(spans[i].Count)), spans[i].Stamp-stamp)
		last, stamp = spans[i].Index, spans[i].Stamp
	}
	return dst
}

// ReadSpans reads what AppendSpans wrote. Spans that are empty, or not in ascending order, are malformed.
func ReadSpans(r *wire.Reader) []Span {
	spans := make([]Span, 0, r.Count(4))
	last, next, stamp := uint64(0), uint64(0), int64(0)
	for range cap(spans) {
		x := Span{Position: event.Position{Index: last + r.Uint(), Ordinal: r.Uint32()}, Count: r.Uint32(), Stamp: stamp + r.Int()}
		if r.Err() != nil {
			return nil
		}
		if x.Index != last {
			next = 0
		}
		if x.Index < last || x.Index == 0 || x.Count == 0 || uint64(x.Ordinal) < next {
			r.Fail("span of %d events at %s", x.Count, x.Position)
			return nil
		}
		last, next, stamp = x.Index, uint64(x.Ordinal)+uint64(x.Count), x.Stamp
		spans = append(spans, x)
	}
	if len(spans) == 0 {
		return nil
	}
	return spans
}

// Append implements Command.
func (c Yield) Append(dst []byte) []byte { return wire.AppendUint(head(dst, KindYield), c.Index) }
