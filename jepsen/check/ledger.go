package check

import (
	"strings"

	"penstock/jepsen/client"
)

// checkLedger: on every node each row balances (P3), the counts are those of what is stored and of the dead letters listed,
// and nothing is pending once deliveries were given time. All nodes at the same applied index say the same.
func checkLedger(in Input, f *facts) *Result {
	r := newResult("ledger")
	if len(in.Final.Ledgers) == 0 {
		r.unknown("no ledger was read")
		return r
	}
	dead := deadBy(in)
	for _, node := range sortedKeys(in.Final.Ledgers) {
		for _, channel := range sortedKeys(in.Final.Ledgers[node]) {
			l := in.Final.Ledgers[node][channel]
			stored := uint64(len(f.stored(channel)))
			whole := len(f.final[channel]) > 0 && !f.trimmed
			if whole && l.Accepted != stored {
				r.fail("%s says %d accepted on channel %s, %d are stored", node, l.Accepted, channel, stored)
			}
			for _, row := range l.Emitters {
				checkRow(r, in, node, channel, row, uint64(len(dead[row.Emitter])))
				if whole && row.Accepted != stored {
					r.fail("%s says %d accepted for %s/%s, which starts at the earliest; %d are stored", node, row.Accepted, channel, row.Emitter, stored)
				}
			}
		}
	}
	return r
}

func checkRow(r *Result, in Input, node, channel string, row client.LedgerRow, dead uint64) {
	sum := row.Delivered + row.Dead + row.Poison + row.Discarded + row.Lost + row.Pending
	if sum != row.Accepted {
		r.fail("%s: the ledger of %s/%s does not balance: accepted %d, states sum up to %d", node, channel, row.Emitter, row.Accepted, sum)
	}
	if row.Lost > 0 {
		r.fail("%s: %d lost deliveries of %s/%s on an at-least-once channel", node, row.Lost, channel, row.Emitter)
	}
	if in.Expect.Quiet && row.Pending > 0 {
		r.fail("%s: %d deliveries of %s/%s are still pending", node, row.Pending, channel, row.Emitter)
	}
	if in.Final.Truncated[channel] { // the files are the evidence then; they may hold more, whose outcome a crash prevented
		var inFiles uint64
		for name := range deadInFiles(in) {
			if strings.HasPrefix(name, row.Emitter+" ") {
				inFiles++
			}
		}
		if !in.Expect.Reachable && row.Dead+row.Poison > inFiles {
			r.fail("%s: the ledger of %s/%s says %d dead and poison, the dead-letter files hold %d", node, channel, row.Emitter, row.Dead+row.Poison, inFiles)
		}
	} else if _, listed := in.Final.DeadLetters[channel]; listed && row.Dead+row.Poison != dead {
		r.fail("%s: the ledger of %s/%s says %d dead and poison, %d are listed", node, channel, row.Emitter, row.Dead+row.Poison, dead)
	}
	r.Numbers["delivered "+row.Emitter] = int64(row.Delivered)
	r.Numbers["dead "+row.Emitter] = int64(row.Dead)
}

// deadInFiles is what stands whole in some node's dead-letter files, by emitter and event.
func deadInFiles(in Input) map[string]bool {
	found := map[string]bool{}
	for _, d := range in.Final.DeadRecords {
		if !d.Torn {
			found[d.Emitter+" "+d.Event] = true
		}
	}
	return found
}

// checkDeadLetters: each dead letter the cluster lists stands in the dead-letter files of some node, and was in fact given up
// after attempts that its destination saw.
func checkDeadLetters(in Input, f *facts) *Result {
	r := newResult("dead letters")
	if in.Expect.Reachable {
		return r.leaveOut(outOfReach)
	}
	inFiles := deadInFiles(in)
	for _, channel := range sortedKeys(in.Final.DeadLetters) {
		eventAt := map[string]string{}
		for _, s := range f.stored(channel) {
			eventAt[s.Position] = s.Source + " " + s.ID
		}
		ids := map[string]bool{}
		for _, d := range in.Final.DeadLetters[channel] {
			r.Numbers["listed"]++
			if ids[d.ID] {
				r.fail("dead letter id %s is listed twice", d.ID)
			}
			ids[d.ID] = true
			event, ok := eventAt[d.Position]
			if !ok {
				if len(eventAt) > 0 {
					r.fail("dead letter %s of %s is at %s, where nothing is stored", d.ID, d.Emitter, d.Position)
				}
				continue
			}
			if !inFiles[d.Emitter+" "+event] {
				r.fail("dead letter %s of %s (%s) is in no dead-letter file of any node", d.ID, d.Emitter, event)
			}
		}
	}
	r.Numbers["in files"] = int64(len(inFiles))
	return r
}
