package cluster

import (
	"context"
	"io"
	"log"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// raftLogger gives Raft's log lines to slog. State changes are told by this package, so what Raft calls a warning is for debugging; its
// errors are warnings, and since a peer that is away makes Raft say so many times a second, one line in five seconds of one message is
// let through.
type raftLogger struct {
	logger *slog.Logger
	name   string
	args   []any
	recent *recentLines
}

// closing are errors that only tell of a connection's end.
var closing = map[string]bool{
	"failed to decode incoming command": true, "failed to flush response": true, "failed to accept connection": true,
}

type recentLines struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func newRaftLogger(l *slog.Logger) *raftLogger {
	return &raftLogger{logger: l.With("part", "raft"), name: "raft", recent: &recentLines{last: map[string]time.Time{}}}
}

func (r *recentLines) allow(msg string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.last[msg]) < 5*time.Second || len(r.last) > 1000 {
		return false
	}
	r.last[msg] = now
	return true
}

// Log implements hclog.Logger.
func (l *raftLogger) Log(level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	if level >= hclog.Error && !closing[msg] {
		to = slog.LevelWarn
	}
	if !l.logger.Enabled(context.Background(), to) || to > slog.LevelDebug && !l.recent.allow(msg) {
		return
	}
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 1 {
			args[i] = f[1]
		}
	}
	l.logger.Log(context.Background(), to, msg, append(append([]any{}, l.args...), args...)...)
}

// The rest of hclog.Logger.

func (l *raftLogger) Trace(string, ...any)          {}
func (l *raftLogger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l *raftLogger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l *raftLogger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l *raftLogger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }
func (l *raftLogger) IsTrace() bool                 { return false }
func (l *raftLogger) IsDebug() bool                 { return true }
func (l *raftLogger) IsInfo() bool                  { return true }
func (l *raftLogger) IsWarn() bool                  { return true }
func (l *raftLogger) IsError() bool                 { return true }
func (l *raftLogger) ImpliedArgs() []any            { return l.args }
func (l *raftLogger) Name() string                  { return l.name }
func (l *raftLogger) SetLevel(hclog.Level)          {}
func (l *raftLogger) GetLevel() hclog.Level         { return hclog.Debug }

func (l *raftLogger) With(args ...any) hclog.Logger {
	c := *l
	c.args = append(append([]any{}, l.args...), args...)
	return &c
}

func (l *raftLogger) Named(name string) hclog.Logger      { return l.With("part", name) }
func (l *raftLogger) ResetNamed(name string) hclog.Logger { return l.With("part", name) }

func (l *raftLogger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return log.New(l.StandardWriter(nil), "", 0)
}

func (l *raftLogger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return io.Discard }
