// Package wal is the segmented log that *is* the Raft log: payload bytes are
// written once per node, here.
//
// It owns one folder: segment files, the spares (prepared ahead, or dropped
// segments to be used again), the durable mark and the lock file. [Log] implements raft.LogStore and
// raft.MonotonicLogStore.
//
// It promises:
//
//   - StoreLogs returns nil only after one fdatasync of what it wrote (I1).
//   - What it returns from GetLog passed its CRC in this very call, or is the
//     slice that was stored in this process (the tail cache). Damage is a
//     *[DamageError], never raft.ErrLogNotFound, and a log is never silently
//     shortened by it (I10): Open tells a torn last batch from damage exactly
//     (docs/format/wal.md) and refuses the second.
//   - Nothing at or above floor - 1 is deleted (I3), and what a suffix
//     truncation or a reset removed never comes back.
//   - After the first failed or hung write or fsync nothing is tried again:
//     Config.Fatal is called once and every call returns an error (I11).
//
// It does not know Raft's policy: terms and indexes are numbers to it, and the
// only things it takes from the Raft library are the Log struct, the names of
// the interface and the sentinel ErrLogNotFound. It finds, reports,
// cuts off and writes again what is damaged (Config.AllowDamage, Log.Damage,
// Repair, LeaveHoles, CutAt, Scrub); where the entries come from, and whether
// the node may vote meanwhile, is for others to decide. It does not carry.
//
// [Walk] reads a folder offline and writes nothing.
package wal
