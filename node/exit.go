package node

import (
	"errors"
	"fmt"
)

// The exit codes of a server (beside 0 and 1). They are part of the public surface.
const (
	ExitDiskFault   = 10
	ExitForeign     = 11 // a foreign, wiped or restored data directory
	ExitInUse       = 12
	ExitTooNew      = 13
	ExitDrainFailed = 14
	ExitRemoved     = 15 // the node is no member of the cluster any more; it was drained before
)

// ExitError is an error that ends the process with a code of its own.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string { return e.Err.Error() }
func (e *ExitError) Unwrap() error { return e.Err }

func exitWith(code int, operation string, err error) error {
	return &ExitError{Code: code, Err: fmt.Errorf("%s: %w", operation, err)}
}

// ExitCode is the code a process that ends with err exits with.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	var e *ExitError
	if errors.As(err, &e) {
		return e.Code
	}
	return 1
}
