package history

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadGivesBackWhatWasWritten(t *testing.T) {
	dir := t.TempDir()
	late := Op{T: 20, Type: OK, Client: "w1", Seq: 1, F: Write, Acks: []Ack{{ID: "a", Position: "3.0"}}}
	early := Op{T: 10, Type: Invoke, Client: "w2", Seq: 1, F: WriteOffset, Offset: &Offset{}}
	for name, op := range map[string]Op{"a.jsonl": late, "b.jsonl": early} {
		w, err := Create[Op](filepath.Join(dir, name))
		require.NoError(t, err)
		w.Append(op)
		require.NoError(t, w.Close())
	}
	ops, err := ReadOps(dir)
	require.NoError(t, err)
	require.Equal(t, []Op{early, late}, ops, "ordered by time; an offset of 0 is not an absent offset")
}

func TestReadNamesTheBrokenRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	require.NoError(t, os.WriteFile(path, []byte("{\"t\":1}\n{\"t\":"), 0o600))
	_, err := Read[Op](path)
	require.ErrorContains(t, err, "record 2")
}
