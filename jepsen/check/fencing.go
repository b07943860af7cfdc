package check

import (
	"fmt"
	"slices"
	"strings"

	"penstock/jepsen/history"
	"penstock/jepsen/oracle"
)

// lingering is how long an old owner's attempts may go on arriving, from the first that comes too late: those under way
// when its lease ended, and those a paused process had decided on before the pause, arrive at once when it resumes.
const lingering = int64(6e9)

// burst is how many of them there may be: what a process can have under way at once (16 by default), with room.
const burst = 48

// handOver is how long an owner that lives may take to learn that one of its emitters goes to another node to even out the load:
// it holds its lease and sends on, as fast as the destination takes it, until it has applied the entry or an outcome is refused.
const handOver = skew / 4

// skew is how far the stamps of the log may be from the clock of the destinations.
const skew = int64(2e9)

// checkFencing: once the log gave an emitter to another node, the old owner's attempts end; and a process that had not sent
// for the emitter since its start, so that nothing can have been under way, does not begin to. (It compares the stamps of the
// log with the times at the destinations; harness, nodes and destinations share one clock.)
func checkFencing(in Input, _ *facts) *Result {
	r := newResult("fencing")
	if in.Expect.Reachable {
		return r.leaveOut(outOfReach)
	}
	if len(in.Logs) == 0 {
		r.unknown("no log was read")
		return r
	}
	owners := oracle.Apply(oracle.Union(in.Logs, committedIndex(in.Observations))).Owners
	starts := map[string][]int64{}
	for _, f := range in.Faults {
		if f.Phase == history.Started && len(f.Targets) == 1 {
			starts[f.Targets[0]] = append(starts[f.Targets[0]], f.Wall)
		}
	}
	sent := map[string][]int64{} // emitter and node -> when it sent
	for _, a := range in.Attempts {
		sent[a.Emitter+" "+a.From] = append(sent[a.Emitter+" "+a.From], a.At)
	}
	count := map[string]int{} // of those after it knew
	knows := map[string]int64{}
	late := map[string]int64{} // emitter, node, ownership -> first attempt that came too late
	for _, a := range in.Attempts {
		at := ownership(owners[a.Emitter], a.At)
		if a.From == "" || at < 0 {
			continue
		}
		r.Numbers["attempts"]++
		owner := owners[a.Emitter][at]
		if owner.Node == "" || hostOf(owner.Node) == a.From {
			continue
		}
		if next := at + 1; next < len(owners[a.Emitter]) && hostOf(owners[a.Emitter][next].Node) == a.From && owners[a.Emitter][next].Since-a.At < skew {
			continue // it is the next owner, and the clocks differ a little
		}
		r.Numbers["by an old owner"]++
		began := latest(starts[a.From], a.At)
		underWay := slices.ContainsFunc(sent[a.Emitter+" "+a.From], func(t int64) bool { return began <= t && t <= owner.Since })
		if began > 0 && !underWay && a.At-owner.Since > skew/4 {
			r.Numbers["by a restarted old owner"]++
			r.fail("%s began to send for %s %.1fs after its restart, %.1fs after the log had given it to %s (%v)", a.From, a.Emitter,
				float64(a.At-began)/1e9, float64(a.At-owner.Since)/1e9, owner.Node, a.Events[:min(1, len(a.Events))])
		}
		name := fmt.Sprint(a.Emitter, a.From, at)
		if _, ok := late[name]; !ok {
			late[name], knows[name] = a.At, learned(in, owners, a.Emitter, a.From, at)
		}
		if a.At-late[name] > lingering {
			r.fail("%s went on for %.1fs to send for %s, which the log had given to %s", a.From, float64(a.At-late[name])/1e9, a.Emitter, owner.Node)
		}
		if a.At < knows[name] {
			continue
		}
		if count[name]++; count[name] == burst+1 {
			r.fail("%s sent more than %d times for %s, which the log had given to %s", a.From, burst, a.Emitter, owner.Node)
		}
	}
	return r
}

// learned is from when on a node knows that it lost an emitter to the owner at a place in its terms. A node that is silent or has
// given up loses all it has in one entry, and sends nothing any more when that is proposed: it knows from the stamp on. One that
// keeps some lives, and the load is evened out: the stamp is of the proposal, and nothing says that the entry is committed before
// the new owner sends.
func learned(in Input, owners map[string][]oracle.Owner, emitter, from string, at int) int64 {
	terms := owners[emitter]
	since := terms[at].Since
	if at == 0 || hostOf(terms[at-1].Node) != from || !has(owners, terms[at-1].Node, since) {
		return since
	}
	begins := since + lingering
	for _, a := range in.Attempts {
		if a.Emitter == emitter && a.From == hostOf(terms[at].Node) && a.At >= since {
			begins = min(begins, a.At)
		}
	}
	return max(begins, since+handOver)
}

// has tells whether the log gives any emitter to a node at a time.
func has(owners map[string][]oracle.Owner, node string, at int64) bool {
	for _, terms := range owners {
		if i := ownership(terms, at); i >= 0 && terms[i].Node == node {
			return true
		}
	}
	return false
}

// latest is the last of the times up to a moment, 0 when there is none.
func latest(times []int64, upTo int64) int64 {
	var found int64
	for _, t := range times {
		if t <= upTo {
			found = max(found, t)
		}
	}
	return found
}

// ownership is the place in terms of the one in force at a time, -1 when there was none yet.
func ownership(terms []oracle.Owner, at int64) int {
	found := -1
	for i, t := range terms {
		if t.Since <= at {
			found = i
		}
	}
	return found
}

// hostOf is the host of a node id; a replaced node n2r1 runs on n2.
func hostOf(id string) string {
	host, _, _ := strings.Cut(id, "r")
	return host
}
