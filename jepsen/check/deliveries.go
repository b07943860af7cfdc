package check

import (
	"slices"
	"strings"

	"penstock/jepsen/destination"
	"penstock/jepsen/history"
)

// keptBy lists, per emitter, the events its destination kept, in the order it kept them.
func keptBy(attempts []destination.Attempt) map[string][]string {
	kept := map[string][]string{}
	for _, a := range attempts {
		if a.Kept {
			kept[a.Emitter] = append(kept[a.Emitter], a.Events...)
		}
	}
	return kept
}

// deadBy lists, per emitter, the positions of its dead letters as the cluster lists them.
func deadBy(in Input) map[string]map[string]bool {
	dead := map[string]map[string]bool{}
	for _, letters := range in.Final.DeadLetters {
		for _, d := range letters {
			if dead[d.Emitter] == nil {
				dead[d.Emitter] = map[string]bool{}
			}
			dead[d.Emitter][d.Position] = true
		}
	}
	return dead
}

// checkDeliveries: each stored event reached its destination or is a dead letter; a destination got nothing that is not
// stored. Repeats are allowed by at-least-once; they are counted.
func checkDeliveries(in Input, f *facts) *Result {
	r := newResult("deliveries")
	kept, dead, written := keptBy(in.Attempts), deadBy(in), deadInFiles(in)
	for _, e := range in.Emitters {
		if e.Kind != "webhook" || len(f.final[e.Channel]) == 0 {
			continue
		}
		got := map[string]int{}
		for _, event := range kept[e.Name] {
			got[event]++
		}
		for _, n := range got {
			r.Numbers["repeats "+e.Name] += int64(n - 1)
		}
		r.Numbers["kept "+e.Name] = int64(len(got))
		r.Numbers["dead "+e.Name] = int64(len(dead[e.Name]))
		missing := 0
		for _, s := range f.stored(e.Channel) {
			name := s.Source + " " + s.ID
			if got[name] == 0 && !dead[e.Name][s.Position] && !(in.Final.Truncated[e.Channel] && written[e.Name+" "+name]) {
				missing++
				if in.Expect.Quiet {
					r.fail("%s at %s is neither at the destination of %s nor a dead letter", name, s.Position, e.Name)
				}
			}
			delete(got, name)
		}
		if missing > 0 && !in.Expect.Quiet {
			r.unknown("%d deliveries of %s were not yet resolved at the end", missing, e.Name)
		}
		for _, name := range sortedKeys(got) {
			source, id, _ := strings.Cut(name, " ")
			if f.trimmed && f.fates[key{e.Channel, source, id}] != nil {
				continue
			}
			r.fail("the destination of %s got %s, which is not stored", e.Name, name)
		}
	}
	return r
}

// checkKeyOrder: at an emitter of an ordered channel, the first arrivals of each key come in log order. (The harness's
// writers use one key each and number their events.) A repeat of an earlier event is no violation.
func checkKeyOrder(in Input, _ *facts) *Result {
	r := newResult("order per key")
	kept := keptBy(in.Attempts)
	for _, e := range in.Emitters {
		if e.Kind != "webhook" || !e.Ordered {
			continue
		}
		seen, last := map[string]bool{}, map[string]uint64{}
		for _, event := range kept[e.Name] {
			source, id, _ := strings.Cut(event, " ")
			n, ok := number(id)
			if !ok || seen[event] {
				continue
			}
			seen[event] = true
			if n < last[source] {
				r.fail("%s got %s of %s first after number %d", e.Name, id, source, last[source])
			}
			last[source] = max(last[source], n)
		}
		r.Numbers["keys "+e.Name] = int64(len(last))
	}
	return r
}

// checkIDs: on every repeat a delivery carries the same compaction id and webhook id, and a compaction has the same members
// in the same order (I6). A repeat may leave out members that were resolved meanwhile, never add or reorder one.
func checkIDs(in Input, _ *facts) *Result {
	r := newResult("ids")
	compactionOf := map[string]string{} // emitter + event -> compaction
	members := map[string][]string{}    // emitter + compaction -> events
	webhookIDs := map[string]string{}   // emitter + compaction -> webhook id
	for _, a := range in.Attempts {
		if a.Compaction == "" || a.WebhookID == "" {
			r.fail("an attempt of %s for %v carries no compaction id or no webhook id", a.Emitter, a.Events)
			continue
		}
		name := a.Emitter + " " + a.Compaction
		if was, ok := webhookIDs[name]; ok && was != a.WebhookID && len(members[name]) == len(a.Events) {
			r.fail("compaction %s of %s came with webhook id %s and then %s", a.Compaction, a.Emitter, was, a.WebhookID)
		}
		webhookIDs[name] = a.WebhookID
		for _, event := range a.Events {
			if was, ok := compactionOf[a.Emitter+" "+event]; ok && was != a.Compaction {
				r.fail("%s came to %s in compaction %s and then in %s", event, a.Emitter, was, a.Compaction)
			}
			compactionOf[a.Emitter+" "+event] = a.Compaction
		}
		was, ok := members[name]
		if !ok {
			members[name] = a.Events
			continue
		}
		if !subsequence(a.Events, was) && !subsequence(was, a.Events) {
			r.fail("compaction %s of %s had members %v and then %v", a.Compaction, a.Emitter, was, a.Events)
		}
		if len(a.Events) > len(was) {
			members[name] = a.Events
		}
	}
	r.Numbers["compactions"] = int64(len(members))
	r.Numbers["attempts"] = int64(len(in.Attempts))
	return r
}

// subsequence tells whether a can be had from b by leaving members out.
func subsequence(a, b []string) bool {
	for _, x := range a {
		i := slices.Index(b, x)
		if i < 0 {
			return false
		}
		b = b[i+1:]
	}
	return true
}

// diskLost tells whether a node's data volume was replaced: the files delivered to it are gone with it.
func diskLost(in Input) bool {
	return slices.ContainsFunc(in.Faults, func(f history.Fault) bool {
		return (f.Kind == "lost-disk" || f.Kind == "replace-all") && f.Phase == history.Begin
	})
}

// checkFiles: a file emitter's files, united by name over all nodes, hold each stored event exactly once; the same name has
// the same bytes wherever it lies.
func checkFiles(in Input, f *facts) *Result {
	r := newResult("files")
	if in.Expect.Reachable {
		return r.leaveOut(outOfReach)
	}
	for _, e := range in.Emitters {
		if e.Kind != "file" || len(f.final[e.Channel]) == 0 {
			continue
		}
		byName := map[string]FileOut{}
		for _, out := range in.Final.Files {
			if was, ok := byName[out.Name]; ok && was.Sum != out.Sum {
				r.fail("file %s has other bytes on %s than on %s", out.Name, out.Node, was.Node)
			}
			byName[out.Name] = out
		}
		in1 := map[string]string{}
		for _, name := range sortedKeys(byName) {
			for _, event := range byName[name].Events {
				if was, ok := in1[event]; ok {
					r.fail("%s stands in file %s and in file %s", event, was, name)
				}
				in1[event] = name
			}
		}
		r.Numbers["files"] = int64(len(byName))
		for _, s := range f.stored(e.Channel) {
			name := s.Source + " " + s.ID
			if in1[name] == "" && in.Expect.Quiet && !diskLost(in) {
				r.fail("%s at %s is in no file of %s", name, s.Position, e.Name)
			}
			delete(in1, name)
		}
		for _, event := range sortedKeys(in1) {
			if f.trimmed {
				break
			}
			r.fail("file %s holds %s, which is not stored", in1[event], event)
		}
	}
	return r
}
