package fsm

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/stretchr/testify/require"

	"penstock/event"
	"penstock/fsm/command"
	"penstock/internal/spec"
)

// memStore is a Store in memory.
type memStore struct {
	head []byte
	rows map[string][]byte
}

func newMemStore() *memStore { return &memStore{rows: map[string][]byte{}} }

func (m *memStore) Write(head []byte, rows []Row) error {
	next := maps.Clone(m.rows)
	for _, r := range rows {
		key := string(append([]byte{r.Table}, r.Key...))
		if r.Value == nil {
			delete(next, key)
		} else {
			next[key] = bytes.Clone(r.Value)
		}
	}
	m.head, m.rows = bytes.Clone(head), next
	return nil
}

func (m *memStore) Replace(head []byte, rows func(yield func(Row) bool)) error {
	m.rows = map[string][]byte{}
	var all []Row
	rows(func(r Row) bool {
		r.Value = bytes.Clone(r.Value)
		all = append(all, r)
		return true
	})
	return m.Write(head, all)
}

func (m *memStore) View() (View, error) { return &memStore{head: m.head, rows: m.rows}, nil }
func (m *memStore) Head() []byte        { return m.head }
func (m *memStore) Close() error        { return nil }

func (m *memStore) Rows(f func(Row) error) error {
	for _, k := range slices.Sorted(maps.Keys(m.rows)) {
		if err := f(Row{Table: k[0], Key: []byte(k[1:]), Value: m.rows[k]}); err != nil {
			return err
		}
	}
	return nil
}

// rig drives a machine with entries one after the other.
type rig struct {
	t     require.TestingT
	m     *Machine
	store *memStore
	index uint64
	term  uint64
	stamp int64
	log   [][]byte // entry i lies at log[i-1]
}

func newRig(t require.TestingT) *rig {
	store := newMemStore()
	m, err := Open(store, Config{})
	require.NoError(t, err)
	return &rig{t: t, m: m, store: store, term: 1, stamp: 1_000 * second}
}

// apply applies one entry with the commands and gives the results.
func (r *rig) apply(commands ...command.Command) [][]byte {
	raw := make([][]byte, 0, len(commands))
	for _, c := range commands {
		raw = append(raw, command.Encode(c))
	}
	r.index++
	data := command.AppendEntry(nil, r.stamp, raw)
	r.log = append(r.log, data)
	results, err := r.m.Apply(r.index, r.term, data)
	require.NoError(r.t, err)
	require.Len(r.t, results, len(commands))
	return results
}

func (r *rig) put(c spec.Channel) command.ChannelResult {
	return r.putWith(command.ChannelPut{Spec: c.Canonical()})
}

func (r *rig) putWith(p command.ChannelPut) command.ChannelResult {
	res, err := command.DecodeChannelResult(r.apply(p)[0])
	require.NoError(r.t, err)
	return res
}

// send applies one batch of events with the given ids; id "" is made by the server.
func (r *rig) send(channel string, ids ...string) command.BatchResult {
	return r.sendWith(channel, nil, ids...)
}

func (r *rig) sendWith(channel string, offset *event.Offset, ids ...string) command.BatchResult {
	c, ok := r.m.Channel(channel)
	require.True(r.t, ok)
	res, err := command.DecodeBatchResult(r.apply(batchOf(r.t, c.Index, c.Version, offset, ids...))[0])
	require.NoError(r.t, err)
	return res
}

// batchOf makes a batch. "id" is an event by that id; "id=content" one with that content.
func batchOf(t require.TestingT, channel, version uint64, offset *event.Offset, ids ...string) command.Batch {
	events := make([]event.Event, 0, len(ids))
	for i, id := range ids {
		id, content, _ := bytes.Cut([]byte(id), []byte("="))
		e := event.Event{ID: string(id), Source: "/s", Type: "t", DataKind: event.DataJSON, Data: fmt.Appendf(nil, "%q", content)}
		if len(id) == 0 {
			e.ID, e.ServerID = fmt.Sprintf("server-%d", i), true
		}
		events = append(events, e)
	}
	body, err := event.EncodeBatch(nil, event.BatchHeader{ChannelIndex: channel, SpecVersion: version, Offset: offset},
		event.HashKey{1}, events, make([]bool, len(events)))
	require.NoError(t, err)
	return command.Batch{Body: body}
}

// channelOf is a valid spec with the given emitters.
func channelOf(name string, emitters ...spec.Emitter) spec.Channel {
	c := spec.Channel{Name: name, Semantics: spec.AtLeastOnce, Emitters: emitters}
	c.ApplyDefaults()
	return c
}

// fileEmitter cuts at so many events, bytes or nanoseconds.
func fileEmitter(name string, events int, bytes spec.Size, linger spec.Duration) spec.Emitter {
	return spec.Emitter{
		Name: name, Kind: "file", File: &spec.File{Directory: "out"},
		Compaction: spec.Compaction{Events: events, Bytes: bytes, Linger: linger},
	}
}

func (r *rig) emitter(channel string, i int) EmitterInfo {
	for _, e := range r.m.Emitters() {
		if e.Channel == channel {
			if i == 0 {
				return e
			}
			i--
		}
	}
	require.Fail(r.t, "no such emitter", "%s %d", channel, i)
	return EmitterInfo{}
}

// own assigns an emitter to n1.
func (r *rig) own(e EmitterInfo) EmitterInfo {
	r.apply(command.Assign{Items: []command.Assignment{{
		ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Node: "n1", IfEpoch: e.Epoch,
	}}})
	e, _ = r.m.Emitter(e.ChannelIndex, e.EmitterIndex)
	return e
}

func (r *rig) report(e EmitterInfo, outcomes ...command.Outcome) command.Status {
	res, err := command.DecodeOutcomesResult(r.apply(command.Outcomes{
		ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Epoch: e.Epoch, Node: e.Owner, Outcomes: outcomes,
	})[0])
	require.NoError(r.t, err)
	return res.Status
}

func (r *rig) ledger(channel string) []LedgerRow {
	rows, ok := r.m.Ledger(channel)
	require.True(r.t, ok)
	return rows
}

func dumpOf(t require.TestingT, m *Machine) string {
	var b bytes.Buffer
	require.NoError(t, m.Dump(&b))
	return b.String()
}

// reopen makes a checkpoint and opens a machine on what it wrote.
func (r *rig) reopen() *Machine {
	require.NoError(r.t, r.m.Checkpoint())
	m, err := Open(&memStore{head: r.store.head, rows: maps.Clone(r.store.rows)}, Config{})
	require.NoError(r.t, err)
	return m
}

func positions(index uint64, first, count uint32) (all []event.Position) {
	for i := range count {
		all = append(all, event.Position{Index: index, Ordinal: first + i})
	}
	return all
}

func mustRows(rows []LedgerRow, _ bool) []LedgerRow { return rows }

func bytesReader(b []byte) io.Reader { return bytes.NewReader(b) }
