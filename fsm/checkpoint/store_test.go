package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"penstock/fsm"
	"penstock/fsm/command"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path, Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// contents lists head and rows as text.
func contents(t *testing.T, s *Store) []string {
	t.Helper()
	v, err := s.View()
	require.NoError(t, err)
	defer func() { require.NoError(t, v.Close()) }()
	return list(t, v)
}

func list(t *testing.T, v fsm.View) []string {
	t.Helper()
	all := []string{string(v.Head())}
	require.NoError(t, v.Rows(func(r fsm.Row) error {
		all = append(all, fmt.Sprintf("%d %s=%s", r.Table, r.Key, r.Value))
		return nil
	}))
	return all
}

func row(t uint8, key, value string) fsm.Row {
	r := fsm.Row{Table: t, Key: []byte(key)}
	if value != "" {
		r.Value = []byte(value)
	}
	return r
}

func TestAnEmptyStoreHasNoHead(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "state"))
	v, err := s.View()
	require.NoError(t, err)
	require.Nil(t, v.Head())
	require.NoError(t, v.Close())
	require.NoError(t, v.Close(), "again")
}

func TestRowsComeBackInOrderAfterReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	s := open(t, path)
	require.NoError(t, s.Write([]byte("h1"), []fsm.Row{row(2, "b", "1"), row(1, "z", "2"), row(2, "a", "3"), row(200, "k", "4")}))
	require.NoError(t, s.Write([]byte("h2"), []fsm.Row{row(2, "b", ""), row(2, "c", "5"), row(7, "never there", "")}))
	want := []string{"h2", "1 z=2", "2 a=3", "2 c=5", "200 k=4"}
	require.Equal(t, want, contents(t, s))
	require.NoError(t, s.Close())
	require.Equal(t, want, contents(t, open(t, path)))
}

func TestAViewShowsWhatItShowedThroughWriteReplaceAndClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	s := open(t, path)
	require.NoError(t, s.Write([]byte("h1"), []fsm.Row{row(1, "a", "1")}))
	v, err := s.View()
	require.NoError(t, err)
	require.NoError(t, s.Write([]byte("h2"), []fsm.Row{row(1, "a", "2")}))
	require.NoError(t, s.Replace([]byte("h3"), func(yield func(fsm.Row) bool) { yield(row(3, "n", "3")) }))
	require.Equal(t, []string{"h3", "3 n=3"}, contents(t, s))
	require.NoError(t, s.Close())
	require.Equal(t, []string{"h1", "1 a=1"}, list(t, v))
	require.NoError(t, v.Close())
	require.Equal(t, []string{"h3", "3 n=3"}, contents(t, open(t, path)))
}

func TestReplaceCopiesRowsThatReuseTheirMemory(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "state"))
	value := make([]byte, 1<<20)
	const n = 20 // several transactions
	require.NoError(t, s.Replace([]byte("h"), func(yield func(fsm.Row) bool) {
		for i := range n {
			copy(value, bytes.Repeat([]byte{byte('a' + i)}, len(value)))
			if !yield(fsm.Row{Table: 1, Key: []byte{byte(i)}, Value: value}) {
				return
			}
		}
	}))
	v, err := s.View()
	require.NoError(t, err)
	defer func() { require.NoError(t, v.Close()) }()
	i := 0
	require.NoError(t, v.Rows(func(r fsm.Row) error {
		require.Equal(t, bytes.Repeat([]byte{byte('a' + i)}, len(value)), r.Value)
		i++
		return nil
	}))
	require.Equal(t, n, i)
}

func TestALeftoverOfReplaceIsRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.WriteFile(path+".new", []byte("half"), 0o600))
	open(t, path)
	require.NoFileExists(t, path+".new")
}

func TestASecondProcessIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	open(t, path)
	_, err := Open(path, Config{})
	require.ErrorIs(t, err, ErrInUse)
}

func TestANewerFormatIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	require.NoError(t, open(t, path).Close())
	db, err := bolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketMeta).Put(keyFormat, []byte{2, 0, 0, 0})
	}))
	require.NoError(t, db.Close())
	_, err = Open(path, Config{})
	require.ErrorIs(t, err, ErrTooNew)
}

func TestAStalledWriteIsFatal(t *testing.T) { // I11
	fatal := make(chan error, 1)
	s, err := Open(filepath.Join(t.TempDir(), "state"), Config{Stall: time.Millisecond, Fatal: func(err error) { fatal <- err }})
	require.NoError(t, err)
	done := s.watch("a test", 0)
	require.ErrorContains(t, <-fatal, "a test has taken over 1ms")
	done()
	require.NoError(t, s.Close())
}

func TestAClosedStoreRefuses(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "state"))
	require.NoError(t, s.Close())
	require.Error(t, s.Write(nil, nil))
	_, err := s.View()
	require.Error(t, err)
}

// A machine over the real store: the state survives, its hash is verified, and a changed row is found.
func TestTheMachineVerifiesTheHashAtOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	s := open(t, path)
	m, err := fsm.Open(s, fsm.Config{})
	require.NoError(t, err)
	_, err = m.Apply(3, 1, command.AppendEntry(nil, 5, [][]byte{command.Encode(command.ClusterInit{ClusterID: [16]byte{1}, Name: "n"})}))
	require.NoError(t, err)
	require.NoError(t, m.Checkpoint())
	_, want, _ := m.StateHash()
	require.NoError(t, s.Close())

	s = open(t, path)
	m, err = fsm.Open(s, fsm.Config{})
	require.NoError(t, err)
	index, got, _ := m.StateHash()
	require.EqualValues(t, 3, index)
	require.Equal(t, want, got)
	require.Equal(t, "n", m.ClusterName())

	v, err := s.View()
	require.NoError(t, err)
	changed := false
	stop := errors.New("stop")
	var bad fsm.Row
	require.ErrorIs(t, v.Rows(func(r fsm.Row) error {
		bad = fsm.Row{Table: r.Table, Key: bytes.Clone(r.Key), Value: bytes.Clone(r.Value)}
		bad.Value[0] ^= 1
		changed = true
		return stop
	}), stop)
	require.True(t, changed)
	head := bytes.Clone(v.Head())
	require.NoError(t, v.Close())
	require.NoError(t, s.Write(head, []fsm.Row{bad}))
	_, err = fsm.Open(s, fsm.Config{})
	require.ErrorContains(t, err, "do not give the hash")
}
