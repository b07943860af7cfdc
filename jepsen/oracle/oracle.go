// Package oracle reads the logs the nodes left on disk and computes by itself what they commit to: which bytes stand at
// which index, which events count and where, what the source offsets are. The product's state machine has no say in it.
//
// It promises that it only reads, that it decodes in one file (decode.go), and that its rules are written again from the
// design rather than shared with the product: first wins by (channel, source, id) within the dedup window by entry
// timestamps, among batches whose channel creation index and spec version are current at their index.
package oracle

import (
	"fmt"
	"slices"
)

// Entry is one log entry of one node.
type Entry struct {
	Index uint64 `json:"i"`
	Term  uint64 `json:"t"`
	Type  uint8  `json:"y"`
	Sum   string `json:"s"` // hash over type and data
	Stamp int64  `json:"at,omitempty"`
	// Puts, Deletes and Batches are the commands that matter here, in their order in the entry.
	Commands []Command `json:"c,omitempty"`
}

// Command is one command of an entry, as far as events are concerned.
type Command struct {
	Put    *Put    `json:"put,omitempty"`
	Assign *Assign `json:"assign,omitempty"`
	Delete string  `json:"delete,omitempty"`
	Batch  *Batch  `json:"batch,omitempty"`
	// Yield is the index below which resolved events stop being readable, for lack of space.
	Yield uint64 `json:"yield,omitempty"`
}

// Put creates or changes a channel.
type Put struct {
	Name        string `json:"name"`
	Spec        string `json:"spec"` // hash: the same spec again changes nothing
	WindowNanos int64  `json:"window"`
	IfVersion   uint64 `json:"if,omitempty"`
	// Emitters are the names of its emitters: each new one takes a creation index too.
	Emitters []string `json:"emitters,omitempty"`
}

// Assign gives an emitter to a node, if its epoch is still IfEpoch.
type Assign struct {
	ChannelIndex uint64 `json:"ch"`
	EmitterIndex uint64 `json:"em"`
	Node         string `json:"node"`
	IfEpoch      uint64 `json:"if"`
}

// Owner is one ownership of an emitter.
type Owner struct {
	Node  string
	Epoch uint64
	Since int64 // stamp of the entry
}

// Batch is the events of one request.
type Batch struct {
	ChannelIndex uint64  `json:"ch"`
	SpecVersion  uint64  `json:"v"`
	Events       []Event `json:"e"`
	Offset       *Offset `json:"o,omitempty"`
}

// Event is one event of a batch.
type Event struct {
	Source   string `json:"s"`
	ID       string `json:"id"`
	ServerID bool   `json:"server,omitempty"`
}

// Offset is a source offset committed with a batch.
type Offset struct {
	Source, Partition string
	Position, Record  uint64
	Closed            bool
}

// Log is what one node's log holds.
type Log struct {
	Node    string  `json:"node"`
	Entries []Entry `json:"entries"`
	// Problem is why the log could not be read to its end; empty when it could.
	Problem string `json:"problem,omitempty"`
}

// Accepted is one event that counts.
type Accepted struct{ Position, Source, ID string }

// State is what a log says once it is applied.
type State struct {
	First      uint64 // index of the first entry that was there
	Last       uint64
	Accepted   map[string][]Accepted // by channel name
	Duplicates map[string]uint64
	Refused    int                // batches that were stale
	Offsets    map[string]Offset  // channel + source + partition
	Owners     map[string][]Owner // by emitter name, in order
}

type channel struct {
	name     string
	creation uint64
	version  uint64
	spec     string
	window   int64
	emitters []string
	seen     map[string]int64 // source + id -> stamp of the first
}

// Differences compares logs of several nodes up to index upTo and names each index at which two hold different entries.
func Differences(logs map[string]*Log, upTo uint64) []string {
	var found []string
	type holder struct {
		node  string
		entry Entry
	}
	at := map[uint64]holder{}
	for _, node := range nodes(logs) {
		for _, e := range logs[node].Entries {
			if e.Index > upTo {
				continue
			}
			was, ok := at[e.Index]
			if !ok {
				at[e.Index] = holder{node, e}
				continue
			}
			if was.entry.Term != e.Term || was.entry.Sum != e.Sum {
				found = append(found, fmt.Sprintf("index %d: %s holds term %d sum %s, %s holds term %d sum %s",
					e.Index, was.node, was.entry.Term, was.entry.Sum, node, e.Term, e.Sum))
			}
		}
	}
	return found
}

// Gaps names indexes that are missing inside one node's log.
func Gaps(l *Log) []string {
	var found []string
	for i := 1; i < len(l.Entries); i++ {
		if l.Entries[i].Index != l.Entries[i-1].Index+1 {
			found = append(found, fmt.Sprintf("%s: entry %d follows entry %d", l.Node, l.Entries[i].Index, l.Entries[i-1].Index))
		}
	}
	return found
}

// Union is the longest log the nodes have together, up to index upTo.
func Union(logs map[string]*Log, upTo uint64) []Entry {
	at := map[uint64]Entry{}
	for _, l := range logs {
		for _, e := range l.Entries {
			if e.Index <= upTo {
				at[e.Index] = e
			}
		}
	}
	all := make([]Entry, 0, len(at))
	for _, e := range at {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b Entry) int { return int(int64(a.Index) - int64(b.Index)) })
	return all
}

// Horizon is the highest index up to which the log let resolved events go for lack of space; 0 is never.
func Horizon(logs map[string]*Log) (top uint64) {
	for _, l := range logs {
		for _, e := range l.Entries {
			for _, c := range e.Commands {
				top = max(top, c.Yield)
			}
		}
	}
	return top
}

func nodes(logs map[string]*Log) []string {
	names := make([]string, 0, len(logs))
	for n := range logs {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Apply computes what the entries commit to.
func Apply(entries []Entry) State {
	s := State{Accepted: map[string][]Accepted{}, Duplicates: map[string]uint64{}, Offsets: map[string]Offset{}, Owners: map[string][]Owner{}}
	emitters := map[uint64]string{}
	byName, byIndex := map[string]*channel{}, map[uint64]*channel{}
	var created uint64
	for _, e := range entries {
		if s.First == 0 {
			s.First = e.Index
		}
		s.Last = e.Index
		ordinal := 0
		for _, c := range e.Commands {
			switch {
			case c.Put != nil:
				put(e.Index, c.Put, byName, byIndex, emitters, &created)
			case c.Assign != nil:
				s.assign(e, c.Assign, emitters[c.Assign.EmitterIndex])
			case c.Delete != "":
				if ch := byName[c.Delete]; ch != nil {
					delete(byName, c.Delete)
					delete(byIndex, ch.creation)
				}
			case c.Batch != nil:
				s.batch(e, c.Batch, byIndex[c.Batch.ChannelIndex], ordinal)
				ordinal += len(c.Batch.Events)
			}
		}
	}
	return s
}

// put: a spec that is already there changes nothing; any other raises the version by one. A new channel and each of its new
// emitters takes the next creation index, which is at least the index of the entry.
func put(index uint64, p *Put, byName map[string]*channel, byIndex map[uint64]*channel, emitters map[uint64]string, created *uint64) {
	create := func() uint64 {
		*created = max(index, *created+1)
		return *created
	}
	ch := byName[p.Name]
	switch {
	case ch == nil && p.IfVersion > 0, ch != nil && (ch.spec == p.Spec || p.IfVersion > 0 && p.IfVersion != ch.version):
		return
	case ch == nil:
		ch = &channel{name: p.Name, creation: create(), seen: map[string]int64{}}
		byName[p.Name], byIndex[ch.creation] = ch, ch
	}
	ch.version++
	ch.spec, ch.window = p.Spec, p.WindowNanos
	for _, e := range p.Emitters {
		if !slices.Contains(ch.emitters, e) {
			emitters[create()] = e
		}
	}
	ch.emitters = p.Emitters
}

// assign raises the epoch by one, if it is the one the proposer knew.
func (s *State) assign(e Entry, a *Assign, emitter string) {
	var epoch uint64
	if terms := s.Owners[emitter]; len(terms) > 0 {
		epoch = terms[len(terms)-1].Epoch
	}
	if emitter != "" && a.IfEpoch == epoch {
		s.Owners[emitter] = append(s.Owners[emitter], Owner{Node: a.Node, Epoch: epoch + 1, Since: e.Stamp})
	}
}

func (s *State) batch(e Entry, b *Batch, ch *channel, ordinal int) {
	if ch == nil || b.SpecVersion != ch.version {
		s.Refused++
		return
	}
	for i, ev := range b.Events {
		key := ev.Source + "\x00" + ev.ID
		if at, ok := ch.seen[key]; ok && !ev.ServerID && e.Stamp-at <= ch.window {
			s.Duplicates[ch.name]++
			continue
		}
		if !ev.ServerID {
			ch.seen[key] = e.Stamp
		}
		s.Accepted[ch.name] = append(s.Accepted[ch.name], Accepted{
			Position: fmt.Sprintf("%d.%d", e.Index, ordinal+i), Source: ev.Source, ID: ev.ID,
		})
	}
	if o := b.Offset; o != nil {
		key := ch.name + " " + o.Source + " " + o.Partition
		at := s.Offsets[key]
		at.Source, at.Partition = o.Source, o.Partition
		at.Position, at.Record, at.Closed = max(at.Position, o.Position), max(at.Record, o.Record), at.Closed || o.Closed
		s.Offsets[key] = at
	}
}
