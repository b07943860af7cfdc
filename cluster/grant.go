package cluster

import (
	"context"
	"errors"
	"fmt"
)

// A grant says for whom something is done: opaque bytes that the caller puts into the context of Propose, Call or a membership change.
// It travels with the request to the node that carries it out, and Config.Admit looks at it there once more, so that who was removed is
// refused wherever the request came in. What a node does by itself carries none.

// maxGrant bounds the bytes of a grant.
const maxGrant = 4 << 10

// ErrForbidden: the node that was to carry the request out refuses its grant. Nothing was done.
var ErrForbidden = errors.New("forbidden")

type grantKey struct{}

// WithGrant gives what is done under the context to the holder of the grant; nil makes it the node's own.
func WithGrant(ctx context.Context, grant []byte) context.Context {
	if len(grant) == 0 && GrantOf(ctx) == nil {
		return ctx
	}
	return context.WithValue(ctx, grantKey{}, grant)
}

// GrantOf is the grant of the context, nil when there is none.
func GrantOf(ctx context.Context) []byte {
	grant, _ := ctx.Value(grantKey{}).([]byte)
	return grant
}

// admit asks Config.Admit about the grant of the context.
func (c *Cluster) admit(ctx context.Context) error {
	return checkGrant(c.cfg.Admit, GrantOf(ctx), c.cfg.NodeID)
}

func checkGrant(admit func([]byte) error, grant []byte, node string) error {
	if len(grant) == 0 || admit == nil {
		return nil
	}
	if err := admit(grant); err != nil {
		return fmt.Errorf("%w on node %s: %w", ErrForbidden, node, err)
	}
	return nil
}
