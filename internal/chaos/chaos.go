// Package chaos lets a process end itself with SIGKILL at random moments, biased to the dangerous ones, so that anyone can
// see that a cluster of theirs survives it. Off by default; PENSTOCK_CHAOS_MODE=yes turns it on, loudly.
//
// With PENSTOCK_CHAOS_MODE_TRIGGER=FILE the moment is not random: once FILE is there, the process that first crosses the point
// whose name stands in it takes the file away and ends. Tests say with it at which step a process is to die.
//
// It promises that Point costs one atomic load when it is off, that nothing but the environment turns it on, and that it
// never ends another process. It does not start the process again: that is the supervisor's work.
package chaos

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Defaults of PENSTOCK_CHAOS_MODE_MIN and _MAX: a kill comes so long after the start.
const (
	defaultMin = 15 * time.Second
	defaultMax = 60 * time.Second
	// patience is how long an armed process waits to cross a dangerous point before it ends wherever it is.
	patience = 3 * time.Second
	// oneIn: an armed process ends at one of so many points it crosses, so that not only the most frequent is hit.
	oneIn = 8
)

// Mode is chaos mode in this process.
type Mode struct {
	log     *slog.Logger
	kill    func()
	trigger string // file that names the point to end at; "" is a random moment
	armed   atomic.Bool
	once    sync.Once
	stop    chan struct{}
	done    chan struct{}
}

var active atomic.Pointer[Mode]

// Point marks a dangerous moment, e.g. "wal.before_fsync". It does nothing unless chaos mode is on and due.
func Point(name string) {
	m := active.Load()
	switch {
	case m == nil:
	case m.trigger != "":
		m.pulled(name)
	case m.armed.Load() && rand.IntN(oneIn) == 0:
		m.end(name)
	}
}

// pulled ends the process if the trigger names this point. Of several processes that cross it, the one that removes the file ends.
func (m *Mode) pulled(name string) {
	b, err := os.ReadFile(m.trigger)
	if err == nil && strings.TrimSpace(string(b)) == name && os.Remove(m.trigger) == nil {
		m.end(name)
	}
}

// Settings are what the environment says.
type Settings struct {
	On       bool
	Min, Max time.Duration
	// Trigger is a file that names the point at which the process that crosses it first ends; then Min and Max mean nothing.
	Trigger string
}

// FromEnv reads PENSTOCK_CHAOS_MODE (yes or nothing), PENSTOCK_CHAOS_MODE_MIN and _MAX (seconds, or a duration with its unit) and
// PENSTOCK_CHAOS_MODE_TRIGGER (a file).
func FromEnv(getenv func(string) string) (Settings, error) {
	s := Settings{Min: defaultMin, Max: defaultMax}
	switch v := getenv("PENSTOCK_CHAOS_MODE"); v {
	case "":
		return s, nil
	case "yes":
		s.On, s.Trigger = true, getenv("PENSTOCK_CHAOS_MODE_TRIGGER")
	default:
		return s, fmt.Errorf("PENSTOCK_CHAOS_MODE: %q: want yes, or leave it out", v)
	}
	for name, to := range map[string]*time.Duration{"PENSTOCK_CHAOS_MODE_MIN": &s.Min, "PENSTOCK_CHAOS_MODE_MAX": &s.Max} {
		v := getenv(name)
		if v == "" {
			continue
		}
		d, err := parse(v)
		if err != nil || d <= 0 {
			return s, fmt.Errorf("%s: %q: want seconds or a duration with its unit, above 0", name, v)
		}
		*to = d
	}
	if s.Max < s.Min {
		return s, fmt.Errorf("PENSTOCK_CHAOS_MODE_MAX: %v is below PENSTOCK_CHAOS_MODE_MIN %v", s.Max, s.Min)
	}
	return s, nil
}

func parse(v string) (time.Duration, error) {
	if d, err := time.ParseDuration(v); err == nil {
		return d, nil
	}
	return time.ParseDuration(v + "s")
}

// Start turns chaos mode on as the settings say; stop turns it off again. It is a no-op when they say off.
func Start(s Settings, log *slog.Logger) (stop func()) {
	return start(s, log, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) })
}

func start(s Settings, log *slog.Logger, kill func()) (stop func()) {
	if !s.On {
		return func() {}
	}
	m := &Mode{log: log, kill: kill, trigger: s.Trigger, stop: make(chan struct{}), done: make(chan struct{})}
	if s.Trigger != "" {
		log.Warn("CHAOS MODE IS ON: this process will end itself with SIGKILL at the point that a file names", "file", s.Trigger)
		active.Store(m)
		return func() { active.CompareAndSwap(m, nil) }
	}
	after := s.Min + time.Duration(rand.Int64N(int64(s.Max-s.Min)+1))
	log.Warn("CHAOS MODE IS ON: this process will end itself with SIGKILL", "after", after.Round(time.Millisecond).String(), "min", s.Min.String(), "max", s.Max.String())
	active.Store(m)
	go m.run(after)
	return func() {
		active.CompareAndSwap(m, nil)
		close(m.stop)
		<-m.done
	}
}

// run arms after a while, and ends the process itself when it crosses no point in time.
func (m *Mode) run(after time.Duration) {
	defer close(m.done)
	if !m.wait(after) {
		return
	}
	m.armed.Store(true)
	if m.wait(time.Duration(rand.Int64N(int64(patience)) + 1)) {
		m.end("any moment")
	}
}

func (m *Mode) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-m.stop:
		return false
	case <-t.C:
		return true
	}
}

func (m *Mode) end(where string) {
	m.once.Do(func() {
		m.log.Warn("CHAOS MODE: SIGKILL to self", "at", where)
		m.kill()
	})
}
