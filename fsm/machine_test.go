package fsm

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/event"
	"penstock/fsm/command"
	"penstock/internal/spec"
)

var update = flag.Bool("update", false, "write fixtures that do not exist yet; never changes one that does")

func TestUnknownCommandsEndTheMachine(t *testing.T) { // DESIGN 4.16
	for name, raw := range map[string][]byte{
		"kind":         {99, 1},
		"version":      {byte(command.KindTick), 9},
		"batch format": {byte(command.KindBatch), 1, 200, 0},
		"feature":      command.Encode(command.Feature{Level: FeatureLevel + 1}),
	} {
		r := newRig(t)
		_, err := r.m.Apply(1, 1, command.AppendEntry(nil, 1, [][]byte{raw}))
		require.ErrorIs(t, err, command.ErrUnknown, name)
		_, again := r.m.Apply(1, 1, command.AppendEntry(nil, 1, nil))
		require.Equal(t, err, again, "%s: the failure is final", name)
		require.ErrorIs(t, r.m.Checkpoint(), command.ErrUnknown, "%s: nothing half applied is stored", name)
		require.ErrorIs(t, r.m.Err(), command.ErrUnknown)
	}
	r := newRig(t)
	entry := command.AppendEntry(nil, 1, nil)
	entry[1] = 7
	_, err := r.m.Apply(1, 1, entry)
	require.ErrorIs(t, err, command.ErrUnknown)
}

func TestMalformedBodiesAreAnsweredAndNotEnabledIsSaid(t *testing.T) {
	r := newRig(t)
	for raw, want := range map[string]command.Status{
		string([]byte{byte(command.KindAssign), 1, 5}):                                   command.Malformed,
		string([]byte{byte(command.KindTick), 1, 5}):                                     command.Malformed,
		string(command.Encode(command.Carry{})):                                          command.NoSuchChannel,
		string([]byte{byte(command.KindCarry), 1, 5}):                                    command.Malformed,
		string(command.Encode(command.Yield{Index: 1})):                                  command.OK,
		string(command.Encode(command.AuditIntent{})):                                    command.Malformed,
		string(command.Encode(command.AuditOutcome{})):                                   command.Malformed,
		string(command.Encode(command.AuditOutcome{Result: AuditSuccess})):               command.NoSuchIntent,
		string(command.Encode(command.Feature{Level: 1})):                                command.OK,
		string(command.Encode(command.ClusterInit{ClusterID: [16]byte{1}, Name: "one"})): command.OK,
	} {
		r.index++
		res, err := r.m.Apply(r.index, 1, command.AppendEntry(nil, 1, [][]byte{[]byte(raw)}))
		require.NoError(t, err)
		plain, err := command.DecodePlainResult(res[0])
		require.NoError(t, err)
		require.Equal(t, want, plain.Status, "%x", raw)
	}
	res, err := command.DecodePlainResult(r.apply(command.ClusterInit{ClusterID: [16]byte{2}})[0])
	require.NoError(t, err)
	require.Equal(t, command.AlreadyInitialized, res.Status)
	id, ok := r.m.ClusterID()
	require.True(t, ok)
	require.Equal(t, [16]byte{1}, id)
	require.Equal(t, "one", r.m.ClusterName())
	require.EqualValues(t, 1, r.m.Feature())
}

func TestOldEntriesAreSkippedOnlyIfTheyAreTheSame(t *testing.T) {
	r := newRig(t)
	for range 20 {
		r.apply(command.Tick{})
	}
	r.term = 2
	r.index += 5 // indexes without a command: no-ops of Raft
	r.apply(command.Tick{})
	before := dumpOf(t, r.m)
	res, err := r.m.Apply(7, 1, r.log[6])
	require.NoError(t, err)
	require.Nil(t, res)
	require.Equal(t, before, dumpOf(t, r.m))
	_, err = r.reopen().Apply(7, 2, r.log[6])
	require.ErrorContains(t, err, "applied with term 1")
	_, err = r.reopen().Apply(23, 2, r.log[6])
	require.ErrorContains(t, err, "no command was applied at that index")
	_, err = r.m.Apply(27, 1, r.log[6])
	require.ErrorContains(t, err, "term 1 after term 2")
}

func TestTheAppliedRingForgetsTheOldest(t *testing.T) {
	var ring termRing
	for i := range uint64(termSlots + 300) {
		ring.push(appliedEntry{index: 10 + 2*i, term: 1 + i/5000})
	}
	require.NoError(t, ring.check(10, 99), "older than the ring: cannot be told")
	oldest := ring.at(0)
	require.EqualValues(t, 10+2*300, oldest.index)
	require.NoError(t, ring.check(oldest.index, 1))
	require.Error(t, ring.check(oldest.index, 2))
	require.Error(t, ring.check(oldest.index+1, 1))
	require.NoError(t, ring.check(10+2*(termSlots+299), 2))
}

func TestTheRingOfHashesIsTheSameHoweverItWasReached(t *testing.T) {
	r := newRig(t)
	r.put(channelOf("c", fileEmitter("f", 2, 0, 0)))
	for range 5 {
		r.send("c", "", "")
		r.index += 3000
	}
	r.index += 100 * ringEvery
	r.send("c", "")
	hashes := r.m.Hashes()
	require.Len(t, hashes, ringHashes)
	last := hashes[len(hashes)-1]
	require.Equal(t, r.index/ringEvery, last.K)
	require.Equal(t, last.Hash, hashes[0].Hash, "every k that one gap jumps over has the hash before it")
	require.Equal(t, dumpOf(t, r.m), dumpOf(t, r.reopen()))
}

func TestApplyMakesACheckpointWhenEnoughChanged(t *testing.T) {
	store := newMemStore()
	m, err := Open(store, Config{DirtyBytes: 1})
	require.NoError(t, err)
	_, err = m.Apply(1, 1, command.AppendEntry(nil, 1, [][]byte{command.Encode(command.Tick{})}))
	require.NoError(t, err)
	h, err := decodeHead(store.head)
	require.NoError(t, err)
	require.EqualValues(t, 1, h.index)
}

type failingStore struct{ *memStore }

var errDisk = errors.New("disk")

func (f failingStore) Write([]byte, []Row) error { return errDisk }

func TestAFailedCheckpointIsFinal(t *testing.T) { // I11
	m, err := Open(failingStore{newMemStore()}, Config{})
	require.NoError(t, err)
	require.ErrorIs(t, m.Checkpoint(), errDisk)
	_, err = m.Apply(1, 1, command.AppendEntry(nil, 1, nil))
	require.ErrorIs(t, err, errDisk)
}

func TestChangedIsClosedByTheNextEntry(t *testing.T) {
	r := newRig(t)
	c := r.m.Changed()
	require.Equal(t, c, r.m.Changed())
	select {
	case <-c:
		require.Fail(t, "nothing changed")
	default:
	}
	r.apply(command.Tick{})
	<-c
}

func TestStampsNeverGoBack(t *testing.T) {
	r := newRig(t)
	r.apply(command.Tick{})
	high := r.stamp
	r.stamp -= 5 * second
	r.apply(command.Tick{})
	require.Equal(t, high, r.m.Stamp())
}

func TestLookupFindsWhatTheDedupWindowHolds(t *testing.T) {
	r := newRig(t)
	a, b := r.put(channelOf("a")), r.put(channelOf("b"))
	first := r.send("a", "x", "same").Index
	second := r.send("b", "same").Index
	require.Equal(t, []Found{
		{ChannelIndex: a.Index, Position: event.Position{Index: first, Ordinal: 1}, Seq: 2},
		{ChannelIndex: b.Index, Position: event.Position{Index: second}, Seq: 1},
	}, r.m.Lookup(event.IDHashOf("same")))
	require.Empty(t, r.m.Lookup(event.IDHashOf("never")))
}

// The committed snapshot must restore for ever, to the state that this log gives.
func TestGoldenSnapshotRestoresForEver(t *testing.T) {
	r := newRig(t)
	r.apply(command.ClusterInit{ClusterID: [16]byte{1}, Key: event.HashKey{2}, Name: "golden"})
	path := filepath.Join("testdata", "format", "v1", "snapshot.bin")
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) && *update {
		goldenLog(r)
		b = snapshotOf(t, r.m)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		err = os.WriteFile(path, b, 0o644)
	}
	require.NoError(t, err)
	m, err := readSnapshotMachine(b)
	require.NoError(t, err)
	require.Equal(t, "golden", m.ClusterName())
	require.Equal(t, []LedgerRow{
		{Emitter: "a", EmitterIndex: 3, Accepted: 7, Delivered: 2, Dead: 1, Poison: 1, Pending: 3},
		{Emitter: "b", EmitterIndex: 4, Accepted: 7, Pending: 7},
	}, mustRows(m.Ledger("c")))
	require.Len(t, m.DeadLetters("c", "a", ""), 2)
	info, ok := m.Retry(2, 3, 5)
	require.True(t, ok)
	require.Equal(t, "slow", info.Reason)
	require.Len(t, m.Offsets("c"), 1)
	require.Len(t, m.Lookup(event.IDHashOf("k3")), 1)
	_, ok = m.Rejects(4)
	require.True(t, ok)
	require.Equal(t, b, snapshotOf(t, m), "written again it is the same, byte for byte")
}

// TestGoldenSnapshotOfAuditAndReplayRestoresForEver is the same for the tables that came with replay.
func TestGoldenSnapshotOfAuditAndReplayRestoresForEver(t *testing.T) {
	path := filepath.Join("testdata", "format", "v1", "snapshot-replay.bin")
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) && *update {
		r := newRig(t)
		goldenLog(r)
		e := r.emitter("c", 0)
		r.apply(command.AuditIntent{ID: [16]byte{1}, Actor: "ops", Action: "dlq.replay", Reason: "fixed", RequestID: "r1", Targets: []string{"x"}})
		r.apply(command.AuditIntent{ID: [16]byte{2}, Actor: "ops", Action: "dlq.discard"})
		r.apply(command.ReplayClaim{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Epoch: e.Epoch, Node: e.Owner,
			ID: [16]byte{1}, Force: true, Seqs: []uint64{6}})
		r.apply(command.Discard{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Intent: [16]byte{2}, Seqs: []uint64{4}})
		r.apply(command.AuditOutcome{ID: [16]byte{2}, Result: AuditSuccess, Detail: "1 discarded"})
		b = snapshotOf(t, r.m)
		err = os.WriteFile(path, b, 0o644)
	}
	require.NoError(t, err)
	m, err := readSnapshotMachine(b)
	require.NoError(t, err)
	trail := m.Audit(AuditQuery{})
	require.Len(t, trail, 2)
	require.True(t, trail[0].Open)
	require.Equal(t, []string{"x"}, trail[0].Targets)
	require.Equal(t, AuditSuccess, trail[1].Result)
	letters := m.DeadLetters("c", "a", "")
	require.Len(t, letters, 1)
	require.True(t, letters[0].Claimed)
	gone := m.FindLetter(DeadLetterID(letters[0].ChannelIndex, letters[0].EmitterIndex, event.Position{Index: letters[0].Position.Index, Ordinal: 4}))
	require.True(t, gone.Settled)
	require.Equal(t, command.Discarded, gone.Result)
	require.Equal(t, b, snapshotOf(t, m), "written again it is the same, byte for byte")
}

func goldenLog(r *rig) {
	r.put(channelOf("c", fileEmitter("a", 1, 0, 0), fileEmitter("b", 3, 0, spec.Duration(second))))
	e := r.own(r.emitter("c", 0))
	r.sendWith("c", &event.Offset{Source: "s", Partition: "p", SourceOffset: event.SourceOffset{Position: 1, Record: 2, Closed: true}},
		"k1", "k2", "k1", "k3", "k4", "k5", "k6", "")
	at := event.Position{Index: r.index, Ordinal: 4}
	r.report(e,
		command.Outcome{First: 1, Last: 1, Kind: command.Delivered},
		command.Outcome{First: 4, Last: 4, Kind: command.Dead, Attempts: 3, At: 5, Class: command.ClassPermanent, Status: 410, Reason: "gone",
			Positions: []event.Position{at}},
		command.Outcome{First: 6, Last: 6, Kind: command.Poison, Class: command.ClassPoison, Positions: []event.Position{{Index: at.Index, Ordinal: 6}}},
		command.Outcome{First: 5, Last: 5, Kind: command.Failed, Attempts: 1, At: 6, Class: command.ClassTransient, Status: 503, Reason: "slow"},
		command.Outcome{First: 2, Last: 2, Kind: command.Delivered},
	)
}

func readSnapshotMachine(b []byte) (*Machine, error) {
	m, err := Open(newMemStore(), Config{})
	if err != nil {
		return nil, err
	}
	return m, m.Restore(bytesReader(b))
}
