package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// Outcome is what is known about a proposal that did not end well.
type Outcome uint8

const (
	// NotCommitted: it is in no log and never will be.
	NotCommitted Outcome = 1
	// Unknown: it may be in the log, now or later. A retry is safe only where the state machine recognises it.
	Unknown Outcome = 2
)

func (o Outcome) String() string {
	if o == NotCommitted {
		return "not committed"
	}
	return "unknown"
}

// Reason says why; the values are stable and go on the wire.
type Reason string

const (
	ReasonNoLeader       Reason = "no-leader"       // nobody leads, or not for long enough
	ReasonOverloaded     Reason = "overloaded"      // too much in flight here or at the leader
	ReasonDeadline       Reason = "deadline"        // the caller's time ran out
	ReasonShutdown       Reason = "shutdown"        // this node or the leader is stopping
	ReasonTooLarge       Reason = "too-large"       // the command can never be proposed
	ReasonLeadershipLost Reason = "leadership-lost" // appended, then the leader stepped down
	ReasonConnection     Reason = "connection-lost" // sent to the leader, no answer
	ReasonStorage        Reason = "storage"         // the leader's log failed under it
	ReasonForbidden      Reason = "forbidden"       // the node that was to carry it out refuses the grant
	ReasonInternal       Reason = "internal"
)

// ProposeError is every error of Propose.
type ProposeError struct {
	Outcome Outcome
	Reason  Reason
	Err     error
}

func (e *ProposeError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("propose: %s: %s", e.Outcome, e.Reason)
	}
	return fmt.Sprintf("propose: %s: %s: %v", e.Outcome, e.Reason, e.Err)
}

func (e *ProposeError) Unwrap() error { return e.Err }

// again tells whether another leader may do better: nothing was done, and the reason may pass within a moment.
func (e *ProposeError) again() bool { return e.Outcome == NotCommitted && e.Reason == ReasonNoLeader }

func notCommitted(r Reason, err error) *ProposeError {
	return &ProposeError{Outcome: NotCommitted, Reason: r, Err: err}
}

func unknown(r Reason, err error) *ProposeError {
	return &ProposeError{Outcome: Unknown, Reason: r, Err: err}
}

// classifyApply maps the result of raft.Apply. It is read off raft v1.7.3; the only errors that are certain are those given before
// dispatchLogs touches the log:
//
//	ErrEnqueueTimeout                never left our hands
//	ErrNotLeader                     refused by the main loop of a node that does not lead
//	ErrLeadershipTransferInProgress  refused by the leader's loop before dispatch
//
// ErrRaftShutdown is not among them: processLogs gives it for an entry that is committed and only not applied here. Nor is a raw store
// error: a write whose fsync failed may be on disk and commit later.
func classifyApply(err error) *ProposeError {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return notCommitted(ReasonOverloaded, err)
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return notCommitted(ReasonNoLeader, err)
	case errors.Is(err, raft.ErrLeadershipLost):
		return unknown(ReasonLeadershipLost, err)
	case errors.Is(err, raft.ErrRaftShutdown):
		return unknown(ReasonShutdown, err)
	case errors.Is(err, raft.ErrAbortedByRestore):
		return unknown(ReasonInternal, err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return unknown(ReasonDeadline, err)
	default:
		return unknown(ReasonStorage, err)
	}
}

// classifyCall maps the failure of a forwarded proposal: before the first byte is out it is certain, after it nothing is.
func classifyCall(err error) *ProposeError {
	var call *CallError
	if !errors.As(err, &call) {
		return unknown(ReasonInternal, err)
	}
	expired := errors.Is(call.Err, context.DeadlineExceeded) || errors.Is(call.Err, context.Canceled)
	switch {
	case !call.Started && errors.Is(call.Err, errBusy):
		return notCommitted(ReasonOverloaded, err)
	case errors.Is(call.Err, ErrForbidden):
		return notCommitted(ReasonForbidden, err)
	case !call.Started && errors.Is(call.Err, errFrame):
		return notCommitted(ReasonTooLarge, err)
	case !call.Started:
		return notCommitted(ReasonNoLeader, err)
	case call.Remote:
		return unknown(ReasonInternal, err)
	case expired:
		return unknown(ReasonDeadline, err)
	default:
		return unknown(ReasonConnection, err)
	}
}

// The answer to a forwarded proposal:
//
//	+---------+------------+--------+------------------------------+
//	| outcome | reason len | reason | result, or text of the error |
//	| u8      | u8         |        |                              |
//	+---------+------------+--------+------------------------------+
//
// outcome 0 is committed.
func encodeOutcome(result []byte, err *ProposeError) []byte {
	if err == nil {
		return append([]byte{0, 0}, result...)
	}
	text := ""
	if err.Err != nil {
		text = err.Err.Error()
	}
	b := append([]byte{byte(err.Outcome), byte(len(err.Reason))}, err.Reason...)
	return append(b, text...)
}

func decodeOutcome(b []byte) ([]byte, *ProposeError) {
	if len(b) < 2 || len(b) < 2+int(b[1]) || b[0] > byte(Unknown) {
		return nil, unknown(ReasonInternal, fmt.Errorf("%w: outcome of %d bytes", errFrame, len(b)))
	}
	reason, rest := Reason(b[2:2+int(b[1])]), b[2+int(b[1]):]
	if b[0] == 0 {
		return rest, nil
	}
	return nil, &ProposeError{Outcome: Outcome(b[0]), Reason: reason, Err: errors.New(string(rest))}
}
