// Package testbed is one node's state for the tests of node and the packages below it: a real state machine over a real
// checkpoint file, a log, and a stand-in for the cluster that commits each proposal at once as an entry of its own.
//
// It promises that what it commits went through the same codec, log and state machine as in a running node. It has no
// Raft, no network and no goroutines; time is a counter.
package testbed

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"penstock/cluster"
	"penstock/event"
	"penstock/fsm"
	"penstock/fsm/checkpoint"
	"penstock/fsm/command"
	"penstock/internal/spec"
	"penstock/wal"
)

// Log is what the bed appends to and the code under test reads.
type Log interface {
	StoreLogs(logs []*raft.Log) error
	GetLog(index uint64, out *raft.Log) error
	FirstIndex() (uint64, error)
	LastIndex() (uint64, error)
	Base() (index, term uint64)
	Stats() wal.Stats
}

// Bed is one node's state. It implements the cluster as node/api and node/owner declare it. Its methods may be called from
// any goroutine; the exported fields are set before that.
type Bed struct {
	T       testing.TB
	Machine *fsm.Machine
	Store   *checkpoint.Store
	Log     Log

	// BeforePropose is asked before a proposal is committed; an error is the proposal's, and nothing is committed.
	BeforePropose func(ctx context.Context, cmd []byte) error
	// AfterPropose is asked once it is committed; an error is what the proposer gets all the same.
	AfterPropose func(cmd []byte) error
	// ReadIndexError is what ReadIndex answers.
	ReadIndexError error
	// MemberError is what membership changes and transfers answer.
	MemberError error
	// Clock is what Now gives; nil: the stamp of the last entry.
	Clock func() time.Time

	mu struct {
		sync.Mutex
		index uint64
		stamp int64
		acts  []string
	}
}

// New makes a bed whose log is in memory.
func New(t testing.TB) *Bed {
	return newBed(t, &MemLog{})
}

// NewOnWAL makes a bed on a real log with small segments in a temporary directory.
func NewOnWAL(t testing.TB) (*Bed, *wal.Log) {
	l, err := wal.Open(filepath.Join(t.TempDir(), "wal"), wal.Config{SegmentBytes: wal.MinSegmentBytes, CacheBytes: -1, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return newBed(t, l), l
}

func newBed(t testing.TB, log Log) *Bed {
	store, err := checkpoint.Open(filepath.Join(t.TempDir(), "fsm.db"), checkpoint.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	m, err := fsm.Open(store, fsm.Config{})
	require.NoError(t, err)
	b := &Bed{T: t, Machine: m, Store: store, Log: log}
	b.mu.stamp = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixNano()
	b.Commit(command.ClusterInit{ClusterID: [16]byte{1}, Key: event.HashKey{1}, Name: "bed"})
	return b
}

// Commit commits the commands as one entry and applies it.
func (b *Bed) Commit(commands ...command.Command) (index uint64, results [][]byte) {
	raw := make([][]byte, len(commands))
	for i, c := range commands {
		raw[i] = command.Encode(c)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.commitLocked(raw)
}

func (b *Bed) commitLocked(raw [][]byte) (uint64, [][]byte) {
	b.mu.index++
	b.mu.stamp += int64(time.Millisecond)
	data := command.AppendEntry(nil, b.mu.stamp, raw)
	require.NoError(b.T, b.Log.StoreLogs([]*raft.Log{{Index: b.mu.index, Term: 1, Type: raft.LogCommand, Data: data}}))
	results, err := b.Machine.Apply(b.mu.index, 1, data)
	require.NoError(b.T, err)
	return b.mu.index, results
}

// Noop puts an entry without commands into the log, as a new leader does.
func (b *Bed) Noop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.index++
	require.NoError(b.T, b.Log.StoreLogs([]*raft.Log{{Index: b.mu.index, Term: 1, Type: raft.LogNoop}}))
}

// Advance moves the stamp of the next entry.
func (b *Bed) Advance(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.stamp += int64(d)
}

// Put makes or changes a channel.
func (b *Bed) Put(c spec.Channel) fsm.ChannelInfo {
	c.ApplyDefaults()
	require.NoError(b.T, c.Validate())
	_, results := b.Commit(command.ChannelPut{Spec: c.Canonical()})
	r, err := command.DecodeChannelResult(results[0])
	require.NoError(b.T, err)
	require.Equal(b.T, command.OK, r.Status, r.Message)
	info, ok := b.Machine.Channel(c.Name)
	require.True(b.T, ok)
	return info
}

// Batch makes a batch command of events with these ids for the channel as it is now; "" is an id that the server made.
func (b *Bed) Batch(channel string, ids ...string) command.Batch {
	events := make([]event.Event, len(ids))
	for i, id := range ids {
		events[i] = Event(id)
	}
	return b.BatchOf(channel, events...)
}

// BatchOf makes a batch command of the events for the channel as it is now.
func (b *Bed) BatchOf(channel string, events ...event.Event) command.Batch {
	info, ok := b.Machine.Channel(channel)
	require.True(b.T, ok, "no channel %s", channel)
	body, err := event.EncodeBatch(nil, event.BatchHeader{ChannelIndex: info.Index, SpecVersion: info.Version}, event.HashKey{1}, events, nil)
	require.NoError(b.T, err)
	return command.Batch{Body: body}
}

// Event is an event with that id.
func Event(id string) event.Event {
	e := event.Event{ID: id, Source: "/bed", Type: "test", DataKind: event.DataJSON, Data: fmt.Appendf(nil, `{"id":%q}`, id)}
	if id == "" {
		e.ID, e.ServerID = "made", true
	}
	return e
}

// Send commits one batch as one entry.
func (b *Bed) Send(channel string, ids ...string) command.BatchResult {
	_, results := b.Commit(b.Batch(channel, ids...))
	r, err := command.DecodeBatchResult(results[0])
	require.NoError(b.T, err)
	require.Equal(b.T, command.OK, r.Status)
	return r
}

// Emitter is the named emitter as it is now.
func (b *Bed) Emitter(channel, name string) fsm.EmitterInfo {
	info, ok := b.Machine.Channel(channel)
	require.True(b.T, ok)
	e, ok := b.Machine.EmitterNamed(info.Index, name)
	require.True(b.T, ok)
	return e
}

// Own gives the emitter to a node and returns it as it is then.
func (b *Bed) Own(e fsm.EmitterInfo, node string) fsm.EmitterInfo {
	b.Commit(command.Assign{Items: []command.Assignment{{
		ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Node: node, IfEpoch: e.Epoch,
	}}})
	e, ok := b.Machine.Emitter(e.ChannelIndex, e.EmitterIndex)
	require.True(b.T, ok)
	require.Equal(b.T, node, e.Owner)
	return e
}

// Report commits outcomes of the emitter under its owner and epoch.
func (b *Bed) Report(e fsm.EmitterInfo, outcomes ...command.Outcome) command.Status {
	_, results := b.Commit(command.Outcomes{
		ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Epoch: e.Epoch, Node: e.Owner, Outcomes: outcomes,
	})
	r, err := command.DecodeOutcomesResult(results[0])
	require.NoError(b.T, err)
	return r.Status
}

// Propose commits the command as an entry of its own.
func (b *Bed) Propose(ctx context.Context, cmd []byte) ([]byte, error) {
	if b.BeforePropose != nil {
		if err := b.BeforePropose(ctx, cmd); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	_, results := b.commitLocked([][]byte{cmd})
	b.mu.Unlock()
	if b.AfterPropose != nil {
		if err := b.AfterPropose(cmd); err != nil {
			return nil, err
		}
	}
	return results[0], nil
}

// ReadIndex is the last index, or ReadIndexError.
func (b *Bed) ReadIndex(ctx context.Context) (uint64, error) {
	if b.ReadIndexError != nil {
		return 0, b.ReadIndexError
	}
	index, _ := b.Machine.Applied()
	return index, ctx.Err()
}

// Now is Clock, or the stamp of the last entry.
func (b *Bed) Now() time.Time {
	if b.Clock != nil {
		return b.Clock()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Unix(0, b.mu.stamp).UTC()
}

// Status is of a node that follows the leader n2.
func (b *Bed) Status() cluster.Status {
	applied, _ := b.Machine.Applied()
	return cluster.Status{
		NodeID: "n1", ClusterName: "bed", ClusterID: "01", State: "follower", Ready: true, Leader: "n2", Term: 1,
		CommitIndex: applied, AppliedIndex: applied,
	}
}

// Members are n1 and n2.
func (b *Bed) Members() []cluster.Member {
	return []cluster.Member{{ID: "n1", Suffrage: "voter", Reachable: true}, {ID: "n2", Suffrage: "voter", Leader: true, Reachable: true}}
}

// Lease always holds.
func (b *Bed) Lease() cluster.Lease { return Lease{} }

// Lease always holds.
type Lease struct{}

// Valid implements cluster.Lease.
func (Lease) Valid() bool { return true }

// Lost implements cluster.Lease: it never closes.
func (Lease) Lost() <-chan struct{} { return nil }

// Acts are the membership changes that were asked for.
func (b *Bed) Acts() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.mu.acts...)
}

func (b *Bed) act(what, id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.acts = append(b.mu.acts, what+" "+id)
	return b.MemberError
}

// AddNonvoter records the act.
func (b *Bed) AddNonvoter(_ context.Context, id string) error { return b.act("add", id) }

// Promote records the act.
func (b *Bed) Promote(_ context.Context, id string) error { return b.act("promote", id) }

// Demote records the act.
func (b *Bed) Demote(_ context.Context, id string, _ bool) error { return b.act("demote", id) }

// Remove records the act.
func (b *Bed) Remove(_ context.Context, id string, _ bool) error { return b.act("remove", id) }

// Outsiders gives none.
func (b *Bed) Outsiders() []cluster.Outsider { return nil }

// Transfer records the act.
func (b *Bed) Transfer(context.Context) error { return b.act("transfer", "") }

// TransferTo records the act.
func (b *Bed) TransferTo(_ context.Context, id string) error { return b.act("transfer", id) }

// TakeSnapshot records the act.
func (b *Bed) TakeSnapshot() error { return b.act("snapshot", "") }
