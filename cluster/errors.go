package cluster

import (
	"errors"
	"fmt"
)

// Exit codes of a server, DESIGN section 6.
const (
	ExitFailed  = 1
	ExitDamage  = 3 // of the log, with no other copy to repair it from
	ExitDisk    = 10
	ExitForeign = 11
	ExitInUse   = 12
	ExitTooNew  = 13
	ExitRemoved = 15
)

// ExitError is an error that ends the process with a code of its own.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string { return e.Err.Error() }
func (e *ExitError) Unwrap() error { return e.Err }

// ExitCode is the exit code the process ends with.
func (e *ExitError) ExitCode() int { return e.Code }

var (
	// ErrWiped: another node knows this node id with a newer incarnation or another directory.
	ErrWiped = errors.New("the data directory was wiped or restored from a copy")
	// ErrForeign: the directory belongs to another node or another cluster.
	ErrForeign = errors.New("the data directory belongs to another node or cluster")
	// ErrInUse: another process holds the directory.
	ErrInUse = errors.New("the data directory is in use by another process")
	// ErrTooNew: a newer version wrote the directory.
	ErrTooNew = errors.New("the data directory was written by a newer version")
	// ErrDamaged: something on disk that must be there and right is not.
	ErrDamaged = errors.New("the data directory is damaged")
	// ErrRemoved: this node was a member and is none any more.
	ErrRemoved = errors.New("this node was removed from the cluster")
	// ErrClosed: the cluster was closed.
	ErrClosed = errors.New("cluster closed")
	// ErrNoLeader: nobody leads right now; nothing was done.
	ErrNoLeader = errors.New("no leader")
)

func wiped(format string, args ...any) error {
	return exitError(ExitForeign, ErrWiped, format, args...)
}
func foreign(format string, args ...any) error {
	return exitError(ExitForeign, ErrForeign, format, args...)
}
func damaged(format string, args ...any) error {
	return exitError(ExitDisk, ErrDamaged, format, args...)
}
func logDamaged(format string, args ...any) error {
	return exitError(ExitDamage, ErrDamaged, format, args...)
}

func exitError(code int, kind error, format string, args ...any) error {
	return &ExitError{Code: code, Err: fmt.Errorf("%w: %s", kind, fmt.Sprintf(format, args...))}
}

// exitCodeOf gives the exit code that err asks for, or def.
func exitCodeOf(err error, def int) int {
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return def
}
