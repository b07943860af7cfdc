// Package cluster makes several Penstock processes agree on one log.
//
// It owns Raft (hashicorp/raft v1.7.3), the connections between nodes, the identity of the data directory, bootstrap, membership,
// leadership, proposals with group commit and forwarding, linearizable reads, snapshots and their transfer, the floor below which
// the log may go, owner leases, and the cluster's clock.
//
// It promises:
//   - A proposal has one of three ends: committed, certainly not committed, or unknown (outcome.go). Nothing else is ever reported,
//     and every wait is bounded.
//   - No second cluster is ever formed out of one that lost its disks: a node without state never bootstraps while any seed is
//     silent or has state, and a wiped or restored directory is refused by whoever knew it (bootstrap.go, book.go).
//   - A node that joins gets the state and then every entry from the floor on by ordinary replication (snapstore.go, install.go).
//   - Nothing at or above floor-1 of the log is given up, and a running transfer holds the floor where it needs it (I3, floor.go).
//   - At most one node holds the lease of an owner at any time, on the monotonic clock (lease.go).
//
// It does not know what an entry means: the state machine and the log are given to Open as interfaces, the entry codec as a function.
// Only package node calls it.
//
// On disk, in the data directory:
//
//	lock                  flock against a second process
//	identity              cluster id, node id, directory id, incarnation (identity.go)
//	peers                 what this node knows of the others: addresses, incarnations, last indexes (book.go)
//	stable.db             term and vote (stable.go)
//	install               a snapshot installation that is not over yet (install.go)
//	snapshots/*.snap      the two newest snapshots (snapfile.go)
package cluster
