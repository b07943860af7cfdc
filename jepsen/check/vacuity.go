package check

import (
	"fmt"

	"penstock/jepsen/history"
)

const vacuityName = "enough happened"

// minSpread is in how many tenths of the run something must have been acknowledged. Faults that stop all writes take half of
// the time at most.
const minSpread = 5

// spread counts the tenths of the run, from the first write to the last operation of any client, in which events were
// acknowledged for the first time.
func spread(f *facts) int {
	var from, to int64
	for _, op := range f.ops {
		if op.Type == history.Invoke && (op.F == history.Write || op.F == history.WriteOffset) && (from == 0 || op.T < from) {
			from = op.T
		}
		if op.F != history.FinalTail {
			to = max(to, op.T)
		}
	}
	var tenths [10]bool
	for _, e := range f.fates {
		if e.ok > 0 && to > from {
			tenths[min(9, max(0, (e.ackedAt-from)*10/(to-from)))] = true
		}
	}
	n := 0
	for _, t := range tenths {
		if t {
			n++
		}
	}
	return n
}

// checkVacuity: a run that did too little says nothing. Its failure makes the verdict INVALID.
func checkVacuity(in Input, f *facts) *Result {
	r := newResult(vacuityName)
	acks := 0
	for _, e := range f.fates {
		if e.ok > 0 {
			acks++
		}
	}
	if parts := spread(f); acks >= 10 && parts < minSpread {
		r.fail("events were acknowledged in %d of 10 parts of the run, want %d: the writers stood still", parts, minSpread)
	}
	confirmed := map[string]int{}
	total := 0
	for _, fault := range in.Faults {
		if fault.Phase == history.Confirmed {
			confirmed[fault.Kind]++
			total++
		}
	}
	r.Numbers["acked events"], r.Numbers["confirmed faults"] = int64(acks), int64(total)
	if acks < max(1, in.Expect.MinAcks) {
		r.fail("%d events were acknowledged, want at least %d", acks, max(1, in.Expect.MinAcks))
	}
	if in.Expect.Scenarios == 0 || len(in.Expect.Kinds) == 0 {
		r.fail("no fault was planned")
	}
	if total < max(1, in.Expect.MinFaults) {
		r.fail("%d faults were confirmed, want at least %d", total, max(1, in.Expect.MinFaults))
	}
	for _, kind := range in.Expect.Kinds {
		r.Numbers["confirmed "+kind] = int64(confirmed[kind])
		if confirmed[kind] == 0 {
			r.fail("fault kind %s was asked for and never confirmed", kind)
		}
	}
	if len(in.Expect.Channels) == 0 {
		r.fail("no channel had writers")
	}
	for _, channel := range in.Expect.Channels {
		if len(f.stored(channel)) == 0 { // where resolved events may go, what readers saw before counts too
			r.fail("channel %s: %s", channel, fmt.Sprintf("nothing was read at the end on any of %d nodes", len(f.final[channel])))
		}
	}
	return r
}
