package check

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"penstock/jepsen/history"
)

// key names one event of a channel.
type key struct{ channel, source, id string }

// fate is what the clients were told about one event.
type fate struct {
	ok, info, fail int    // completed attempts by outcome
	open           int    // attempts without completion: unknown as well
	position       string // of the first acknowledgement
	sum            string // of the data that was written
	ackedAt        int64
}

// facts is the histories sorted by event and node.
type facts struct {
	fates map[key]*fate
	final map[string]map[string][]history.Seen // channel -> node -> what the final read showed
	live  map[string]map[string][]history.Seen // channel -> client -> pages of one reader, in order
	ops   []history.Op
	pairs map[opKey]pair

	// trimmed: what was resolved may be gone from below the horizon.
	trimmed bool
	horizon uint64
}

type opKey struct {
	client string
	seq    uint64
}

type pair struct{ invoke, complete *history.Op }

// gather pairs invocations with completions and sorts what they say.
func gather(ops []history.Op) *facts {
	f := &facts{
		fates: map[key]*fate{}, final: map[string]map[string][]history.Seen{}, live: map[string]map[string][]history.Seen{},
		ops: ops, pairs: map[opKey]pair{},
	}
	for i := range ops {
		op := &ops[i]
		k := opKey{op.Client, op.Seq}
		p := f.pairs[k]
		if op.Type == history.Invoke {
			p.invoke = op
		} else {
			p.complete = op
		}
		f.pairs[k] = p
	}
	for i := range ops {
		op := &ops[i]
		if op.Type == history.Invoke && (op.F == history.Write || op.F == history.WriteOffset) {
			f.addWrite(f.pairs[opKey{op.Client, op.Seq}])
		}
		if op.Type == history.OK && op.F == history.FinalTail {
			addSeen(f.final, op.Channel, op.Node, op.Seen)
		}
		if op.Type == history.OK && op.F == history.Tail {
			addSeen(f.live, op.Channel, op.Client, op.Seen)
		}
	}
	return f
}

func addSeen(m map[string]map[string][]history.Seen, channel, who string, seen []history.Seen) {
	if m[channel] == nil {
		m[channel] = map[string][]history.Seen{}
	}
	m[channel][who] = append(m[channel][who], seen...)
}

func (f *facts) addWrite(p pair) {
	for i, id := range p.invoke.IDs {
		k := key{p.invoke.Channel, "/jepsen/" + p.invoke.Client, id}
		e := f.fates[k]
		if e == nil {
			e = &fate{}
			f.fates[k] = e
		}
		if i < len(p.invoke.Sums) {
			e.sum = p.invoke.Sums[i]
		}
		switch {
		case p.complete == nil:
			e.open++
		case p.complete.Type == history.Fail:
			e.fail++
		case p.complete.Type == history.Info:
			e.info++
		default:
			e.ok++
			if e.ackedAt == 0 {
				e.ackedAt = p.complete.T
			}
			if i < len(p.complete.Acks) && e.position == "" {
				e.position = ackPosition(p.complete.Acks[i])
			}
		}
	}
}

// ackPosition is where the event stands by an answer: its own position, or that of the first when it was a repeat.
func ackPosition(a history.Ack) string { return cmp.Or(a.DuplicateOf, a.Position) }

// comparePositions orders INDEX.ORD as the log does.
func comparePositions(a, b string) int {
	ai, ao := splitPosition(a)
	bi, bo := splitPosition(b)
	return cmp.Or(cmp.Compare(ai, bi), cmp.Compare(ao, bo))
}

func splitPosition(s string) (index, ordinal uint64) {
	is, os, _ := strings.Cut(s, ".")
	index, _ = strconv.ParseUint(is, 10, 64)
	ordinal, _ = strconv.ParseUint(os, 10, 64)
	return index, ordinal
}

// stored is what a channel holds: the union over all final reads, in log order. (That they are the same is a check of its
// own; the union makes the others say what is wrong beside it.) In a trimmed run what readers saw before belongs to it.
func (f *facts) stored(channel string) []history.Seen {
	byPosition := map[string]history.Seen{}
	for _, seen := range f.final[channel] {
		for _, s := range seen {
			byPosition[s.Position] = s
		}
	}
	if f.trimmed {
		for _, seen := range f.live[channel] {
			for _, s := range seen {
				byPosition[s.Position] = s
			}
		}
	}
	all := make([]history.Seen, 0, len(byPosition))
	for _, s := range byPosition {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b history.Seen) int { return comparePositions(a.Position, b.Position) })
	return all
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// number is the counter at the end of an event id: NAME-7 or SOURCE/PARTITION/7.
func number(id string) (uint64, bool) {
	i := strings.LastIndexAny(id, "-/")
	n, err := strconv.ParseUint(id[i+1:], 10, 64)
	return n, err == nil
}
