// Package replay carries out what operators do to dead letters: replay, discard, and the audit trail of both, on whichever node
// they ask.
//
// It owns the routes POST /v1/dlq/replay, POST /v1/dlq/discard and GET /v1/audit, the adapters that let emit's Replayer work on
// the state machine, the log and the volume, and the forwarding of a replay to the owners of its emitters. It promises that no
// act begins without a committed intent and none ends without an outcome (P9, I9), that an answer has one status for each id,
// whose counts add up, within a deadline, and that no payload leaves through it. It decides nothing about whether a letter may be
// replayed: the state machine does.
package replay
