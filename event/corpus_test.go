package event

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// corpus returns the directory of a shared corpus: PENSTOCK_CORPUS, else ../shared/testdata beside the repository. A test
// that needs it is skipped where it is absent; the small corpus in testdata is always there.
func corpus(t testing.TB, name string) string {
	root := os.Getenv("PENSTOCK_CORPUS")
	if root == "" {
		root = filepath.Join("..", "..", "shared", "testdata")
	}
	dir := filepath.Join(root, name)
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("the corpus %s is not there (set PENSTOCK_CORPUS to the directory that holds it): %v", name, err)
	}
	return dir
}

// files returns the contents of the files of dir that match the pattern, by name.
func files(t testing.TB, dir, pattern string) map[string][]byte {
	paths, err := filepath.Glob(filepath.Join(dir, pattern))
	require.NoError(t, err)
	out := make(map[string][]byte, len(paths))
	for _, p := range paths {
		b, err := os.ReadFile(p)
		require.NoError(t, err)
		out[filepath.Base(p)] = b
	}
	require.NotEmpty(t, out, "%s in %s", pattern, dir)
	return out
}
