package cluster

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whoever is refused where the request is carried out is refused wherever it came in, and nothing was done.
func TestGrantIsCheckedWhereTheRequestIsCarriedOut(t *testing.T) {
	t.Parallel()
	nodes := newTestNodes(t, 3)
	var removed atomic.Pointer[string] // the node that no longer knows the grant
	for _, n := range nodes {
		n.cfg.Admit = func(grant []byte) error {
			if at := removed.Load(); at != nil && *at == n.id && string(grant) == "shop" {
				return errors.New("no such token")
			}
			return nil
		}
	}
	startAll(nodes)
	leader := awaitLeader(t, nodes...)
	for _, n := range nodes {
		n.c.Handle("test", func(ctx context.Context, _ string, _ []byte) ([]byte, error) { return GrantOf(ctx), nil })
	}
	as := func(grant string) context.Context { return WithGrant(within(t, 8*time.Second), []byte(grant)) }
	for _, n := range nodes {
		_, err := n.c.Propose(as("shop"), []byte("before"))
		require.NoError(t, err)
		b, err := n.c.Call(as("shop"), leader.id, "test", nil)
		require.NoError(t, err)
		require.Equal(t, "shop", string(b), "the handler is told for whom")
	}
	removed.Store(&leader.id)
	for _, n := range nodes {
		_, err := n.c.Propose(as("shop"), []byte("after"))
		var pe *ProposeError
		require.ErrorAs(t, err, &pe, n.id)
		require.Equal(t, ReasonForbidden, pe.Reason, n.id)
		require.Equal(t, NotCommitted, pe.Outcome)
		require.ErrorContains(t, err, "no such token")
		require.ErrorIs(t, n.c.AddNonvoter(as("shop"), "n9"), ErrForbidden)
		_, err = n.c.Call(as("shop"), leader.id, "test", nil)
		var ce *CallError
		require.ErrorAs(t, err, &ce)
		require.ErrorIs(t, err, ErrForbidden)
		require.False(t, ce.Started)
		_, err = n.c.ReadIndex(as("shop"))
		require.NoError(t, err, "what is read is carried out where it was asked")
		n.propose(t, "the node's own")
		_, err = n.c.Propose(as("another"), []byte("of another"))
		require.NoError(t, err)
	}
	for _, cmd := range leader.sm.commands() {
		require.NotContains(t, cmd, "after")
	}
}
