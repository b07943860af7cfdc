// Package gossip finds the nodes of a cluster and suspects the dead, by memberlist. What it says is a hint: who is a member, and who
// votes, is for Raft's configuration alone, and whoever is dialled at an address heard here must name itself (package cluster).
//
// It owns the keys of the gossip port, the metadata a node tells of itself, and memberlist over a transport that shares that port with
// the hellos of package cluster: streams are handed to it by the caller, packets are UDP on the same port number. It never removes
// anybody from anything.
//
// A node appears under its id and incarnation ("n1#17"), so that one that comes back under a new address is a new appearance and not a
// conflict with the one before, which dies by itself; of several appearances of one id the highest incarnation is shown.
package gossip
