package fsm

import (
	"bytes"
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"penstock/event"
	"penstock/fsm/command"
	"penstock/internal/spec"
)

// model is a second, naive account of what the log says, kept from the results of Apply alone.
type model struct {
	channels map[uint64]*modelChannel // by creation index
	floor    uint64
	horizon  uint64
}

type modelChannel struct {
	accepted []event.Position // sequence number i+1
	lastOf   map[string]keyAt // by id
	window   int64
	shorten  bool
	emitters map[uint64]*modelEmitter
	offsets  map[string]event.SourceOffset
	location map[uint64]uint64 // of carried events, by sequence number: the entry that carried them last
}

// lies is the entry that holds the bytes of an event.
func (c *modelChannel) lies(seq uint64) uint64 {
	if at := c.location[seq]; at != 0 {
		return at
	}
	return c.accepted[seq-1].Index
}

type keyAt struct {
	position event.Position
	stamp    int64
}

type modelEmitter struct {
	start  uint64
	states map[uint64]string // by sequence number; absent = pending
	runs   map[uint64]uint64 // first -> last, as first seen
}

// TestRandomLogs is I3 to I7 over random logs: at every index the ledger balances and agrees with the model, the floor
// passes nothing that is needed and never goes down, runs and positions stay what they were, offsets do not go down; and at
// the end a machine that was stopped and opened at random moments, and one that began with a snapshot and was sent older
// entries again, hold the same state byte for byte.
func TestRandomLogs(t *testing.T) { rapid.Check(t, randomLog) }

func randomLog(t *rapid.T) {
	r := newRig(t)
	d := &driver{T: t, rig: r, model: model{channels: map[uint64]*modelChannel{}}}
	steps := rapid.IntRange(1, 40).Draw(t, "steps")
	var log []applied
	d.logged = func() { log = append(log, applied{r.index, r.term, r.log[len(r.log)-1]}) }
	snapshotAt := rapid.IntRange(0, steps).Draw(t, "snapshotAt")
	var snapshot []byte
	var snapshotLen int
	for i := range steps {
		d.step()
		d.logged()
		d.check()
		if i == snapshotAt {
			snapshot, snapshotLen = snapshotOf(t, r.m), len(log)
		}
	}
	want := dumpOf(t, r.m)
	_, wantHash, _ := r.m.StateHash()

	stopped := newRig(t)
	for _, e := range log {
		_, err := stopped.m.Apply(e.index, e.term, e.data)
		require.NoError(t, err)
		if rapid.IntRange(0, 9).Draw(t, "stop") == 0 {
			// What was not checkpointed is lost and comes again.
			if rapid.Bool().Draw(t, "checkpoint") {
				require.NoError(t, stopped.m.Checkpoint())
			}
			m, err := Open(stopped.store, Config{})
			require.NoError(t, err)
			stopped.m = m
			from, _ := m.Applied()
			for _, old := range log {
				if old.index > from && old.index <= e.index {
					_, err := m.Apply(old.index, old.term, old.data)
					require.NoError(t, err)
				}
			}
		}
	}
	require.Equal(t, want, dumpOf(t, stopped.m), "stopped and opened again")

	if snapshot != nil {
		joined, err := Open(newMemStore(), Config{})
		require.NoError(t, err)
		require.NoError(t, joined.Restore(bytes.NewReader(snapshot)))
		for _, e := range log[max(snapshotLen-5, 0):] { // some entries come again
			_, err := joined.Apply(e.index, e.term, e.data)
			require.NoError(t, err)
		}
		require.Equal(t, want, dumpOf(t, joined), "from a snapshot")
		_, hash, _ := joined.StateHash()
		require.Equal(t, wantHash, hash)
	}
	reloaded := r.reopen()
	require.Equal(t, want, dumpOf(t, reloaded))
}

// driver makes random entries and tells the model what came of them.
type driver struct {
	*rapid.T
	*rig
	model  model
	logged func() // notes the entry applied last
}

// applied is one entry of the log.
type applied struct {
	index, term uint64
	data        []byte
}

func (*driver) learnNothing([][]byte) {}

func (d *driver) n(lo, hi int, what string) int { return rapid.IntRange(lo, hi).Draw(d.T, what) }

func (d *driver) step() {
	switch d.n(0, 9, "time") {
	case 0:
		d.stamp += int64(d.n(0, 100, "seconds")) * second
	case 1:
		d.stamp -= int64(d.n(0, 5, "back")) * second // a stamp that went back must not matter
	default:
		d.stamp += int64(d.n(0, 400, "ms")) * 1e6
	}
	if d.n(0, 9, "gap") == 0 {
		d.rig.index += uint64(d.n(1, 5000, "gap by"))
		d.term += uint64(d.n(0, 1, "term"))
	}
	var commands []command.Command
	if d.n(0, 2, "own") > 0 {
		var a command.Assign
		for _, e := range d.m.Emitters() {
			if e.Owner == "" {
				a.Items = append(a.Items, command.Assignment{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Node: "n1"})
			}
		}
		if len(a.Items) > 0 {
			d.learnNothing(d.apply(a))
			d.logged()
		}
	}
	for range d.n(1, 4, "commands") {
		commands = append(commands, d.command())
	}
	results := d.apply(commands...)
	ordinal := uint32(0)
	for i, c := range commands {
		d.learn(c, results[i], &ordinal)
	}
}

func (d *driver) command() command.Command {
	channels := d.m.Channels()
	kind := d.n(0, 19, "command")
	if len(channels) == 0 && kind < 14 {
		kind = 18
	}
	switch {
	case kind < 6:
		return d.batch(channels[d.n(0, len(channels)-1, "channel")])
	case kind < 12:
		return d.outcomes()
	case kind == 12:
		return command.Tick{}
	case kind == 13:
		var a command.Assign
		for _, e := range d.m.Emitters() {
			a.Items = append(a.Items, command.Assignment{
				ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Node: "n1", IfEpoch: e.Epoch + uint64(d.n(0, 5, "wrong")/5),
			})
		}
		return a
	case kind == 14:
		return command.ChannelDelete{Name: d.name(), Discard: d.n(0, 9, "discard") == 0}
	case kind == 15:
		return command.ClusterInit{ClusterID: [16]byte{byte(d.n(1, 2, "cluster"))}, Name: "x"}
	case kind == 16:
		return d.operator()
	case kind == 17:
		return d.carry()
	default:
		c := d.spec()
		return command.ChannelPut{Spec: c.Canonical(), Discard: d.n(0, 2, "discard") == 0}
	}
}

// operator makes a command about audit, replay or discard.
func (d *driver) operator() command.Command {
	id := [16]byte{byte(d.n(0, 4, "intent"))}
	what := d.n(0, 6, "act")
	emitters := d.m.Emitters()
	switch {
	case what == 0:
		return command.Yield{Index: uint64(d.n(0, int(d.rig.index)+2, "yield"))}
	case what == 1 || len(emitters) == 0:
		return command.AuditIntent{ID: id, Actor: "a", Action: "b", Targets: []string{"t"}}
	case what == 2:
		return command.AuditOutcome{ID: id, Result: []string{AuditSuccess, AuditUnknown, "?"}[d.n(0, 2, "result")]}
	}
	e := emitters[d.n(0, len(emitters)-1, "emitter")]
	var seqs []uint64
	for _, l := range d.m.DeadLetters(e.Channel, e.Emitter, "") {
		if d.n(0, 1, "take") == 0 {
			seqs = append(seqs, l.Seq)
		}
	}
	switch what {
	case 3:
		return command.Discard{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Intent: id, Seqs: seqs}
	case 4:
		return command.ReplayRelease{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Epoch: e.Epoch, Node: e.Owner, ID: id, Seqs: seqs}
	}
	return command.ReplayClaim{
		ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Epoch: e.Epoch, Node: e.Owner, ID: id,
		Scheduled: d.n(0, 1, "scheduled") == 0, Force: d.n(0, 1, "force") == 0, Seqs: seqs,
	}
}

// carry carries a part of what is needed, mostly from where it lies.
func (d *driver) carry() command.Command {
	all := d.m.NeededBelow(d.rig.index+1-uint64(d.n(0, int(min(d.rig.index, 30)), "below")), 1+d.n(0, 3, "limit"))
	if len(all) == 0 {
		return command.Tick{}
	}
	x := all[d.n(0, len(all)-1, "which")]
	mc := d.model.channels[x.ChannelIndex]
	first := x.First + uint64(d.n(0, int(x.Last-x.First), "from"))
	last := first
	for most := uint64(d.n(0, 20, "more")); last < x.Last && last-first < most && mc.location[last+1] == mc.location[first]; {
		last++
	}
	c := command.Carry{ChannelIndex: x.ChannelIndex, First: first, Old: mc.location[first] + uint64(d.n(0, 9, "wrong")/9)}
	for seq := first; seq <= last; seq++ {
		p := mc.accepted[seq-1]
		if n := len(c.Spans); n > 0 && c.Spans[n-1].Index == p.Index && c.Spans[n-1].Ordinal+c.Spans[n-1].Count == p.Ordinal {
			c.Spans[n-1].Count++
		} else {
			c.Spans = append(c.Spans, command.Span{Position: p, Count: 1})
		}
	}
	c.Body = batchOf(d.T, x.ChannelIndex, 0, nil, make([]string, last-first+1)...).Body
	return c
}

func (d *driver) learnCarry(c command.Carry, result []byte) {
	res, err := command.DecodePlainResult(result)
	require.NoError(d, err)
	mc := d.model.channels[c.ChannelIndex]
	if mc == nil || res.Status != command.OK {
		require.Contains(d, []command.Status{command.OK, command.NotNeeded, command.NoSuchChannel}, res.Status)
		return
	}
	for i := range command.CountSpans(c.Spans) {
		require.Equal(d, mc.location[c.First+i], c.Old, "carried from where it did not lie")
		mc.location[c.First+i] = d.rig.index
	}
}

func (d *driver) name() string { return fmt.Sprintf("c%d", d.n(0, 1, "name")) }

func (d *driver) spec() spec.Channel {
	var emitters []spec.Emitter
	for i := range 3 {
		if d.n(0, 3, "has") == 0 {
			continue
		}
		e := fileEmitter(fmt.Sprintf("e%d", i), d.n(1, 6, "events"), spec.Size(d.n(0, 1, "limited")*d.n(1, 300, "bytes")),
			spec.Duration(int64(d.n(0, 3, "linger"))*second))
		e.Start = []string{"latest", "earliest", "7"}[d.n(0, 2, "start")]
		emitters = append(emitters, e)
	}
	c := channelOf(d.name(), emitters...)
	c.Dedup.Window = spec.Duration(int64(d.n(0, 30, "window")) * second)
	c.Dedup.MaxKeys = d.n(5, 40, "max keys")
	c.Dedup.OnFull = []string{"refuse", "shorten"}[d.n(0, 1, "on full")]
	c.Retention.Keep = spec.Duration(int64(d.n(0, 60, "keep")) * second)
	return c
}

func (d *driver) batch(c ChannelInfo) command.Command {
	var ids []string
	for range d.n(0, 12, "events") {
		if d.n(0, 4, "server id") == 0 {
			ids = append(ids, "")
			continue
		}
		ids = append(ids, fmt.Sprintf("k%d=%d", d.n(0, 30, "id"), d.n(0, 1, "content")))
	}
	var offset *event.Offset
	if d.n(0, 2, "offset") == 0 {
		offset = &event.Offset{Source: "s", Partition: fmt.Sprint(d.n(0, 1, "partition")), SourceOffset: event.SourceOffset{
			Position: uint64(d.n(0, 9, "position")), Record: uint64(d.n(0, 9, "record")), Closed: d.n(0, 5, "closed") == 0,
		}}
	}
	b := batchOf(d.T, c.Index, c.Version+uint64(d.n(0, 9, "stale")/9), offset, ids...)
	return testBatch{Batch: b, channel: c.Index, ids: ids, offset: offset}
}

// testBatch remembers what is in a batch.
type testBatch struct {
	command.Batch
	channel uint64
	ids     []string
	offset  *event.Offset
}

func (d *driver) outcomes() command.Command {
	emitters := d.m.Emitters()
	if len(emitters) == 0 {
		return command.Tick{}
	}
	e := emitters[d.n(0, len(emitters)-1, "emitter")]
	mc := d.model.channels[e.ChannelIndex]
	o := command.Outcomes{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Epoch: e.Epoch, Node: e.Owner}
	for range d.n(1, 3, "outcomes") {
		out := command.Outcome{Kind: command.OutcomeKind(d.n(1, 9, "kind")), Attempts: 1, At: d.stamp, Class: 1, Status: 500}
		runs := d.m.Runs(e.ChannelIndex, e.EmitterIndex, e.StartSeq+uint64(d.n(0, 20, "from")), 3)
		switch {
		case d.n(0, 4, "anything") == 0 && e.CutSeq > e.StartSeq:
			out.First = e.StartSeq + uint64(d.n(1, int(e.CutSeq-e.StartSeq), "first"))
			out.Last = min(out.First+uint64(d.n(0, 5, "more")), e.CutSeq)
		case len(runs) > 0:
			run := runs[d.n(0, len(runs)-1, "run")]
			out.First, out.Last = run.First, run.Last
		default:
			continue
		}
		if out.Kind == command.Dead || out.Kind == command.Poison {
			out.Positions = mc.accepted[out.First-1 : out.Last]
		}
		o.Outcomes = append(o.Outcomes, out)
	}
	return o
}

// learn tells the model about one command and its result.
func (d *driver) learn(c command.Command, result []byte, ordinal *uint32) {
	switch c := c.(type) {
	case testBatch:
		d.learnBatch(c, result, ordinal)
	case command.ChannelPut:
		res, err := command.DecodeChannelResult(result)
		require.NoError(d, err)
		if res.Status == command.OK {
			d.learnChannel(res.Index, c)
		}
	case command.ChannelDelete:
		res, err := command.DecodeChannelResult(result)
		require.NoError(d, err)
		if res.Status == command.OK {
			delete(d.model.channels, res.Index)
		}
	case command.Outcomes:
		res, err := command.DecodeOutcomesResult(result)
		require.NoError(d, err)
		if res.Status == command.OK {
			d.learnOutcomes(c)
		}
	case command.Carry:
		d.learnCarry(c, result)
	case command.Discard:
		res, err := command.DecodeLettersResult(result)
		require.NoError(d, err)
		for i, state := range res.States {
			if state == command.LetterDone {
				d.learnOutcomes(command.Outcomes{ChannelIndex: c.ChannelIndex, EmitterIndex: c.EmitterIndex, Outcomes: []command.Outcome{
					{First: c.Seqs[i], Last: c.Seqs[i], Kind: command.Discarded},
				}})
			}
		}
	}
}

func (d *driver) learnChannel(index uint64, p command.ChannelPut) {
	c := d.model.channels[index]
	if c == nil {
		c = &modelChannel{lastOf: map[string]keyAt{}, emitters: map[uint64]*modelEmitter{}, offsets: map[string]event.SourceOffset{},
			location: map[uint64]uint64{}}
		d.model.channels[index] = c
	}
	want, err := spec.ParseJSON(p.Spec)
	require.NoError(d, err)
	if w := int64(want.Dedup.Window); c.window == 0 || w < c.window {
		c.window = w // only the smallest window declared is sure to have been kept
	}
	c.shorten = c.shorten || want.Dedup.OnFull == "shorten"
	if want.Dedup.Window == 0 {
		clear(c.lastOf)
	}
}

func (d *driver) learnBatch(b testBatch, result []byte, ordinal *uint32) {
	res, err := command.DecodeBatchResult(result)
	require.NoError(d, err)
	require.Equal(d, *ordinal, res.FirstOrdinal)
	require.EqualValues(d, len(b.ids), res.Count)
	*ordinal += res.Count
	rejects, _ := d.m.Rejects(d.rig.index)
	if res.Status != command.OK {
		for i := range res.Count {
			require.True(d, rejects.Event(res.FirstOrdinal+i))
		}
		return
	}
	require.Equal(d, res.Count, res.Accepted+res.Duplicates)
	c := d.model.channels[b.channel]
	dups := map[uint32]command.Dup{}
	for _, dup := range res.Dups {
		dups[dup.Ordinal] = dup
	}
	for i, id := range b.ids {
		id, _, _ = cutID(id)
		p := event.Position{Index: d.rig.index, Ordinal: res.FirstOrdinal + uint32(i)}
		dup, isDup := dups[p.Ordinal]
		require.Equal(d, isDup, rejects.Event(p.Ordinal))
		before, seen := c.lastOf[id]
		if isDup {
			require.True(d, seen)
			require.Equal(d, before.position, dup.Of)
			continue
		}
		if id != "" && c.window > 0 {
			if seen && !c.shorten {
				require.Greater(d, d.m.Stamp()-before.stamp, c.window-1, "%s was accepted twice within the window", id)
			}
			c.lastOf[id] = keyAt{p, d.m.Stamp()}
		}
		c.accepted = append(c.accepted, p)
	}
	if b.offset != nil {
		old, ok := c.offsets[b.offset.Partition]
		want := b.offset.SourceOffset
		if ok {
			want = old.Merge(want)
		}
		c.offsets[b.offset.Partition] = want
	}
}

func cutID(s string) (id, content string, ok bool) {
	i := bytes.IndexByte([]byte(s), '=')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

func (d *driver) learnOutcomes(o command.Outcomes) {
	c := d.model.channels[o.ChannelIndex]
	if c == nil {
		return
	}
	e := c.emitters[o.EmitterIndex]
	if e == nil {
		return // made and used within one entry: check knows it from then on
	}
	for _, out := range o.Outcomes {
		for seq := out.First; seq <= out.Last; seq++ {
			state := e.states[seq]
			switch {
			case state == "" && out.Kind == command.Delivered:
				e.states[seq] = "delivered"
			case state == "" && (out.Kind == command.Dead || out.Kind == command.Poison || out.Kind == command.Lost):
				e.states[seq] = out.Kind.String()
			case (state == "dead" || state == "poison") && out.Kind == command.Replayed:
				e.states[seq] = "delivered"
			case (state == "dead" || state == "poison") && out.Kind == command.Discarded:
				e.states[seq] = "discarded"
			}
		}
	}
}

// check is what must hold at every index.
func (d *driver) check() {
	floor, horizon := d.m.Floor(), d.m.Horizon()
	open := 0
	for _, r := range d.m.Audit(AuditQuery{Limit: 1000}) {
		if r.Open {
			open++
		}
	}
	n, _ := d.m.OpenIntents()
	require.Equal(d, open, n)
	require.Len(d, d.m.mu.state.open, len(d.m.DeadLetters("", "", "")))
	require.GreaterOrEqual(d, floor, d.model.floor, "the floor went down")
	require.GreaterOrEqual(d, horizon, d.model.horizon, "the horizon went down")
	require.LessOrEqual(d, horizon, floor)
	d.model.floor, d.model.horizon = floor, horizon
	for _, info := range d.m.Channels() {
		c := d.model.channels[info.Index]
		require.NotNil(d, c)
		require.EqualValues(d, len(c.accepted), info.Accepted)
		for _, o := range d.m.Offsets(info.Name) {
			require.Equal(d, c.offsets[o.Partition], o.Offset) // I7: the model only merges
		}
		require.Len(d, d.m.Offsets(info.Name), len(c.offsets))
		rows, _ := d.m.Ledger(info.Name)
		for _, row := range rows {
			require.True(d, row.Balanced(), "%+v", row) // I5
		}
	}
	d.checkCarried()
	seen := map[uint64]bool{}
	for _, e := range d.m.Emitters() {
		seen[e.EmitterIndex] = true
		d.checkEmitter(e, floor)
	}
	for _, c := range d.model.channels {
		maps.DeleteFunc(c.emitters, func(i uint64, _ *modelEmitter) bool { return !seen[i] })
	}
}

func (d *driver) checkEmitter(e EmitterInfo, floor uint64) {
	c := d.model.channels[e.ChannelIndex]
	me := c.emitters[e.EmitterIndex]
	if me == nil {
		me = &modelEmitter{start: e.StartSeq, states: map[uint64]string{}, runs: map[uint64]uint64{}}
		c.emitters[e.EmitterIndex] = me
	}
	require.Equal(d, me.start, e.StartSeq)
	counts := map[string]uint64{}
	lowest := uint64(0)
	for seq := e.StartSeq + 1; seq < e.NextSeq; seq++ {
		state := me.states[seq]
		counts[state]++
		require.Equal(d, state != "", d.m.Resolved(e.ChannelIndex, e.EmitterIndex, seq), "seq %d is %q", seq, state)
		if state == "" && lowest == 0 && c.location[seq] == 0 {
			lowest = seq
		}
		if state == "" || state == "dead" || state == "poison" { // I3
			d.checkBytes(e, c, seq, floor)
		}
	}
	for _, row := range mustLedger(d, e.Channel) {
		if row.EmitterIndex == e.EmitterIndex {
			require.Equal(d, LedgerRow{
				Emitter: e.Emitter, EmitterIndex: e.EmitterIndex, Accepted: e.NextSeq - 1 - e.StartSeq, Delivered: counts["delivered"],
				Dead: counts["dead"], Poison: counts["poison"], Discarded: counts["discarded"], Lost: counts["lost"], Pending: counts[""],
			}, row)
		}
	}
	if lowest > 0 {
		p, ok := d.m.Point(e.ChannelIndex, lowest)
		require.True(d, ok)
		require.LessOrEqual(d, p.Seq, lowest)
		require.GreaterOrEqual(d, p.Index, floor, "the point of a pending delivery lies below the floor")
		require.Equal(d, c.accepted[p.Seq-1].Index, p.Index)
		require.True(d, p.Seq == 1 || c.accepted[p.Seq-2].Index < p.Index, "the point is not the first of its entry")
	}
	next := uint64(0)
	for _, run := range d.m.Runs(e.ChannelIndex, e.EmitterIndex, 0, 1<<30) { // I6
		require.Greater(d, run.First, next)
		next = run.Last
		if last, ok := me.runs[run.First]; ok {
			require.Equal(d, last, run.Last, "a run changed")
		}
		me.runs[run.First] = run.Last
		d.checkBytes(e, c, run.First, floor) // its id is made of both ends, whatever of it is resolved
		d.checkBytes(e, c, run.Last, floor)
	}
	require.LessOrEqual(d, next, e.CutSeq)
	letters := d.m.DeadLetters(e.Channel, e.Emitter, "")
	require.EqualValues(d, counts["dead"]+counts["poison"], len(letters))
	for _, l := range letters {
		require.Equal(d, c.accepted[l.Seq-1], l.Position)
		require.Equal(d, me.states[l.Seq], l.State)
		found := d.m.FindLetter(l.ID)
		require.True(d, found.Open)
		require.Equal(d, l, found.Letter)
	}
	page, _, more := d.m.DeadLetterPage(LetterQuery{Channel: e.Channel, Emitter: e.Emitter, Limit: 1000})
	require.False(d, more)
	require.Equal(d, letters, page)
	for seq := range d.m.mu.state.emitter(e.ChannelIndex, e.EmitterIndex).claims {
		_, ok := d.m.DeadLetterOf(e.ChannelIndex, e.EmitterIndex, seq)
		require.True(d, ok, "a claim of what is no open dead letter")
	}
}

// checkBytes is I3 for an event that somebody needs: the floor has not passed the entry that holds its bytes, and who asks is
// told which entry that is, and where the event was committed.
func (d *driver) checkBytes(e EmitterInfo, c *modelChannel, seq, floor uint64) {
	require.LessOrEqual(d, floor, c.lies(seq), "the floor passed seq %d", seq)
	r, ok := d.m.Carried(e.ChannelIndex, seq)
	if c.location[seq] == 0 {
		require.False(d, ok && r.First <= seq, "seq %d was never carried", seq)
		return
	}
	require.True(d, ok && r.First <= seq && seq <= r.Last, "seq %d was carried", seq)
	require.Equal(d, c.location[seq], r.Location)
	require.Equal(d, c.accepted[seq-1], r.Position(seq))
	at, ok := r.SeqAt(r.Position(seq))
	require.True(d, ok)
	require.Equal(d, seq, at)
	same, ok := d.m.CarriedAt(e.ChannelIndex, r.Position(seq))
	require.True(d, ok)
	require.Equal(d, r, same)
}

// checkCarried: nothing stays carried that nobody needs, and the lowest location is what the floor goes by.
func (d *driver) checkCarried() {
	s, lowest, spans := d.m.mu.state, uint64(noIndex), 0
	for _, c := range s.order {
		// What nobody needed any more was let go; who asks for it after, as a new emitter may, must find it where it was committed.
		maps.DeleteFunc(d.model.channels[c.index].location, func(seq, _ uint64) bool { return c.carried.covers(seq) == nil })
		last := uint64(0)
		for _, r := range c.carried.runs {
			require.True(d, c.needs(r.first, r.last()), "%d to %d are carried and not needed", r.first, r.last())
			require.Greater(d, r.first, last, "carried runs overlap")
			last, lowest, spans = r.last(), min(lowest, r.location), spans+len(r.spans)
			require.Equal(d, r.count, command.CountSpans(r.spans))
		}
	}
	require.Equal(d, lowest, s.locations.lowest())
	require.Equal(d, spans, s.locations.spans)
}

func mustLedger(d *driver, channel string) []LedgerRow {
	rows, ok := d.m.Ledger(channel)
	require.True(d, ok)
	return rows
}
