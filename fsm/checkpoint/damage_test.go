package checkpoint

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/fsm"
	"penstock/internal/watchdog/watchdogtest"
)

const page = 4096

// filled makes a closed store of a few hundred pages.
func filled(t *testing.T) (path string, content []byte) {
	path = filepath.Join(t.TempDir(), "fsm.db")
	s, err := Open(path, Config{})
	require.NoError(t, err)
	for i := range 2 {
		var rows []fsm.Row
		for j := range 200 {
			rows = append(rows, row(uint8(1+j%3), fmt.Sprintf("%d-%d", i, j), string(bytes.Repeat([]byte{byte('a' + i)}, 500))))
		}
		require.NoError(t, s.Write([]byte("head"), rows))
	}
	require.NoError(t, s.Close())
	content, err = os.ReadFile(path)
	require.NoError(t, err)
	return path, content
}

// load reads all that a machine reads at its start.
func load(path string) (err error) {
	s, err := Open(path, Config{})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	v, err := s.View()
	if err != nil {
		return err
	}
	defer func() { _ = v.Close() }()
	sum := 0
	return v.Rows(func(r fsm.Row) error {
		for _, b := range append(r.Key, r.Value...) {
			sum += int(b)
		}
		return nil
	})
}

func requireDamaged(t *testing.T, path string, err error, what string) {
	t.Helper()
	require.ErrorIs(t, err, ErrDamaged, what)
	require.ErrorContains(t, err, path, what)
}

// bbolt answers damage with a panic. Whatever page it is, the start must end with an error that names the file, or not be
// touched by it; and the file must be free again.
func TestADamagedPageIsAnErrorThatNamesTheFile(t *testing.T) {
	path, content := filled(t)
	zero, ones := make([]byte, page), bytes.Repeat([]byte{0xff}, page)
	found := 0
	for _, with := range [][]byte{zero, ones} {
		for at := 0; at+page <= len(content); at += page {
			broken := bytes.Clone(content)
			copy(broken[at:], with)
			require.NoError(t, os.WriteFile(path, broken, 0o600))
			if err := load(path); err != nil {
				found++
				requireDamaged(t, path, err, fmt.Sprintf("page %d", at/page))
			}
		}
	}
	require.Greater(t, found, 40)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	require.NoError(t, load(path))
}

func TestScatteredDamageIsAnError(t *testing.T) {
	path, content := filled(t)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 100 {
		broken := bytes.Clone(content)
		for range 1 + i%20 {
			at := random.IntN(len(broken)/page)*page + random.IntN(64) // headers and the elements behind them
			broken[at] = byte(random.Uint32())
		}
		require.NoError(t, os.WriteFile(path, broken, 0o600))
		if err := load(path); err != nil {
			requireDamaged(t, path, err, fmt.Sprint(i))
		}
	}
}

func TestAFileCutShortOrOfSomethingElseIsDamaged(t *testing.T) {
	path, content := filled(t)
	for name, b := range map[string][]byte{
		"text": []byte("not a database"), "zeros": make([]byte, len(content)), "one page": content[:page],
		"ones": bytes.Repeat([]byte{0xff}, 4*page), "half": content[:len(content)/2/page*page],
	} {
		require.NoError(t, os.WriteFile(path, b, 0o600))
		requireDamaged(t, path, load(path), name)
	}
}

func TestAPanicOfTheReaderIsNotDamage(t *testing.T) {
	path, _ := filled(t)
	v, err := open(t, path).View()
	require.NoError(t, err)
	defer func() { require.NoError(t, v.Close()) }()
	require.PanicsWithValue(t, "a bug", func() { _ = v.Rows(func(fsm.Row) error { panic("a bug") }) })
}

func TestAPauseOfTheProcessDuringAWriteIsNoStall(t *testing.T) {
	watchdogtest.Run(t, func(disk func()) {
		s, err := Open(filepath.Join(t.TempDir(), "state"), Config{
			Stall: watchdogtest.Limit, Fatal: func(err error) { t.Errorf("fatal: %v", err) },
		})
		require.NoError(t, err)
		done := s.watch("a test", 0)
		disk()
		done()
		require.NoError(t, s.Close())
	})
}
