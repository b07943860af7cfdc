package watchdog

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"penstock/internal/watchdog/watchdogtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestItExpiresOnceAfterTheLimitOfRunningTime(t *testing.T) {
	for _, limit := range []time.Duration{time.Nanosecond, time.Millisecond, 500 * time.Millisecond, 10 * time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var count, after atomic.Int64
			Start(limit, func() { count.Add(1); after.Store(int64(time.Since(began))) })
			time.Sleep(10 * limit)
			synctest.Wait()
			require.EqualValues(t, 1, count.Load(), "%s", limit)
			require.GreaterOrEqual(t, time.Duration(after.Load()), limit)
			require.LessOrEqual(t, time.Duration(after.Load()), limit+min(limit/10+1, maxTick))
		})
	}
}

func TestAStoppedWatchNeverExpires(t *testing.T) {
	for _, after := range []time.Duration{0, 500 * time.Millisecond, 9999 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			w := Start(10*time.Second, func() { t.Error("expired") })
			time.Sleep(after)
			w.Stop()
			w.Stop()
			time.Sleep(time.Minute)
			synctest.Wait()
		})
	}
}

// paused gives a clock in which a pause of the process is a leap: no timer fires during it, all that are due fire after it.
func paused() (now func() time.Time, pause func(time.Duration)) {
	var leap atomic.Int64
	return func() time.Time { return time.Now().Add(time.Duration(leap.Load())) }, func(d time.Duration) { leap.Add(int64(d)) }
}

func TestAPauseOfTheProcessDoesNotCountAndAHangGoesOnCounting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now, pause := paused()
		began := time.Now()
		var expired atomic.Int64
		start(10*time.Second, func() { expired.Store(int64(time.Since(began))) }, now)
		for range 5 { // five pauses, each longer than the limit
			time.Sleep(1500 * time.Millisecond)
			pause(time.Minute)
		}
		time.Sleep(500 * time.Millisecond) // 8 s have passed
		synctest.Wait()
		require.Zero(t, expired.Load(), "pauses count")
		time.Sleep(20 * time.Second)
		synctest.Wait()
		require.NotZero(t, expired.Load(), "what hangs after a pause is found")
		require.LessOrEqual(t, time.Duration(expired.Load()), 16*time.Second, "each pause costs one tick")
	})
}

// A busy process has late timers. It was running.
func TestALittleLatenessCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now, late := paused()
		var expired atomic.Bool
		start(10*time.Second, func() { expired.Store(true) }, now)
		time.Sleep(500 * time.Millisecond) // between the ticks
		for range 6 {
			late(900 * time.Millisecond)
			time.Sleep(time.Second)
		}
		synctest.Wait()
		require.True(t, expired.Load(), "6 ticks of 1.9 s")
	})
}

func TestAStoppedProcessIsNotAHang(t *testing.T) {
	watchdogtest.Run(t, func(disk func()) {
		w := Start(watchdogtest.Limit, func() { panic("expired") })
		disk()
		w.Stop()
	})
}

func BenchmarkStartStop(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Start(10*time.Second, func() {}).Stop()
	}
}
