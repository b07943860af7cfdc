package cluster

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"
)

const methodReadIndex = "cluster.read-index"

// readGroup coalesces linearizable reads: all that arrive while one barrier is under way share the next one.
type readGroup struct {
	mu   sync.Mutex
	next *readBatch
	wake chan struct{}
}

type readBatch struct {
	done  chan struct{}
	index uint64
	err   error
}

func (g *readGroup) join() *readBatch {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next == nil {
		g.next = &readBatch{done: make(chan struct{})}
	}
	select {
	case g.wake <- struct{}{}:
	default:
	}
	return g.next
}

func (g *readGroup) takeBatch() *readBatch {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.next
	g.next = nil
	return b
}

// serveReads passes barriers for the reads of one tenure. After its barrier a read may trust what this node has applied; VerifyLeader
// would not do, since it counts answers to requests that were sent before the read came.
func (c *Cluster) serveReads(t *tenure) {
	for {
		select {
		case <-t.reads.wake:
		case <-t.ctx.Done():
			if b := t.reads.takeBatch(); b != nil {
				b.err = ErrNoLeader
				close(b.done)
			}
			return
		}
		b := t.reads.takeBatch()
		if b == nil {
			continue
		}
		if b.err = await(t.ctx, t.raft.Barrier(applyEnqueue)); b.err == nil {
			b.index, _ = c.sm.Applied()
		}
		close(b.done)
	}
}

// leaderReadIndex is ReadIndex on the leader.
func (c *Cluster) leaderReadIndex(ctx context.Context) (uint64, error) {
	t := c.tenure()
	if t == nil || !t.isReady() {
		return 0, ErrNoLeader
	}
	b := t.reads.join()
	select {
	case <-b.done:
		return b.index, b.err
	case <-t.ctx.Done():
		return 0, ErrNoLeader
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (c *Cluster) serveReadIndex(ctx context.Context, _ string, _ []byte) ([]byte, error) {
	index, err := c.leaderReadIndex(ctx)
	if err != nil {
		return nil, err
	}
	return binary.LittleEndian.AppendUint64(nil, index), nil
}

// ReadIndex returns once this node has applied everything that was committed when it was called, and the index up to which that is. A
// read of the local state machine after it is linearizable. It retries over changes of leader until ctx ends, at most 10 s.
func (c *Cluster) ReadIndex(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, defaultCallTimeout(ctx))
	defer cancel()
	for {
		changed := c.changed.wait()
		index, err := c.tryReadIndex(ctx)
		if err == nil {
			return index, c.waitApplied(ctx, index)
		}
		select {
		case <-changed:
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return 0, fmt.Errorf("read index: %w: %w", err, ctx.Err())
		case <-c.ctx.Done():
			return 0, fmt.Errorf("read index: %w", ErrClosed)
		}
	}
}

func (c *Cluster) tryReadIndex(ctx context.Context) (uint64, error) {
	leader := c.Leader()
	switch leader {
	case "":
		return 0, ErrNoLeader
	case c.cfg.NodeID:
		return c.leaderReadIndex(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // a leader that hangs may have a successor by then
	defer cancel()
	b, err := c.client.call(WithGrant(ctx, nil), laneControl, leader, methodReadIndex, nil) // the read itself is carried out here
	if err != nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, fmt.Errorf("%w: read index of %d bytes", errFrame, len(b))
	}
	return binary.LittleEndian.Uint64(b), nil
}

// waitApplied waits until this node has applied index.
func (c *Cluster) waitApplied(ctx context.Context, index uint64) error {
	for {
		changed := c.applied.wait()
		if applied, _ := c.sm.Applied(); applied >= index {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for index %d to be applied: %w", index, ctx.Err())
		case <-c.ctx.Done():
			return ErrClosed
		}
	}
}
