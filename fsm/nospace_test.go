package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/fsm/command"
)

// fullStore finds no space while full says so.
type fullStore struct {
	*memStore
	full  bool
	tries int
}

func (s *fullStore) Write(head []byte, rows []Row) error {
	s.tries++
	if s.full {
		return ErrNoSpace
	}
	return s.memStore.Write(head, rows)
}

// A checkpoint that finds no space ends nothing: what it would have written is written by a later one, the rows that changed
// meanwhile and those that went, and Apply does not try again at every entry.
func TestACheckpointWithoutSpaceIsMadeLater(t *testing.T) {
	store := &fullStore{memStore: newMemStore()}
	m, err := Open(store, Config{DirtyBytes: 64 << 10})
	require.NoError(t, err)
	r := &rig{t: t, m: m, store: store.memStore, term: 1, stamp: 1_000 * second}
	r.put(channelOf("c", fileEmitter("a", 1, 0, 0)))
	r.put(channelOf("d"))
	require.NoError(t, m.Checkpoint())
	store.full, store.tries = true, 0
	for range 600 {
		r.send("c", "", "", "")
	}
	require.Positive(t, store.tries)
	require.Less(t, store.tries, 10)
	r.apply(command.ChannelDelete{Name: "d"})
	require.ErrorIs(t, m.Checkpoint(), ErrNoSpace)
	_, err = m.Snapshot()
	require.ErrorIs(t, err, ErrNoSpace)
	require.NoError(t, m.Err())
	store.full = false
	require.NoError(t, m.Checkpoint())
	again, err := Open(store, Config{})
	require.NoError(t, err)
	require.Equal(t, dumpOf(t, m), dumpOf(t, again))
}
