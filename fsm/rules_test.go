package fsm

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/event"
)

// Nothing that differs from node to node may be within reach of Apply.
func TestTheStateMachineReadsNoClockNoChanceAndNoWorld(t *testing.T) {
	banned := map[string]bool{
		"os": true, "net": true, "net/http": true, "time": true, "math/rand": true, "math/rand/v2": true, "crypto/rand": true,
		"path/filepath": true, "runtime": true, "unsafe": true, "github.com/google/uuid": true,
	}
	for _, dir := range []string{".", "command", "internal/wire"} {
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, f := range files {
			if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
				continue
			}
			tree, err := parser.ParseFile(token.NewFileSet(), dir+"/"+f.Name(), nil, 0)
			require.NoError(t, err)
			for _, i := range tree.Imports {
				path, err := strconv.Unquote(i.Path.Value)
				require.NoError(t, err)
				require.False(t, banned[path], "%s imports %s", f.Name(), path)
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				_, isGo := n.(*ast.GoStmt)
				require.False(t, isGo, "%s starts a goroutine", f.Name())
				return true
			})
		}
	}
}

// Ids that destinations have seen must stay what they are for ever (P6, I6).
func TestIDsNeverChange(t *testing.T) {
	first, last := event.Position{Index: 10, Ordinal: 2}, event.Position{Index: 11}
	require.Equal(t, "c7492bf958875d310f56f00b1f322111", compactionID([16]byte{1, 2}, 3, 4, first, last))
	require.Equal(t, "b3f6aaf76904fbb4eb8d4a4ee81487a6", DeadLetterID(3, 4, first))
}

func FuzzReadSnapshot(f *testing.F) {
	golden, err := os.ReadFile("testdata/format/v1/snapshot.bin")
	require.NoError(f, err)
	f.Add(golden)
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = readSnapshot(bytesReader(b)) })
}

// Rows are verified by their hash, but only after they were read: reading must stand anything.
func FuzzReadRow(f *testing.F) {
	golden, err := os.ReadFile("testdata/format/v1/snapshot.bin")
	require.NoError(f, err)
	seed, err := readSnapshot(bytesReader(golden))
	require.NoError(f, err)
	for r := range seed.allRows {
		f.Add(r.Table, append([]byte{}, r.Key...), append([]byte{}, r.Value...))
	}
	f.Fuzz(func(t *testing.T, table byte, key, value []byte) {
		s, err := readSnapshot(bytesReader(golden))
		require.NoError(t, err)
		_ = s.readRow(string(append([]byte{table}, key...)), value)
	})
}
