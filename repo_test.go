// Package penstock_test checks the repository itself: the import arrows of docs/ARCHITECTURE.md, package comments, the size
// of files, and that links between documents lead somewhere.
package penstock_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "penstock"

// source is one Go file, with its path from the root of the repository.
type source struct {
	path string
	dir  string // "." is the root
	test bool
	file *ast.File
	set  *token.FileSet
	text []byte
}

func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); p != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "demo-data") {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil && p != "." {
				return filepath.SkipDir // a module of its own: bench
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		s := source{path: filepath.ToSlash(p), test: strings.HasSuffix(p, "_test.go"), set: token.NewFileSet(), text: text}
		s.dir = path.Dir(s.path)
		s.file, err = parser.ParseFile(s.set, p, text, parser.ParseComments)
		out = append(out, s)
		return err
	})
	require.NoError(t, err)
	require.NotEmpty(t, out)
	return out
}

func (s source) imports(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, i := range s.file.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		require.NoError(t, err)
		out = append(out, p)
	}
	return out
}

// under tells whether dir is one of the folders, or below one.
func under(dir string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return dir == f || strings.HasPrefix(dir, f+"/") })
}

// arrows says for each folder what of this module it may import, beside itself and what is below it. A folder that is not
// listed is a mistake: it has no place in the picture yet.
var arrows = []struct {
	folder string
	may    []string
}{
	{"event", nil},
	{"internal", []string{"event", "internal"}},
	{"wal", []string{"event", "internal"}},
	{"fsm", []string{"event", "internal"}},
	{"cluster", []string{"event", "internal"}},
	{"emit", []string{"event", "internal"}},
	{"dlq", []string{"event", "internal"}},
	{"node", []string{"event", "internal", "wal", "fsm", "cluster", "emit", "dlq"}},
	{"cmd", []string{"event", "internal", "wal", "fsm", "cluster", "emit", "dlq", "node"}},
	// Black boxes: the public API, and the read-only decoder of the log.
	{"jepsen", []string{"event", "internal", "wal", "fsm/command"}},
	{"test", []string{"event", "internal", "wal", "fsm/command"}},
	// A module of its own, so that what we are measured against stays out of the product's go.mod.
	{"bench", []string{"event", "internal", "wal"}},
}

// testsMay is what tests of a folder may import beside that: what the folder is given by node, where a stand-in would prove nothing. Repair is only
// worth something over real damage of the real log.
var testsMay = map[string][]string{"cluster": {"wal"}}

func TestImportsFollowTheArrows(t *testing.T) {
	for _, s := range sources(t) {
		if s.dir == "." {
			require.True(t, s.test, "%s: the root holds no package", s.path)
			continue
		}
		at := slices.IndexFunc(arrows, func(a struct {
			folder string
			may    []string
		}) bool {
			return under(s.dir, a.folder)
		})
		require.GreaterOrEqual(t, at, 0, "%s: its folder has no place in the arrows", s.path)
		for _, imported := range s.imports(t) {
			folder, ours := strings.CutPrefix(imported, module+"/")
			if !ours || under(folder, arrows[at].folder) {
				continue
			}
			if s.test && under(folder, testsMay[s.dir]...) {
				continue
			}
			require.True(t, under(folder, arrows[at].may...), "%s imports %s, which is against the arrows", s.path, imported)
		}
	}
}

// deterministic is the code that must give the same on every node: no system, no clock, no chance, no goroutines. The
// checkpoint below fsm does the reading and writing for it.
func deterministic(s source) bool {
	return !s.test && under(s.dir, "fsm") && !under(s.dir, "fsm/checkpoint")
}

var clock = []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker"}

func TestStateMachineTouchesNoSystemClockOrChance(t *testing.T) {
	for _, s := range sources(t) {
		if !deterministic(s) {
			continue
		}
		for _, imported := range s.imports(t) {
			for _, banned := range []string{"os", "net", "syscall", "math/rand", "crypto/rand", "golang.org/x/sys"} {
				require.False(t, under(imported, banned), "%s imports %s", s.path, imported)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				require.Fail(t, "goroutine in the state machine", "%s", s.set.Position(n.Pos()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clock, n.Sel.Name) {
					require.Fail(t, "clock in the state machine", "%s: time.%s", s.set.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	}
}

func TestEveryPackageHasOneComment(t *testing.T) {
	comments := map[string][]string{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		if _, ok := comments[s.dir]; !ok {
			comments[s.dir] = nil
		}
		if s.file.Doc != nil {
			comments[s.dir] = append(comments[s.dir], s.path)
			want := "Package " + s.file.Name.Name + " "
			if s.file.Name.Name == "main" {
				want = "Command "
			}
			require.True(t, strings.HasPrefix(s.file.Doc.Text(), want), "%s: a package comment starts with %q", s.path, want)
		}
	}
	for dir, files := range comments {
		require.Len(t, files, 1, "package %s: want one package comment", dir)
	}
}

func lines(b []byte) int { return bytes.Count(b, []byte{'\n'}) }

func TestFilesFitAReader(t *testing.T) {
	for _, s := range sources(t) {
		if !s.test {
			require.LessOrEqual(t, lines(s.text), 600, "%s: split it by subject", s.path)
		}
	}
	b, err := os.ReadFile("docs/ARCHITECTURE.md")
	require.NoError(t, err)
	require.LessOrEqual(t, lines(b), 300, "docs/ARCHITECTURE.md is to be read in one sitting")
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestLinksBetweenDocumentsLeadSomewhere(t *testing.T) {
	var documents []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		documents = append(documents, found...)
	}
	require.Contains(t, documents, "README.md")
	for _, d := range documents {
		text, err := os.ReadFile(d)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			_, err := os.Stat(filepath.Join(filepath.Dir(d), target))
			require.NoError(t, err, "%s links to %s", d, m[1])
		}
	}
}

func TestEveryFormatIsInTheIndex(t *testing.T) {
	index, err := os.ReadFile("docs/format/README.md")
	require.NoError(t, err)
	pages, err := filepath.Glob("docs/format/*.md")
	require.NoError(t, err)
	for _, p := range pages {
		if filepath.Base(p) != "README.md" {
			require.Contains(t, string(index), filepath.Base(p), "docs/format/README.md lists every page")
		}
	}
}
