package wal

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

// TestScrubFindsWhatRotsUnderALiveLog: a bit of a record, of a header, and a
// file that is gone; reads in between say so, and a repair mends it while the
// log goes on.
func TestScrubFindsWhatRotsUnderALiveLog(t *testing.T) {
	sp := newSpecimen(t)
	for what, img := range sp.damages() {
		fsys := sp.files.put(t)
		l, err := Open(testDir, testConfig(t, fsys))
		require.NoError(t, err)
		found, err := l.Scrub(t.Context(), 0)
		require.NoError(t, err)
		require.Empty(t, found)
		for name, b := range sp.files { // rot
			if name == sp.newest || name == markName || string(img[name]) == string(b) {
				continue
			}
			path := testDir + "/" + name
			if len(img[name]) == 0 {
				require.NoError(t, fsys.Remove(path))
				continue
			}
			f, err := fsys.OpenFile(path, 2, 0)
			require.NoError(t, err)
			_, err = f.WriteAt(img[name], 0)
			require.NoError(t, err)
			require.NoError(t, f.Truncate(int64(len(img[name]))))
			require.NoError(t, f.Close())
		}
		found, err = l.Scrub(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, l.Damage(), found, what)
		require.Equal(t, float64(len(found)), testutil.ToFloat64(l.metrics.scrubDamages))
		require.NoError(t, sp.check(l, sp.last), what)
		again, err := l.Scrub(t.Context(), 0)
		require.NoError(t, err)
		require.Empty(t, again, "told once")
		require.NoError(t, l.Repair(sp.lost(l)), what)
		require.Empty(t, l.Damage(), what)
		require.NoError(t, sp.check(l, sp.last), what)
		require.NoError(t, l.StoreLog(entry(sp.last+1, 9, 10)))
		require.NoError(t, l.Close())
	}
}

// TestScrubKeepsToItsRateAndEndsWithItsContext: at 8 KiB a second two
// segments of 32 KiB take seconds.
func TestScrubKeepsToItsRateAndEndsWithItsContext(t *testing.T) {
	sp := newSpecimen(t)
	l := mustOpen(t, sp.files.put(t))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err := l.Scrub(ctx, 2*blockSize)
	require.ErrorIs(t, err, context.Canceled)
	require.LessOrEqual(t, testutil.ToFloat64(l.metrics.scrubBytes), 3.0*blockSize)
	require.Zero(t, testutil.ToFloat64(l.metrics.scrubPasses))
}
