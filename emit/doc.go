// Package emit runs emitters: it takes the pending compactions of one emitter, delivers them through a sink, retries,
// classifies, gives up well, and reports what happened as outcomes that go through the log.
//
// It owns: lanes (what may be in flight together), the retry schedule, budgets, the order of process, mark, ack, and the pure
// placement of emitters on nodes. Package emit/sink is the contract of a kind; emit/webhook, emit/file and emit/stdout are the
// kinds.
//
// It promises:
//   - A delivery is done only after its outcome was committed. A crash before that repeats the attempt, with the same ids (P6).
//   - A dead letter is written and fsynced before its outcome is proposed (I8). If it cannot be, the delivery stays pending and
//     the emitter is held: it starts nothing new until a write succeeds.
//   - Nothing is given up before one attempt of this Run has failed.
//   - Under order key or total an event is first sent only after everything before it in its lane was delivered or its end was
//     committed. A late repeat is possible, an inversion of first arrivals is not.
//   - At-most-once: the attempt is announced in the log before it is made, and is never made twice.
//   - One Run shares nothing with another but what the caller passes in: a failing emitter slows none of the others.
//   - Memory is bounded: by Config.Window compactions, Config.MemoryBytes of payload and Config.Emitter.Concurrency attempts.
//
// Without the lease a Run starts no attempt and proposes nothing; it waits, keeps its epoch, and goes on when the lease is
// back. It ends with ErrStaleEpoch when an outcome is refused because somebody else owns the emitter now.
//
// It keeps nothing on disk, knows nothing of the log, of Raft or of other nodes; node adapts those to the interfaces here.
package emit
