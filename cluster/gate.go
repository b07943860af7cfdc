package cluster

import (
	"errors"
	"io"

	"github.com/hashicorp/raft"
)

var errStale = errors.New("this node starts anew over an installed snapshot")

// gate sees each incoming RPC before Raft does, and reports whether it answered it.
//
// A stale instance, one that is about to be replaced (rebuild), must not refuse entries: the leader would take each refusal for a
// missing entry, step back behind the start of its own log, and from there send nothing but snapshots. It gets an error instead, which
// moves no index.
//
// For the same reason a snapshot whose label this log already holds is answered with success and not installed. The leader sends one
// when the answer to the first was lost, and would go on for ever if it were refused; "the log agrees up to the label", which is what
// success tells it, is true.
//
// A node in doubt grants no vote (doubt.go). It says so with Granted false and never with an error, which some take for "granted".
func (c *Cluster) gate(rpc raft.RPC) bool {
	if c.stale.Load() {
		discard(rpc, nil, errStale)
		return true
	}
	if c.muzzled() && c.muzzle(rpc) {
		return true
	}
	in := c.instance()
	req, ok := rpc.Command.(*raft.InstallSnapshotRequest)
	if !ok || in == nil || req.Term < in.raft.CurrentTerm() || !c.log.holds(req.LastLogIndex, req.LastLogTerm) {
		return false
	}
	c.logger.Info("a snapshot is not needed: the log holds its label", "label", req.LastLogIndex)
	discard(rpc, &raft.InstallSnapshotResponse{Term: in.raft.CurrentTerm(), Success: true}, nil)
	return true
}

func (c *Cluster) muzzle(rpc raft.RPC) bool {
	term := uint64(0)
	if in := c.instance(); in != nil {
		term = in.raft.CurrentTerm()
	}
	head := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(c.cfg.NodeID), Addr: []byte(c.cfg.NodeID)}
	switch q := rpc.Command.(type) {
	case *raft.RequestVoteRequest:
		if c.mayElect(q.LastLogTerm, q.LastLogIndex) {
			return false
		}
		rpc.Respond(&raft.RequestVoteResponse{RPCHeader: head, Term: term}, nil)
	case *raft.RequestPreVoteRequest:
		if c.mayElect(q.LastLogTerm, q.LastLogIndex) {
			return false
		}
		rpc.Respond(&raft.RequestPreVoteResponse{RPCHeader: head, Term: term}, nil)
	case *raft.TimeoutNowRequest:
		rpc.Respond(nil, errMuzzled)
	default:
		return false
	}
	return true
}

// discard answers rpc. What is left of a snapshot is read off the connection first, away from the other RPCs.
func discard(rpc raft.RPC, resp any, err error) {
	if rpc.Reader == nil {
		rpc.Respond(resp, err)
		return
	}
	go func() {
		io.Copy(io.Discard, rpc.Reader)
		rpc.Respond(resp, err)
	}()
}
