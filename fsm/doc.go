// Package fsm is the deterministic state machine: what the committed log means. It owns the channels and their specs,
// source offsets, dedup keys, the sequence numbers of accepted events, compactions, who owns which emitter under which
// epoch, what became of each delivery, the ledger, who may replay which dead letter, the audit trail, and from these the
// floor and the horizon of the log.
//
// It promises that applying the same log gives the same state byte for byte, from the start or from any checkpoint or
// snapshot (I4); that the ledger balances at every applied index (I5); that a compaction's members and an event's position
// never change (I6); that a source offset never goes down (I7); and that the floor never passes a pending delivery or an
// open dead letter (I3). To keep these it reads no clock, no random source and no network, starts no goroutine, and decides
// time only from the stamps of entries.
//
// The state lives in memory as typed objects. Each object is also a row, (table, key) -> bytes, in one canonical encoding
// (tables.go). Rows are what a checkpoint stores, a snapshot carries, the state hash adds up and Dump prints, so that the
// four can never tell different stories. A Store keeps the rows on disk; fsm/checkpoint is the one on bbolt.
//
// One goroutine calls Apply and Restore. Every other method may be called from any goroutine; reads return copies. An error
// of Apply, Checkpoint or Restore is final: the process must end (DESIGN 4.13, 4.16, I11).
//
// It does not hold payload (the log does), does not know who is alive (the leader does), and sends nothing.
package fsm
