package cluster

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// storeBench is a snapshot store over a log in memory, with a state machine.
type storeBench struct {
	dir   string
	log   *memLog
	sm    *toySM
	store *snapshotStore
}

func newStoreBench(t require.TestingT, dir string) *storeBench {
	b := &storeBench{dir: dir, log: &memLog{}, sm: &toySM{}}
	b.reopen(t)
	return b
}

func (b *storeBench) reopen(t require.TestingT) {
	ls := newLogStore(b.log)
	s, err := openSnapshotStore(b.dir, ls, slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	s.floor = newFloorKeeper(ls, b.sm, s, slog.New(slog.DiscardHandler))
	b.store = s
}

// cluster is enough of one for the checks at start.
func (b *storeBench) cluster(t *testing.T) *Cluster {
	bk, err := openBook(b.dir, "n1", true, nil, nil)
	require.NoError(t, err)
	d, err := openDoubt(b.dir)
	require.NoError(t, err)
	return &Cluster{log: newLogStore(b.log), sm: b.sm, snaps: b.store, book: bk, doubt: d, logger: slog.New(slog.DiscardHandler)}
}

func (b *storeBench) fill(t require.TestingT, from, to, term uint64) {
	for i := from; i <= to; i++ {
		require.NoError(t, b.log.StoreLog(&raft.Log{Index: i, Term: term, Type: raft.LogCommand}))
	}
}

var oneServer = raft.Configuration{Servers: []raft.Server{{ID: "n1", Address: "n1"}}}

// local takes a snapshot of the state machine as Raft does.
func (b *storeBench) local(t require.TestingT, index uint64) error {
	s, err := b.sm.Snapshot()
	require.NoError(t, err)
	f := &fsmSnapshot{s: s, gen: b.store.generation()}
	sink, err := b.store.Create(1, index, s.Term(), oneServer, 1, nil)
	require.NoError(t, err)
	if err := f.Persist(sink); err != nil {
		sink.Cancel()
		return err
	}
	return nil
}

func stateBytes(index, term uint64) []byte {
	b, _ := json.Marshal(toyState{Index: index, Term: term, Commands: []string{"state"}})
	return append(encodeStateHeader(index, term), b...)
}

// receive gets an installation as far as Raft has closed its sink.
func (b *storeBench) receive(t require.TestingT, label, labelTerm, state, stateTerm uint64) (raft.SnapshotSink, error) {
	sink, err := b.store.Create(1, label, labelTerm, oneServer, 1, nil)
	require.NoError(t, err)
	data := stateBytes(state, stateTerm)
	for _, part := range [][]byte{data[:5], data[5:]} { // the header need not come in one piece
		if _, err := sink.Write(part); err != nil {
			sink.Cancel()
			return nil, err
		}
	}
	return sink, sink.Close()
}

func TestSentLabelIsBelowTheFloorAndListedIndexIsTheState(t *testing.T) {
	b := newStoreBench(t, t.TempDir())
	b.fill(t, 1, 50, 3)
	b.sm.state = toyState{Index: 40, Term: 3, Floor: 20}
	require.NoError(t, b.local(t, 41)) // Raft's own label counts a barrier after the last command
	list, err := b.store.List()
	require.NoError(t, err)
	require.Equal(t, uint64(40), list[0].Index)
	meta, r, err := b.store.Open(list[0].ID)
	require.NoError(t, err)
	require.Equal(t, []uint64{19, 3}, []uint64{meta.Index, meta.Term})
	require.Equal(t, 1, b.store.floor.pinned())
	all, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, meta.Size, int64(len(all)))
	require.NoError(t, r.Close())
	require.Zero(t, b.store.floor.pinned(), "nobody was sent it")
}

// I3: whatever the floor, the snapshots and the order of events, a label that was given out stays in the log while its transfer runs, and so
// does everything above it.
func TestLabelAndWhatFollowsStayInTheLog(t *testing.T) {
	root := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(root, "")
		require.NoError(t, err)
		b := newStoreBench(t, dir)
		last := uint64(2)
		b.fill(t, 1, last, 1)
		var open []raft.SnapshotMeta
		var readers []io.ReadCloser
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				n := rapid.Uint64Range(1, 20).Draw(t, "grow")
				b.fill(t, last+1, last+n, 1)
				last += n
				b.sm.state.Index, b.sm.state.Term = last, 1
			case 1:
				b.sm.state.Floor = max(b.sm.state.Floor, rapid.Uint64Range(1, b.sm.state.Index+1).Draw(t, "floor"))
			case 2:
				if b.sm.state.Index >= 2 && b.local(t, last) == nil {
					require.NoError(t, b.log.DeleteRange(0, last-1))
				}
			case 3:
				list, err := b.store.List()
				require.NoError(t, err)
				if len(list) == 0 {
					continue
				}
				meta, r, err := b.store.Open(list[0].ID)
				require.NoError(t, err)
				r.(*snapshotReader).assign("n9")
				open, readers = append(open, *meta), append(readers, r)
			case 4:
				b.store.floor.advance()
			}
			for _, m := range open {
				for i := m.Index; i <= last; i++ {
					require.NoError(t, b.log.GetLog(i, &raft.Log{}), "label %d, index %d", m.Index, i)
				}
				require.GreaterOrEqual(t, m.Index, uint64(2))
			}
			for i := max(b.sm.Floor()-1, 1); i <= last; i++ {
				require.NoError(t, b.log.GetLog(i, &raft.Log{}), "floor %d, index %d", b.sm.Floor(), i)
			}
		}
		for _, r := range readers {
			r.Close()
		}
	})
}

func TestInstallationOfAHeldLabelIsRefused(t *testing.T) {
	b := newStoreBench(t, t.TempDir())
	b.fill(t, 1, 30, 2)
	_, err := b.receive(t, 20, 2, 40, 2)
	require.ErrorIs(t, err, errAlreadyHeld)
	require.NoError(t, b.log.Reset(25, 2))
	_, err = b.receive(t, 20, 2, 40, 2)
	require.ErrorIs(t, err, errBackwards)
	_, err = b.receive(t, 25, 2, 40, 2)
	require.ErrorIs(t, err, errAlreadyHeld, "the base is held")
	entries, err := os.ReadDir(b.store.dir)
	require.NoError(t, err)
	require.Empty(t, entries)
	require.Nil(t, b.store.pending())
}

func TestLocalSnapshotNeverGoesBackwards(t *testing.T) {
	b := newStoreBench(t, t.TempDir())
	b.fill(t, 1, 50, 1)
	b.sm.state = toyState{Index: 10, Term: 1}
	require.NoError(t, b.local(t, 10))
	require.ErrorIs(t, b.local(t, 10), errBackwards)
	// One that was begun before an installation came.
	b.sm.state.Index = 20
	s, err := b.sm.Snapshot()
	require.NoError(t, err)
	f := &fsmSnapshot{s: s, gen: b.store.generation()}
	sink, err := b.store.Create(1, 20, 1, oneServer, 1, nil)
	require.NoError(t, err)
	_, err = b.receive(t, 60, 2, 70, 2)
	require.NoError(t, err)
	require.ErrorIs(t, f.Persist(sink), errBackwards)
}

func TestTwoSnapshotsAreKeptAndTheLogGoesBehindTheOlder(t *testing.T) {
	b := newStoreBench(t, t.TempDir())
	b.fill(t, 1, 50, 1)
	for _, i := range []uint64{10, 20, 30} {
		b.sm.state = toyState{Index: i, Term: 1, Floor: 100}
		require.NoError(t, b.local(t, i))
		b.log.allowed = i
		b.store.floor.advance()
		base, _ := b.log.Base()
		require.Equal(t, map[uint64]uint64{10: 0, 20: 9, 30: 19}[i], base, "entry 10 or 20 itself stays")
	}
	list, err := b.store.List()
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, []uint64{30, 20}, []uint64{list[0].Index, list[1].Index})
}

// Whatever step of an installation a crash cuts short, the next start completes it or knows nothing of it.
func TestCrashAtEachStepOfAnInstallation(t *testing.T) {
	const label, state = 24, 48
	begin := func(t *testing.T) *storeBench {
		b := newStoreBench(t, t.TempDir())
		b.fill(t, 1, 10, 1)
		b.sm.state = toyState{Index: 10, Term: 1}
		return b
	}
	complete := func(t *testing.T, b *storeBench) {
		t.Helper()
		b.reopen(t)
		require.NoError(t, b.cluster(t).openCheck())
		base, term := b.log.Base()
		require.Equal(t, []uint64{label, 2}, []uint64{base, term})
		applied, _ := b.sm.Applied()
		require.Equal(t, uint64(state), applied)
		require.Equal(t, phaseCatchingUp, b.store.pending().Phase)
		list, err := b.store.List()
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Equal(t, uint64(label), list[0].Index, "Raft starts from the label while the log is short")
		_, _, err = b.store.Open(list[0].ID)
		require.Error(t, err, "and sends nothing on")
		b.fill(t, label+1, state, 2)
		b.reopen(t)
		require.NoError(t, b.cluster(t).openCheck())
		require.Nil(t, b.store.pending())
		list, err = b.store.List()
		require.NoError(t, err)
		require.Equal(t, uint64(state), list[0].Index)
	}
	t.Run("before the sink is closed", func(t *testing.T) {
		b := begin(t)
		sink, err := b.store.Create(1, label, 2, oneServer, 1, nil)
		require.NoError(t, err)
		_, err = sink.Write(stateBytes(state, 2))
		require.NoError(t, err)
		b.reopen(t)
		require.NoError(t, b.cluster(t).openCheck())
		applied, _ := b.sm.Applied()
		require.Equal(t, uint64(10), applied)
		entries, err := os.ReadDir(b.store.dir)
		require.NoError(t, err)
		require.Empty(t, entries)
	})
	t.Run("between the marker and the snapshot", func(t *testing.T) {
		b := begin(t)
		require.NoError(t, writeInstallMarker(filepath.Join(b.dir, "install"), &installMarker{Phase: phaseInstalling, ID: "none", LabelIndex: label, LabelTerm: 2}))
		b.reopen(t)
		require.NoError(t, b.cluster(t).openCheck())
		require.Nil(t, b.store.pending())
		last, _ := b.log.LastIndex()
		require.Equal(t, uint64(10), last)
	})
	t.Run("before the state is restored", func(t *testing.T) {
		b := begin(t)
		_, err := b.receive(t, label, 2, state, 2)
		require.NoError(t, err)
		complete(t, b)
	})
	t.Run("before the log is reset", func(t *testing.T) {
		b := begin(t)
		_, err := b.receive(t, label, 2, state, 2)
		require.NoError(t, err)
		require.NoError(t, b.sm.Restore(bytes.NewReader(stateBytes(state, 2)[stateHeaderLen:])))
		complete(t, b)
	})
	t.Run("before the marker moves on", func(t *testing.T) {
		b := begin(t)
		_, err := b.receive(t, label, 2, state, 2)
		require.NoError(t, err)
		require.NoError(t, b.sm.Restore(bytes.NewReader(stateBytes(state, 2)[stateHeaderLen:])))
		require.NoError(t, b.log.Reset(label, 2))
		complete(t, b)
	})
	t.Run("a state machine that is past it keeps its state", func(t *testing.T) {
		b := begin(t)
		b.sm.state = toyState{Index: 60, Term: 2}
		_, err := b.receive(t, label, 2, state, 2)
		require.NoError(t, err)
		b.reopen(t)
		require.NoError(t, b.cluster(t).openCheck())
		applied, _ := b.sm.Applied()
		require.Equal(t, uint64(60), applied)
		require.Equal(t, uint64(60), b.store.pending().Until)
	})
}

// What was applied and is not in the log was acknowledged and is lost here: among others the node is in doubt and has it sent again from the
// end of its log on; a cluster of one is refused.
func TestLostEndOfTheLogIsADoubtAndDamageWithNobodyElse(t *testing.T) {
	for name, state := range map[string]toyState{"state ahead": {Index: 40, Term: 1}, "state from the snapshot": {}} {
		t.Run(name, func(t *testing.T) {
			b := newStoreBench(t, t.TempDir())
			b.fill(t, 1, 50, 1)
			b.sm.state = toyState{Index: 40, Term: 1}
			require.NoError(t, b.local(t, 40))
			b.log.entries = b.log.entries[:30]
			b.sm.state = state
			c := b.cluster(t)
			c.cfg.Single = true
			err := c.openCheck()
			require.ErrorIs(t, err, ErrDamaged)
			require.Equal(t, ExitDamage, exitCodeOf(err, 0))
			require.False(t, c.muzzled())

			c = b.cluster(t)
			require.NoError(t, c.openCheck())
			require.True(t, c.muzzled())
			list, err := b.store.List()
			require.NoError(t, err)
			require.Equal(t, uint64(30), list[0].Index, "Raft goes on where the log ends")
			b.reopen(t)
			c = b.cluster(t)
			require.True(t, c.muzzled(), "durable")
			b.log.entries = b.log.entries[:20] // and again
			require.NoError(t, c.openCheck())
			list, err = b.store.List()
			require.NoError(t, err)
			require.Equal(t, uint64(20), list[0].Index)
			b.fill(t, 21, 40, 1)
			require.NoError(t, c.openCheck())
			list, err = b.store.List()
			require.NoError(t, err)
			require.Equal(t, uint64(40), list[0].Index)
		})
	}
}

func TestDamagedSnapshotIsSetAsideAndTheOtherServes(t *testing.T) {
	b := newStoreBench(t, t.TempDir())
	b.fill(t, 1, 50, 1)
	for _, i := range []uint64{10, 20} {
		b.sm.state = toyState{Index: i, Term: 1, Commands: []string{"x"}}
		require.NoError(t, b.local(t, i))
	}
	path := b.store.path(b.store.newest().ID)
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	raw[20] ^= 4
	require.NoError(t, os.WriteFile(path, raw, 0o600))
	b.sm.state = toyState{}
	b.reopen(t)
	require.NoError(t, b.cluster(t).openCheck())
	applied, _ := b.sm.Applied()
	require.Equal(t, uint64(10), applied)
	_, err = os.Stat(path + ".damaged")
	require.NoError(t, err, "set aside, not deleted")
}

func TestStatePastALogWithoutSnapshotsMakesOne(t *testing.T) {
	b := newStoreBench(t, t.TempDir())
	require.NoError(t, b.log.Reset(30, 1))
	b.fill(t, 31, 50, 1)
	b.sm.state = toyState{Index: 40, Term: 1}
	c := b.cluster(t)
	require.NoError(t, c.book.configure(oneServer, 1))
	require.NoError(t, c.openCheck())
	require.Equal(t, uint64(40), b.store.newest().StateIndex)
}
