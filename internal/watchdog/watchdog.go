// Package watchdog tells that an operation takes too long, in time during which this process was running.
//
// It owns the measure: a limit is walked in ticks of a tenth of it (a second at the most), and a tick that came much later
// than it was due does not count. A process that was stopped, or starved, or whose machine was suspended, saw nothing of what
// its disk did meanwhile; an operation that has hung counts on from there.
//
// It promises that what it calls is called at most once, never before the limit has passed, and on a process that runs no
// later than about two ticks after it. Starting a watch costs one timer and no goroutine.
//
// It does not stop the operation, and does not decide what a hang means: its callers end the process (I11).
package watchdog

import (
	"sync"
	"time"
)

const maxTick = time.Second

// Watch is one operation that is being watched.
type Watch struct {
	limit   time.Duration
	tick    time.Duration
	expired func()
	now     func() time.Time

	mu      sync.Mutex
	timer   *time.Timer // nil once stopped or expired
	asked   time.Time   // when the timer was set
	running time.Duration
}

// Start calls expired, from a goroutine of its own, once the process has been running for limit, unless Stop is called first.
func Start(limit time.Duration, expired func()) *Watch { return start(limit, expired, time.Now) }

func start(limit time.Duration, expired func(), now func() time.Time) *Watch {
	w := &Watch{limit: limit, tick: min(max(limit/10, 1), maxTick), expired: expired, now: now}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = now()
	w.timer = time.AfterFunc(w.tick, w.look)
	return w
}

// Stop ends the watch. When it returns, expired is not called any more, or was called already and may still run.
func (w *Watch) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// look is one tick.
func (w *Watch) look() {
	if w.over() {
		w.expired()
	}
}

func (w *Watch) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer == nil {
		return false
	}
	now := w.now()
	// Twice the tick: timers of a busy process are a little late, and that time it was running.
	if since := now.Sub(w.asked); since <= 2*w.tick {
		w.running += since
	}
	if w.running >= w.limit {
		w.timer = nil
		return true
	}
	w.asked = now
	w.timer.Reset(w.tick)
	return false
}
