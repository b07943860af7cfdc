package node

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
)

// A state of ten million producer ids is half a gigabyte of arrays without a pointer in them: collecting it costs next to
// nothing, and letting the heap double before it is done costs as much memory again. So the room that the heap may grow by
// is bounded in bytes, not as a share of what lives.
const (
	heapRoom      = 256 << 20
	loadPercent   = 25 // while the state is loaded
	leastPercent  = 20
	usualPercent  = 100
	liveHeapBytes = "/gc/heap/live:bytes"
)

// gcOurs tells whether nobody else has said how memory is to be used.
func gcOurs() bool { return os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" }

// tuneGC sets how far the heap may grow for what lives now. Called now and then.
func tuneGC() {
	if !gcOurs() {
		return
	}
	sample := []metrics.Sample{{Name: liveHeapBytes}}
	metrics.Read(sample)
	debug.SetGCPercent(gcPercent(sample[0].Value.Uint64()))
}

func gcPercent(live uint64) int {
	if live == 0 {
		return usualPercent
	}
	return int(min(max(heapRoom*100/live, leastPercent), usualPercent))
}
