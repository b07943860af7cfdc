// Package stdout delivers events as lines: one structured CloudEvent of JSON per event, on one writer.
//
// It promises whole lines: all lines of a compaction are written in one piece, and never mixed with those of another emitter
// of this process. It does not promise that a repeat can be told apart: nothing behind a pipe dedups, hence idempotent_by none.
package stdout

import (
	"context"
	"io"

	"penstock/emit/sink"
)

// Sink writes to one writer.
type Sink struct{ w io.Writer }

// turn is held while writing. It is one for the process, as standard output is, and a channel, so that waiting for it ends
// with the attempt.
var turn = make(chan struct{}, 1)

// New writes to w.
func New(w io.Writer) *Sink { return &Sink{w: w} }

// Deliver writes the compaction's lines.
func (s *Sink) Deliver(ctx context.Context, c *sink.Compaction) sink.Result {
	var lines []byte
	for i := range c.Deliveries {
		lines = append(c.Deliveries[i].Event.AppendStructured(lines), '\n')
	}
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return sink.Result{Class: sink.Transient, Reason: "standard output is busy"}
	}
	if ctx.Err() != nil {
		return sink.Result{Class: sink.Transient, Reason: "standard output is busy"}
	}
	if _, err := s.w.Write(lines); err != nil {
		return sink.Result{Class: sink.Transient, Reason: "write standard output: " + err.Error()}
	}
	return sink.Result{OK: true}
}

// Close leaves the writer open: it is not ours.
func (s *Sink) Close() error { return nil }
