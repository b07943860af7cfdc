// Package mutant plants bugs on purpose, so that the fault harness can show that it would find them. Product code asks at
// ten marked places `if mutant.On(mutant.X)`; without the build tag `mutants` On is the constant false, the compiler drops
// the branch, and the shipped binary holds no trace of it.
//
// It promises exactly that. It does nothing else, keeps no state, and is no place for experiments or switches.
package mutant

// Name is one planted bug.
type Name string

// The planted bugs. Each comment says which promise it breaks.
const (
	AckBeforeFsync       Name = "ack-before-fsync"        // wal: StoreLogs returns without fdatasync (I1)
	SkipDirFsync         Name = "skip-dir-fsync"          // wal, cluster: a new segment or snapshot is not made durable in its directory (P1)
	TruncateAtBadCRC     Name = "truncate-at-bad-crc"     // wal: recovery cuts the log at the first bad CRC, wherever it is (I10)
	DedupNotInSnapshot   Name = "dedup-not-in-snapshot"   // fsm: a snapshot leaves out the dedup keys (P5, I4)
	OutcomeBeforeDLQSync Name = "outcome-before-dlq-sync" // dlq, emit: the outcome is proposed before the dead letter is on disk (I8)
	EmitOldEpoch         Name = "emit-old-epoch"          // emit, fsm: an owner whose lease lapsed goes on, and its outcomes count (DESIGN 4.17)
	LabelAtFloor         Name = "label-at-floor"          // cluster: a snapshot is labelled with the floor instead of the index below (I3)
	NoBaseRecord         Name = "no-base-record"          // wal: Reset keeps no durable base (DESIGN 4.4)
	WipedNodeKeepsID     Name = "wiped-node-keeps-id"     // cluster: the incarnation check at open time is left out (DESIGN 4.7)
	VoteNotPersisted     Name = "vote-not-persisted"      // cluster: term and vote are kept in memory only (DESIGN 4.1)
)

// All lists every planted bug.
func All() []Name {
	return []Name{
		AckBeforeFsync, SkipDirFsync, TruncateAtBadCRC, DedupNotInSnapshot, OutcomeBeforeDLQSync,
		EmitOldEpoch, LabelAtFloor, NoBaseRecord, WipedNodeKeepsID, VoteNotPersisted,
	}
}
