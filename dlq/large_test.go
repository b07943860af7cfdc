package dlq

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAVolumeOfFiveGigabytesOpensInBoundedTimeAndMemory: every record is read at the start, one at a time; what stays in memory is an
// index of about 50 bytes a record. The short form is 64 MiB, PENSTOCK_FULL=1 runs 5 GB in 200 files.
func TestAVolumeOfFiveGigabytesOpensInBoundedTimeAndMemory(t *testing.T) {
	files, perFile := 4, 1600 // of about 10 KB
	if os.Getenv("PENSTOCK_FULL") == "1" {
		files, perFile = 200, 2500
	}
	dir := filepath.Join(t.TempDir(), "dlq")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	pad := []byte(`"` + strings.Repeat("x", 9600) + `"`)
	total := int64(0)
	for f := range files {
		var lines []byte
		for i := range perFile {
			r := record(f*perFile + i + 1)
			r.ID = fmt.Sprintf("%032x", f*perFile+i)
			r.Event.Data = pad
			var err error
			lines, err = r.AppendLine(lines)
			require.NoError(t, err)
		}
		total += int64(len(lines))
		require.NoError(t, os.WriteFile(filepath.Join(dir, sealedName(uint64(f+1))), lines, 0o600))
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse
	}
	before := heap()
	began := time.Now()
	v, err := Open(dir, Config{NodeID: "n1", MaxBytes: 10 << 30, MaxFiles: 1000})
	took := time.Since(began)
	require.NoError(t, err)
	grown := int64(heap()) - int64(before)
	t.Logf("%d MB in %d files: open in %v, %d KiB of heap", total>>20, files, took.Round(time.Millisecond), grown>>10)
	st, err := v.Stats()
	require.NoError(t, err)
	require.Equal(t, files*perFile, st.Dead)
	require.Less(t, grown, int64(200*files*perFile)+16<<20)
	require.Less(t, took, 30*time.Second+time.Duration(total>>20)*20*time.Millisecond)
	r, ok, err := v.Get(fmt.Sprintf("%032x", files*perFile-1))
	require.NoError(t, err)
	require.True(t, ok)
	require.Len(t, r.Event.Data, len(pad))
	require.NoError(t, v.Close())
}
