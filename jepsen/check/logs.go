package check

import (
	"math"

	"penstock/jepsen/history"
	"penstock/jepsen/oracle"
)

// checkLogs reads what the nodes left on disk: the committed prefix is the same on all of them (I2), without gaps, and the
// events that count by the harness's own reckoning are those that the nodes showed.
func checkLogs(in Input, f *facts) *Result {
	r := newResult("logs")
	if in.Expect.Reachable {
		return r.leaveOut(outOfReach)
	}
	if len(in.Logs) < max(1, in.Expect.MinFinalRead) {
		r.unknown("%d logs were read", len(in.Logs))
		return r
	}
	whole := 0
	for _, node := range sortedKeys(in.Logs) {
		l := in.Logs[node]
		if l.Problem != "" {
			r.unknown("the log of %s: %s", node, l.Problem)
			continue // it is known to be damaged: what is missing of it says nothing more
		}
		whole++
		for _, gap := range oracle.Gaps(l) {
			r.fail("gap: %s", gap)
		}
		r.Numbers["entries "+node] = int64(len(l.Entries))
	}
	committed := committedIndex(in.Observations)
	r.Numbers["compared up to"] = int64(committed)
	for _, d := range oracle.Differences(in.Logs, committed) {
		r.fail("diverged: %s", d)
	}
	if whole == 0 {
		return r // what counts cannot be computed from logs that could not be read to their ends
	}
	state := oracle.Apply(oracle.Union(in.Logs, committed))
	if state.First > 2 && in.Expect.Trimmed {
		r.Numbers["starts at"] = int64(state.First)
		return r
	}
	if state.First > 2 {
		r.unknown("the logs start at index %d: what counts cannot be computed from the start", state.First)
		return r
	}
	for _, channel := range in.Expect.Channels {
		compareAccepted(r, in, f, channel, state, committed)
	}
	return r
}

// committedIndex is the highest index any node said was committed.
func committedIndex(observations []history.Observation) uint64 {
	var top uint64
	for _, o := range observations {
		top = max(top, o.Commit)
	}
	return top
}

func compareAccepted(r *Result, in Input, f *facts, channel string, state oracle.State, committed uint64) {
	if len(f.final[channel]) == 0 {
		return
	}
	shown := map[string]history.Seen{}
	var first string
	for _, s := range f.stored(channel) {
		shown[s.Position] = s
		if first == "" {
			first = s.Position
		}
	}
	for _, a := range state.Accepted[channel] {
		s, ok := shown[a.Position]
		delete(shown, a.Position)
		switch {
		case !ok && comparePositions(a.Position, first) < 0:
			r.Numbers["below the readable horizon"]++
		case !ok:
			r.fail("%s %s at %s counts by the log of channel %s, but no node shows it", a.Source, a.ID, a.Position, channel)
		case s.ID != a.ID || s.Source != a.Source:
			r.fail("position %s of channel %s is %s by the log and %s by the nodes", a.Position, channel, a.ID, s.ID)
		}
	}
	for _, position := range sortedKeys(shown) {
		if index, _ := splitPosition(position); index <= committed {
			r.fail("%s at %s of channel %s is shown, but does not count by the log", shown[position].ID, position, channel)
		}
	}
	for node, ledgers := range in.Final.Ledgers {
		if l, ok := ledgers[channel]; ok && l.Duplicates != state.Duplicates[channel] && l.Applied <= committed {
			r.fail("%s says %d duplicates on channel %s, the log says %d", node, l.Duplicates, channel, state.Duplicates[channel])
		}
	}
	r.Numbers["accepted "+channel] = int64(len(state.Accepted[channel]))
}

// checkStateHashes: state hashes taken at the same index are the same on every node (I4).
func checkStateHashes(in Input, _ *facts) *Result {
	r := newResult("state hashes")
	type first struct{ node, hash string }
	at := map[string]first{}
	for _, o := range in.Observations {
		for k, hash := range o.Hashes {
			was, ok := at[k]
			if !ok {
				at[k] = first{o.Node, hash}
				continue
			}
			if was.node != o.Node {
				r.Numbers["compared"]++
			}
			if was.hash != hash {
				r.fail("state at %s: %s has %s, %s has %s", k, was.node, was.hash, o.Node, hash)
			}
		}
	}
	return r
}

// checkLeaders: no two nodes call themselves leader of the same term, and no node goes back to a lower term.
func checkLeaders(in Input, _ *facts) *Result {
	r := newResult("leaders and terms")
	leader := map[uint64]string{}
	lowest, highest := uint64(math.MaxUint64), uint64(0)
	newest := map[string]uint64{}
	for _, o := range in.Observations {
		if o.Term > 0 && o.Term < newest[o.Node] && !diskLost(in) {
			r.fail("%s was in term %d and is in term %d at %.1fs: a term was forgotten", o.Node, newest[o.Node], o.Term, float64(o.T)/1e9)
		}
		newest[o.Node] = max(newest[o.Node], o.Term)
		if o.Term > 0 {
			lowest, highest = min(lowest, o.Term), max(highest, o.Term)
		}
		if o.State != "leader" {
			continue
		}
		if was, ok := leader[o.Term]; ok && was != o.Node {
			r.fail("term %d: %s and %s both call themselves leader", o.Term, was, o.Node)
		}
		leader[o.Term] = o.Node
	}
	if highest > 0 {
		r.Numbers["terms"] = int64(highest - lowest + 1)
	}
	r.Numbers["leaders seen"] = int64(len(leader))
	return r
}

// checkReactions: the nemesis saw nothing it must not see, e.g. a node that ran on after a failed fsync.
func checkReactions(in Input, _ *facts) *Result {
	r := newResult("reactions")
	for _, f := range in.Faults {
		switch f.Phase {
		case history.Violation:
			r.fail("%s %v at %.1fs: %s", f.Kind, f.Targets, float64(f.T)/1e9, f.Detail)
		case history.Error:
			r.Numbers["errors of the nemesis itself"]++
		}
	}
	return r
}

// checkLiveness: what had to happen after the heal happened within its bound.
func checkLiveness(in Input, _ *facts) *Result {
	r := newResult("liveness")
	if len(in.Final.Liveness) == 0 {
		r.unknown("no liveness phase was run")
	}
	for _, l := range in.Final.Liveness {
		r.Numbers[l.Name+" ms"] = l.Took / 1e6
		if !l.OK {
			r.fail("%s: not within %.0fs: %s", l.Name, float64(l.Bound)/1e9, l.Note)
		}
	}
	return r
}
