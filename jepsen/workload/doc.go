// Package workload is the clients of a run: writers of unique process-counter events, writers that carry a source offset,
// readers of every node, and the channels they use.
//
// It promises that each attempt is an operation of its own in the history, that an unknown outcome is retried by the same
// ids until it is known or the run ends, and that one writer never has two requests under way, so that the order it wrote
// in is the order it can expect. It injects no faults and judges nothing.
package workload
