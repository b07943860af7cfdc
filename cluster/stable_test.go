package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"penstock/internal/watchdog/watchdogtest"
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

func TestDamagedPagesOfTheStableStoreAreDamageAndNoPanic(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "stable.db")
	s, err := openStable(dir, true, nil)
	require.NoError(t, err)
	for term := range uint64(20) {
		require.NoError(t, s.SetUint64([]byte("CurrentTerm"), term))
	}
	require.NoError(t, s.Close())
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, with := range [][]byte{make([]byte, 4096), bytes.Repeat([]byte{0xff}, 4096), bytes.Repeat([]byte{0xff}, 16384), make([]byte, 16384)} {
		for at := 0; at+len(with) <= len(content); at += 4096 {
			what := fmt.Sprintf("%d bytes of %x at %d", len(with), with[0], at)
			broken := bytes.Clone(content)
			copy(broken[at:], with)
			require.NoError(t, os.WriteFile(path, broken, 0o600))
			s, err := openStable(dir, false, nil)
			if err == nil { // a page that holds nothing
				require.GreaterOrEqual(t, at, 8192, what)
				require.Len(t, with, 4096, what)
				require.NoError(t, s.Close())
				continue
			}
			require.ErrorIs(t, err, ErrDamaged, what)
			require.ErrorContains(t, err, path, what)
			require.Equal(t, ExitDisk, exitCodeOf(err, 0), what)
		}
	}
	require.NoError(t, os.WriteFile(path, content, 0o600))
	s, err = openStable(dir, false, nil)
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

func TestAHangingWriteToTheStableStoreIsFatalAndAPauseOfTheProcessIsNot(t *testing.T) {
	t.Run("hang", func(t *testing.T) {
		fatal := make(chan error, 1)
		s := &stableStore{stall: time.Millisecond, fatal: func(code int, err error) { fatal <- err }}
		defer s.watch([]byte("CurrentTerm")).Stop()
		require.ErrorContains(t, <-fatal, "write CurrentTerm to the stable store: no answer from the disk in 1ms")
	})
	t.Run("pause", func(t *testing.T) {
		watchdogtest.Run(t, func(disk func()) {
			s := &stableStore{stall: watchdogtest.Limit, fatal: func(code int, err error) { t.Errorf("fatal %d: %v", code, err) }}
			watch := s.watch([]byte("CurrentTerm"))
			disk()
			watch.Stop()
		})
	})
}

// Any flipped bit leaves the newest term and vote, or none: bbolt alone would go on from the meta page before it.
func TestNoFlippedBitOfTheStableStoreBringsAnOlderVoteBack(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "stable.db")
	s, err := openStable(dir, true, nil)
	require.NoError(t, err)
	for term := range uint64(9) {
		require.NoError(t, s.SetUint64([]byte("CurrentTerm"), term))
		require.NoError(t, s.SetUint64([]byte("LastVoteTerm"), term))
		require.NoError(t, s.Set([]byte("LastVoteCand"), fmt.Append(nil, "n", term)))
	}
	require.NoError(t, s.Close())
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	refused := 0
	try := func(bit int) {
		broken := bytes.Clone(content)
		broken[bit/8] ^= 1 << (bit % 8)
		require.NoError(t, os.WriteFile(path, broken, 0o600))
		s, err := openStable(dir, false, func(code int, err error) { t.Errorf("bit %d: fatal %v", bit, err) })
		if err != nil {
			require.ErrorIs(t, err, ErrDamaged, "bit %d", bit)
			refused++
			return
		}
		term, err := s.GetUint64([]byte("CurrentTerm"))
		require.NoError(t, err)
		voted, err := s.GetUint64([]byte("LastVoteTerm"))
		require.NoError(t, err)
		vote, err := s.Get([]byte("LastVoteCand"))
		require.NoError(t, err)
		require.Equal(t, []any{uint64(8), uint64(8), "n8"}, []any{term, voted, string(vote)}, "bit %d", bit)
		require.NoError(t, s.Close())
	}
	step := 61 // a sample that meets every bit of a byte
	for bit := 0; bit < 2*4096*8; bit += step {
		try(bit)
	}
	for meta := range 2 { // all of what names the root
		for bit := 0; bit < 64*8; bit += 3 {
			try((meta*4096+16)*8 + bit)
		}
	}
	for at := 2; at < len(content)/4096; at++ {
		for bit := 0; bit < 512*8; bit += step {
			try(at*4096*8 + bit)
		}
	}
	require.Greater(t, refused, 300)
}
