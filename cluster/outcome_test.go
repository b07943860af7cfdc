package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The table of notes on Raft as a log, section 4: what may be told to a client after each result of Apply.
func TestEachResultOfApplyHasItsOutcome(t *testing.T) {
	for _, c := range []struct {
		err     error
		outcome Outcome
		reason  Reason
	}{
		{raft.ErrEnqueueTimeout, NotCommitted, ReasonOverloaded},
		{raft.ErrNotLeader, NotCommitted, ReasonNoLeader},
		{raft.ErrLeadershipTransferInProgress, NotCommitted, ReasonNoLeader},
		{raft.ErrRaftShutdown, Unknown, ReasonShutdown},
		{raft.ErrLeadershipLost, Unknown, ReasonLeadershipLost},
		{raft.ErrAbortedByRestore, Unknown, ReasonInternal},
		{errors.New("write segment 3: input/output error"), Unknown, ReasonStorage},
		{context.DeadlineExceeded, Unknown, ReasonDeadline},
		{context.Canceled, Unknown, ReasonDeadline},
	} {
		got := classifyApply(c.err)
		require.Equal(t, c.outcome, got.Outcome, "%v", c.err)
		require.Equal(t, c.reason, got.Reason, "%v", c.err)
		require.ErrorIs(t, got, c.err)
		require.Equal(t, c.outcome, classifyApply(fmt.Errorf("wrapped: %w", c.err)).Outcome)
	}
	require.Nil(t, classifyApply(nil))
}

func TestEachFailureOfForwardingHasItsOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		err     CallError
		outcome Outcome
		reason  Reason
	}{
		"not dialled":             {CallError{Err: errors.New("connection refused")}, NotCommitted, ReasonNoLeader},
		"deadline before sending": {CallError{Err: context.DeadlineExceeded}, NotCommitted, ReasonNoLeader},
		"refused as busy":         {CallError{Err: errBusy}, NotCommitted, ReasonOverloaded},
		"too large for a frame":   {CallError{Err: fmt.Errorf("%w: body", errFrame)}, NotCommitted, ReasonTooLarge},
		"lost after the send":     {CallError{Started: true, Err: errConnClosed}, Unknown, ReasonConnection},
		"deadline after the send": {CallError{Started: true, Err: context.DeadlineExceeded}, Unknown, ReasonDeadline},
		"cancelled after":         {CallError{Started: true, Err: context.Canceled}, Unknown, ReasonDeadline},
		"failed over there":       {CallError{Started: true, Remote: true, Err: errors.New("x")}, Unknown, ReasonInternal},
	} {
		got := classifyCall(&c.err)
		require.Equal(t, c.outcome, got.Outcome, name)
		require.Equal(t, c.reason, got.Reason, name)
	}
	require.Equal(t, Unknown, classifyCall(errors.New("anything else")).Outcome)
}

func TestOutcomeSurvivesTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		result := rapid.SliceOf(rapid.Byte()).Draw(t, "result")
		got, err := decodeOutcome(encodeOutcome(result, nil))
		if err != nil || string(got) != string(result) {
			t.Fatalf("%q, %v", got, err)
		}
		in := &ProposeError{
			Outcome: rapid.SampledFrom([]Outcome{NotCommitted, Unknown}).Draw(t, "outcome"),
			Reason:  rapid.SampledFrom([]Reason{ReasonNoLeader, ReasonOverloaded, ReasonDeadline, ReasonStorage}).Draw(t, "reason"),
			Err:     errors.New(rapid.String().Draw(t, "text")),
		}
		_, out := decodeOutcome(encodeOutcome(nil, in))
		if out == nil || out.Outcome != in.Outcome || out.Reason != in.Reason || out.Err.Error() != in.Err.Error() {
			t.Fatalf("%v became %v", in, out)
		}
	})
	for _, bad := range [][]byte{nil, {0}, {9, 0}, {1, 9, 'x'}} {
		_, err := decodeOutcome(bad)
		require.Equal(t, Unknown, err.Outcome, "an answer that is not understood is never taken for a certain one")
	}
}
