package cluster

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

func TestStableStoreKeepsTermAndVote(t *testing.T) {
	dir := t.TempDir()
	s, err := openStable(dir, true, func(code int, err error) { require.NoError(t, err) })
	require.NoError(t, err)
	term, err := s.GetUint64([]byte("CurrentTerm"))
	require.NoError(t, err)
	require.Zero(t, term)
	_, err = s.Get([]byte("Other"))
	require.EqualError(t, err, "not found", "the text by which Raft knows it")
	require.NoError(t, s.SetUint64([]byte("CurrentTerm"), 7))
	require.NoError(t, s.Set([]byte("LastVoteCand"), []byte("n2")))
	require.NoError(t, s.Close())

	s, err = openStable(dir, false, nil)
	require.NoError(t, err)
	defer s.Close()
	term, err = s.GetUint64([]byte("CurrentTerm"))
	require.NoError(t, err)
	require.Equal(t, uint64(7), term)
	vote, err := s.Get([]byte("LastVoteCand"))
	require.NoError(t, err)
	require.Equal(t, "n2", string(vote))
}

// breakStable changes the values of the store behind its back.
func breakStable(t *testing.T, dir string, fn func(b *bbolt.Bucket) error) {
	db, err := bbolt.Open(filepath.Join(dir, "stable.db"), 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error { return fn(tx.Bucket([]byte("conf"))) }))
	require.NoError(t, db.Close())
}

func TestLostOrFlippedVoteIsDamage(t *testing.T) {
	for name, fn := range map[string]func(b *bbolt.Bucket) error{
		"missing key": func(b *bbolt.Bucket) error { return b.Delete([]byte("LastVoteCand")) },
		"flipped bit": func(b *bbolt.Bucket) error {
			v := append([]byte(nil), b.Get([]byte("CurrentTerm"))...)
			v[len(v)-1] ^= 1
			return b.Put([]byte("CurrentTerm"), v)
		},
		"short value": func(b *bbolt.Bucket) error { return b.Put([]byte("LastVoteTerm"), []byte{1}) },
	} {
		dir := t.TempDir()
		s, err := openStable(dir, true, nil)
		require.NoError(t, err)
		require.NoError(t, s.Close())
		breakStable(t, dir, fn)
		_, err = openStable(dir, false, nil)
		require.ErrorIs(t, err, ErrDamaged, name)
		require.Equal(t, ExitDisk, exitCodeOf(err, 0), name)
	}
	dir := t.TempDir()
	_, err := openStable(dir, false, nil)
	require.ErrorIs(t, err, ErrDamaged, "a store that was there and is gone")
}

func TestFailedWriteToTheStableStoreEndsTheProcess(t *testing.T) {
	code := 0
	s, err := openStable(t.TempDir(), true, func(c int, err error) { code = c })
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Error(t, s.Set([]byte("CurrentTerm"), []byte("x")))
	require.Equal(t, ExitDisk, code)
	code = 0
	_, err = s.Get([]byte("CurrentTerm"))
	require.Error(t, err)
	require.Equal(t, ExitDisk, code)
}

func TestCrashWhileTheStableStoreIsMadeLeavesNone(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "stable.db.tmp"), []byte("half"), 0o600))
	s, err := openStable(dir, true, nil)
	require.NoError(t, err)
	require.NoError(t, s.Close())
}
