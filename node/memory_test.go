package node

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheHeapGrowsByABoundedAmount(t *testing.T) {
	require.Equal(t, 100, gcPercent(0))
	require.Equal(t, 100, gcPercent(100<<20))
	require.Equal(t, 50, gcPercent(512<<20))
	require.Equal(t, 20, gcPercent(100<<30), "collecting all the time is no use either")
}
