package boltcheck

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
)

// made is a file with what bbolt can do: branches, pages that overflow, inline and nested buckets, freed pages.
func made(t *testing.T, opts bolt.Options) (path string, content []byte) {
	path = filepath.Join(t.TempDir(), "db")
	require.NoError(t, File(path), "a missing file is made by bbolt")
	db, err := bolt.Open(path, 0o600, &opts)
	require.NoError(t, err)
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 5 {
		require.NoError(t, db.Update(func(tx *bolt.Tx) error {
			for name, values := range map[string]int{"many": 200, "few": 2, "none": 0} {
				b, err := tx.CreateBucketIfNotExists([]byte(name))
				require.NoError(t, err)
				inner, err := b.CreateBucketIfNotExists([]byte("inner"))
				require.NoError(t, err)
				for i := range values {
					key := []byte(fmt.Sprintf("key %d", random.IntN(10*values)))
					size := 10 + random.IntN(100)
					if name == "many" && i%50 == 0 {
						size = 20000
					}
					require.NoError(t, b.Put(key, bytes.Repeat([]byte{byte(round)}, size)))
					require.NoError(t, inner.Put(key, []byte("x")))
					if i%3 == 0 {
						require.NoError(t, b.Delete([]byte(fmt.Sprintf("key %d", random.IntN(10*values)))))
					}
				}
			}
			return nil
		}))
	}
	require.NoError(t, db.Close())
	content, err = os.ReadFile(path)
	require.NoError(t, err)
	return path, content
}

var kinds = map[string]bolt.Options{
	"free pages listed": {FreelistType: bolt.FreelistMapType, NoSync: true},
	"free pages found":  {FreelistType: bolt.FreelistMapType, NoSync: true, NoFreelistSync: true},
	"pages of 1 KiB":    {PageSize: 1024, NoSync: true},
	"pages of 16 KiB":   {PageSize: 16384, NoSync: true},
}

func TestWhatBboltWroteIsGood(t *testing.T) {
	for name, opts := range kinds {
		path, _ := made(t, opts)
		require.NoError(t, File(path), name)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	require.NoError(t, File(empty))
}

func TestEitherOfTheFirstTwoPagesIsEnough(t *testing.T) {
	for name, opts := range kinds {
		_, content := made(t, opts)
		size := max(opts.PageSize, 0)
		if size == 0 {
			size = os.Getpagesize()
		}
		for at := range 2 {
			broken := bytes.Clone(content)
			clear(broken[at*size : (at+1)*size])
			m, err := readMeta(bytes.NewReader(broken), int64(len(broken)))
			require.NoError(t, err, name)
			require.EqualValues(t, size, m.pageSize)
		}
		broken := bytes.Clone(content)
		clear(broken[:2*size])
		require.ErrorIs(t, check(bytes.NewReader(broken), int64(len(broken))), ErrDamaged, name)
	}
}

// walk has bbolt open a file, find its free pages, and read it all: a panic fails the test.
func walk(t *testing.T, path string, opts bolt.Options) {
	opts.PageSize = 0
	db, err := bolt.Open(path, 0o600, &opts)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	sum := 0
	var all func(b *bolt.Bucket) error
	all = func(b *bolt.Bucket) error {
		return b.ForEach(func(k, v []byte) error {
			if v == nil {
				return all(b.Bucket(k))
			}
			for _, x := range append(bytes.Clone(k), v...) {
				sum += int(x)
			}
			return nil
		})
	}
	require.NoError(t, db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bolt.Bucket) error { return all(b) })
	}))
	require.NotZero(t, sum)
}

func TestWhatPassesBboltReads(t *testing.T) {
	for name, opts := range kinds {
		path, content := made(t, opts)
		random, passed, found := rand.New(rand.NewPCG(3, 4)), 0, 0
		for i := range 200 {
			broken := bytes.Clone(content)
			switch at := random.IntN(len(broken)/1024) * 1024; i % 4 {
			case 0:
				clear(broken[at:min(at+4096, len(broken))])
			case 1:
				copy(broken[at:], bytes.Repeat([]byte{0xff}, 4096))
			case 2: // headers, and the elements behind them
				for range 1 + random.IntN(3) {
					broken[at+random.IntN(200)] = byte(random.Uint32())
				}
			case 3: // a page that was written elsewhere
				copy(broken[at:at+1024], content[random.IntN(len(broken)/1024)*1024:])
			}
			if err := check(bytes.NewReader(broken), int64(len(broken))); err != nil {
				require.ErrorIs(t, err, ErrDamaged, name)
				found++
				continue
			}
			passed++
			require.NoError(t, os.WriteFile(path, broken, 0o600))
			walk(t, path, opts)
		}
		require.NotZero(t, passed, name)
		require.Greater(t, found, 10, name)
	}
}

func FuzzCheck(f *testing.F) {
	f.Add([]byte("not a database"))
	f.Add(make([]byte, 4*4096))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = check(bytes.NewReader(b), int64(len(b))) // ends, and does not panic
	})
}
