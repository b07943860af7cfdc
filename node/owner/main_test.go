package owner

import (
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"penstock/emit"
	"penstock/fsm"
	"penstock/internal/spec"
	"penstock/node/internal/testbed"
	"penstock/node/logread"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

func orders(emitters ...spec.Emitter) spec.Channel {
	return spec.Channel{
		Name: "orders", Semantics: spec.AtLeastOnce, Order: spec.OrderNone, Retention: spec.Retention{Keep: spec.Duration(time.Minute)},
		Emitters: emitters,
	}
}

func stdout(name string) spec.Emitter {
	return spec.Emitter{Name: name, Kind: spec.KindStdout, Stdout: &spec.Stdout{}}
}

// cutting is an emitter whose compactions hold so many events.
func cutting(events int) spec.Emitter {
	e := stdout("out")
	e.Compaction = spec.Compaction{Events: events, Linger: spec.Duration(time.Minute)}
	return e
}

func depsOf(b *testbed.Bed) Deps {
	return Deps{
		NodeID: "n1", Machine: b.Machine, Reader: logread.New(b.Log, b.Machine, 1<<20), Cluster: b, Lease: testbed.Lease{},
		Metrics: emit.NewMetrics(nil), Logger: quiet,
	}
}

func sourceOf(b *testbed.Bed, cacheBytes int64) *source {
	e := b.Emitter("orders", "out")
	return &source{
		machine: b.Machine, reader: logread.New(b.Log, b.Machine, cacheBytes), channelIndex: e.ChannelIndex, emitterIndex: e.EmitterIndex,
	}
}

func owned(b *testbed.Bed) fsm.EmitterInfo { return b.Own(b.Emitter("orders", "out"), "n1") }
