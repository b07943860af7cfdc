package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A snapshot is taken early once after a burst, never while the log grows, and not for a little.
func TestAfterABurstASnapshotIsDueEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval = 128 << 20
		var q quietLog
		look := func(grown int64, seconds int) (due bool) {
			for range seconds * 4 {
				due = q.due(grown, interval) || due
				time.Sleep(snapshotLook)
			}
			return due
		}
		require.False(t, look(1<<20, 60), "too little")
		for grown := int64(1 << 20); grown < interval; grown += 2 << 20 {
			require.False(t, look(grown, 1), "it grows")
		}
		require.True(t, look(100<<20, 12))
		require.False(t, look(1<<20, 12), "one was taken")
		require.False(t, look(20<<20, 9))
		require.True(t, look(20<<20+1000, 3), "a trickle is quiet")
	})
}
