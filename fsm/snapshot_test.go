package fsm

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func snapshotOf(t require.TestingT, m *Machine) []byte {
	s, err := m.Snapshot()
	require.NoError(t, err)
	var b bytes.Buffer
	n, err := s.WriteTo(&b)
	require.NoError(t, err)
	require.EqualValues(t, b.Len(), n)
	index, term := m.Applied()
	require.Equal(t, index, s.Index())
	require.Equal(t, term, s.Term())
	require.NoError(t, s.Close())
	return b.Bytes()
}

func installSnapshot(t require.TestingT, from *Machine) *Machine {
	m, err := Open(newMemStore(), Config{})
	require.NoError(t, err)
	require.NoError(t, m.Restore(bytes.NewReader(snapshotOf(t, from))))
	return m
}

func TestRestoreRefusesADamagedStreamAndKeepsWhatItHad(t *testing.T) {
	r := newRig(t)
	r.put(channelOf("c", fileEmitter("f", 2, 0, 0)))
	r.send("c", "a", "b", "c")
	good := snapshotOf(t, r.m)

	other := newRig(t)
	other.put(channelOf("other"))
	before := dumpOf(t, other.m)
	for n := range good {
		bad := bytes.Clone(good)
		bad[n] ^= 0x40
		require.Error(t, other.m.Restore(bytes.NewReader(bad)), "bit of byte %d", n)
	}
	for n := range good {
		require.Error(t, other.m.Restore(bytes.NewReader(good[:n])), "cut at %d", n)
	}
	require.Error(t, other.m.Restore(bytes.NewReader(append(bytes.Clone(good), 0))))
	require.Equal(t, before, dumpOf(t, other.m))
	require.NoError(t, other.m.Restore(bytes.NewReader(good)))
	require.Equal(t, dumpOf(t, r.m), dumpOf(t, other.m))
}
