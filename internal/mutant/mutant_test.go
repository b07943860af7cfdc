package mutant

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWithoutTheTagNothingIsPlanted(t *testing.T) {
	if Built {
		t.Skip("built with planted bugs")
	}
	t.Setenv("PENSTOCK_MUTANT", string(AckBeforeFsync))
	for _, n := range All() {
		require.False(t, On(n))
	}
}

func TestEveryPlantedBugHasItsOwnName(t *testing.T) {
	seen := map[Name]bool{}
	for _, n := range All() {
		require.False(t, seen[n])
		seen[n] = true
	}
	require.Len(t, seen, 10)
}
