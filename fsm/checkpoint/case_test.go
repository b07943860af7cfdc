package checkpoint

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/fsm"
)

// TestS10ABurstDoesNotSlowTheCheckpointsAfterIt is S10: a burst inflates the file, what it held goes, and then the file holds
// mostly free pages. A list of them must not be written on each commit: a small checkpoint writes as little as before, and
// the file does not grow any more.
func TestS10ABurstDoesNotSlowTheCheckpointsAfterIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fsm.db")
	s, err := Open(path, Config{})
	require.NoError(t, err)
	defer s.Close()
	rows := func(table uint8, from, n, size int) (all []fsm.Row) {
		for i := range n {
			r := fsm.Row{Table: table, Key: binary.BigEndian.AppendUint64(nil, uint64(from+i))}
			if size > 0 {
				r.Value = make([]byte, size)
			}
			all = append(all, r)
		}
		return all
	}
	small := func() (written int64, times []time.Duration) {
		stats := s.mu.file.db.Stats().TxStats
		for range 50 {
			began := time.Now()
			require.NoError(t, s.Write([]byte("head"), rows(3, 0, 20, 100)))
			times = append(times, time.Since(began))
		}
		now := s.mu.file.db.Stats().TxStats
		return (now.GetPageAlloc() - stats.GetPageAlloc()) / 50, times
	}
	before, calm := small()
	for i := range 20 { // 200 MiB
		require.NoError(t, s.Write([]byte("head"), rows(13, i*100, 100, 100<<10)))
	}
	require.NoError(t, s.Write([]byte("head"), rows(13, 0, 2000, 0)))
	burst, err := os.Stat(path)
	require.NoError(t, err)
	require.Greater(t, burst.Size(), int64(100<<20))
	after, again := small()
	t.Logf("a small checkpoint allocates %d bytes of pages before the burst and %d after it; median %v and %v", before, after, median(calm), median(again))
	require.LessOrEqual(t, after, before*2)
	for i := range 5 {
		require.NoError(t, s.Write([]byte("head"), rows(13, i*100, 100, 100<<10)))
		require.NoError(t, s.Write([]byte("head"), rows(13, i*100, 100, 0)))
	}
	now, err := os.Stat(path)
	require.NoError(t, err)
	require.LessOrEqual(t, now.Size(), burst.Size(), "free pages are used again")
}

// TestAFullDiskIsNoFault: a write that finds no space asks for some, tries once more, and then says so; the file still holds what it
// held, and takes everything once there is space.
func TestAFullDiskIsNoFault(t *testing.T) {
	dir := smallDisk(t)
	asked, give := 0, func() bool { return false }
	s, err := Open(filepath.Join(dir, "fsm.db"), Config{NoSpace: func() bool { asked++; return give() }})
	require.NoError(t, err)
	defer s.Close()
	row := func(n byte, size int) []fsm.Row {
		return []fsm.Row{{Table: 3, Key: []byte{n}, Value: make([]byte, size)}}
	}
	require.NoError(t, s.Write([]byte("one"), row(1, 100)))
	ballast := filepath.Join(dir, "ballast")
	require.NoError(t, os.WriteFile(ballast, make([]byte, 6<<20), 0o600))
	filler, err := os.Create(filepath.Join(dir, "filler"))
	require.NoError(t, err)
	for err == nil {
		_, err = filler.Write(make([]byte, 4<<10))
	}
	require.NoError(t, filler.Close())

	require.ErrorIs(t, s.Write([]byte("two"), row(2, 4<<20)), fsm.ErrNoSpace)
	require.Equal(t, 1, asked)
	head, rows := everything(t, s)
	require.Equal(t, "one", head)
	require.Len(t, rows, 1)
	give = func() bool { return os.Remove(ballast) == nil }
	require.NoError(t, s.Write([]byte("two"), row(2, 4<<20)))
	head, rows = everything(t, s)
	require.Equal(t, "two", head)
	require.Len(t, rows, 2)
	require.ErrorIs(t, s.Write([]byte("three"), row(3, 8<<20)), fsm.ErrNoSpace)
	require.NoError(t, os.Remove(filler.Name()))
	require.NoError(t, s.Write([]byte("three"), row(3, 8<<20)))
	require.NoError(t, s.Close())
	s, err = Open(filepath.Join(dir, "fsm.db"), Config{})
	require.NoError(t, err)
	defer s.Close()
	head, rows = everything(t, s)
	require.Equal(t, "three", head)
	require.Len(t, rows, 3)
}

func everything(t *testing.T, s *Store) (head string, rows map[string]int) {
	t.Helper()
	v, err := s.View()
	require.NoError(t, err)
	defer v.Close()
	rows = map[string]int{}
	require.NoError(t, v.Rows(func(r fsm.Row) error { rows[string(r.Key)] = len(r.Value); return nil }))
	return string(v.Head()), rows
}
