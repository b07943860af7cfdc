package check

import (
	"slices"

	"penstock/jepsen/history"
)

// checkSet: every acknowledged event is there on every node, once, with its bytes; nothing is there that was never sent or
// that was certainly not committed. What was unknown may be there ("recovered") or not.
func checkSet(in Input, f *facts) *Result {
	r := newResult("set")
	for _, channel := range in.Expect.Channels {
		nodes := f.final[channel]
		if len(nodes) < max(1, in.Expect.MinFinalRead) {
			r.unknown("channel %s was read whole on %d nodes", channel, len(nodes))
		}
		for _, node := range sortedKeys(nodes) {
			checkSetOn(r, f, channel, node, nodes[node])
		}
		if f.trimmed {
			checkKeptSomewhere(r, in, f, channel)
		}
	}
	for _, e := range f.fates {
		r.Numbers["attempted"]++
		if e.ok > 0 {
			r.Numbers["acked"]++
		}
	}
	return r
}

func checkSetOn(r *Result, f *facts, channel, node string, seen []history.Seen) {
	there := map[key]history.Seen{}
	var first, last string
	for _, s := range seen {
		k := key{channel, s.Source, s.ID}
		if before, again := there[k]; again {
			r.Numbers["duplicated"]++
			r.fail("duplicated: %s %s on %s at %s and %s", s.Source, s.ID, node, before.Position, s.Position)
		}
		there[k] = s
		if first == "" || comparePositions(s.Position, first) < 0 {
			first = s.Position
		}
		if last == "" || comparePositions(s.Position, last) > 0 {
			last = s.Position
		}
		checkExpected(r, f, k, s, node)
	}
	var lost []key
	for k, e := range f.fates {
		index, _ := splitPosition(e.position)
		if k.channel == channel && e.ok > 0 && index >= f.horizon { // what is below it must be somewhere else
			if _, ok := there[k]; !ok {
				lost = append(lost, k)
			}
		}
	}
	slices.SortFunc(lost, func(a, b key) int { return comparePositions(f.fates[a].position, f.fates[b].position) })
	for _, k := range lost {
		position := f.fates[k].position
		where := "middle"
		switch {
		case first == "" || comparePositions(position, first) < 0:
			where = "prefix"
		case comparePositions(position, last) > 0:
			where = "postfix"
		}
		r.Numbers["lost "+where]++
		r.fail("lost (%s): %s %s acked at %s is not on %s", where, k.source, k.id, position, node)
	}
}

// checkKeptSomewhere: where resolved events may be gone, each acknowledged one was shown by some node or kept by a
// destination, or is a dead letter.
func checkKeptSomewhere(r *Result, in Input, f *facts, channel string) {
	there := map[string]bool{}
	for _, s := range f.stored(channel) {
		there[s.Source+" "+s.ID] = true
	}
	for _, e := range in.Emitters {
		if e.Channel == channel {
			for _, event := range keptBy(in.Attempts)[e.Name] {
				there[event] = true
			}
		}
	}
	for k, e := range f.fates {
		if k.channel == channel && e.ok > 0 && !there[k.source+" "+k.id] {
			r.Numbers["lost"]++
			r.fail("lost: %s %s acked at %s was never shown nor delivered", k.source, k.id, e.position)
		}
	}
}

func checkExpected(r *Result, f *facts, k key, s history.Seen, node string) {
	e := f.fates[k]
	switch {
	case e == nil:
		r.Numbers["unexpected"]++
		r.fail("unexpected: %s %s on %s at %s was never sent", k.source, k.id, node, s.Position)
	case e.ok+e.info+e.open == 0:
		r.Numbers["denied"]++
		r.fail("unexpected: %s %s on %s at %s, but every attempt was answered as certainly not committed", k.source, k.id, node, s.Position)
	case e.ok == 0:
		r.Numbers["recovered"]++
	}
	if e != nil && e.sum != "" && e.sum != s.Sum {
		r.Numbers["changed"]++
		r.fail("changed: the data of %s %s on %s at %s is not what was sent", k.source, k.id, node, s.Position)
	}
}

// checkPositions: an event has one position for ever (I6), in every answer and at every node, and what a reader once saw as
// committed is still there at the end; one reader sees positions that only rise.
func checkPositions(in Input, f *facts) *Result {
	r := newResult("positions")
	at := map[key]string{}
	holder := map[string]map[string]key{} // channel -> position -> event
	note := func(k key, position, where string) {
		if position == "" {
			r.fail("%s gives %s %s no position", where, k.source, k.id)
			return
		}
		if was, ok := at[k]; ok && was != position {
			r.fail("%s %s was at %s and is at %s (%s)", k.source, k.id, was, position, where)
		}
		at[k] = position
		if holder[k.channel] == nil {
			holder[k.channel] = map[string]key{}
		}
		if other, ok := holder[k.channel][position]; ok && other != k {
			r.fail("position %s holds %s and %s (%s)", position, other.id, k.id, where)
		}
		holder[k.channel][position] = k
	}
	for _, p := range f.pairs {
		if p.invoke == nil || p.complete == nil || p.complete.Type != history.OK {
			continue
		}
		for i, a := range p.complete.Acks {
			if i < len(p.invoke.IDs) && a.ID != "" && a.ID != p.invoke.IDs[i] {
				r.fail("the answer to %s names %s in its place", p.invoke.IDs[i], a.ID)
			}
			if i < len(p.invoke.IDs) {
				note(key{p.invoke.Channel, "/jepsen/" + p.invoke.Client, p.invoke.IDs[i]}, ackPosition(a), "answer of "+p.invoke.Node)
			}
		}
	}
	for _, channel := range in.Expect.Channels {
		for _, node := range sortedKeys(f.final[channel]) {
			rising(r, channel, node, f.final[channel][node])
			for _, s := range f.final[channel][node] {
				note(key{channel, s.Source, s.ID}, s.Position, "final read of "+node)
			}
		}
		finals := map[string]bool{}
		for _, s := range f.stored(channel) {
			finals[s.Position] = true
		}
		for _, reader := range sortedKeys(f.live[channel]) {
			rising(r, channel, reader, f.live[channel][reader])
			for _, s := range f.live[channel][reader] {
				note(key{channel, s.Source, s.ID}, s.Position, "tail by "+reader)
				if len(f.final[channel]) > 0 && !f.trimmed && !finals[s.Position] {
					r.fail("%s %s at %s was shown to %s as committed and is gone", s.Source, s.ID, s.Position, reader)
				}
			}
		}
	}
	r.Numbers["events"] = int64(len(at))
	return r
}

func rising(r *Result, channel, who string, seen []history.Seen) {
	for i := 1; i < len(seen); i++ {
		if comparePositions(seen[i-1].Position, seen[i].Position) >= 0 {
			r.fail("%s of %s: %s is shown after %s", who, channel, seen[i].Position, seen[i-1].Position)
		}
	}
}

// checkDivergence: all nodes show the same events at the same positions, from the highest of their first readable indexes.
func checkDivergence(in Input, f *facts) *Result {
	r := newResult("divergence")
	for _, channel := range in.Expect.Channels {
		nodes := sortedKeys(f.final[channel])
		if len(nodes) < 2 {
			r.unknown("channel %s was read whole on %d nodes", channel, len(nodes))
			continue
		}
		start := ""
		for _, n := range nodes {
			if seen := f.final[channel][n]; len(seen) > 0 && (start == "" || comparePositions(seen[0].Position, start) > 0) {
				start = seen[0].Position
			}
		}
		// Only a node that answers 410 below some index may start later; such a one is the exception, so say how much was compared.
		reference := from(f.final[channel][nodes[0]], start)
		r.Numbers["compared "+channel] = int64(len(reference))
		for _, n := range nodes[1:] {
			other := from(f.final[channel][n], start)
			if i, ok := firstDifference(reference, other); ok {
				r.fail("channel %s: %s and %s differ at event %d: %s", channel, nodes[0], n, i, describe(reference, other, i))
			}
		}
	}
	return r
}

func from(seen []history.Seen, position string) []history.Seen {
	i := slices.IndexFunc(seen, func(s history.Seen) bool { return comparePositions(s.Position, position) >= 0 })
	if i < 0 {
		return nil
	}
	return seen[i:]
}

func firstDifference(a, b []history.Seen) (int, bool) {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			return i, true
		}
	}
	return 0, false
}

func describe(a, b []history.Seen, i int) string {
	one := func(s []history.Seen) string {
		if i >= len(s) {
			return "nothing"
		}
		return s[i].ID + " at " + s[i].Position
	}
	return one(a) + " against " + one(b)
}

// checkWriterOrder: a writer has one request under way at a time, so its events stand in the log in the order it wrote them.
func checkWriterOrder(in Input, f *facts) *Result {
	r := newResult("writer order")
	for _, channel := range in.Expect.Channels {
		last := map[string]uint64{}
		for _, s := range f.stored(channel) {
			n, ok := number(s.ID)
			if !ok {
				continue
			}
			stream := s.Source + " " + s.ID[:len(s.ID)-len(digits(s.ID))]
			if n <= last[stream] {
				r.fail("channel %s: %s stands after number %d of the same writer", channel, s.ID, last[stream])
			}
			last[stream] = n
		}
	}
	return r
}

func digits(s string) string {
	i := len(s)
	for i > 0 && s[i-1] >= '0' && s[i-1] <= '9' {
		i--
	}
	return s[i:]
}
