package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

const (
	closeGrace    = time.Second // for entries at work when Close was not preceded by Drain
	transferAfter = 5 * time.Second
)

// Drain stops taking proposals, waits until each one taken has its result, and hands leadership over if somebody can take it: that
// spares the others an election and is no part of being drained. The error says what is still in flight; Close is still to be called.
func (c *Cluster) Drain(ctx context.Context) error {
	c.draining.Store(true)
	t := c.tenure()
	if t == nil {
		return c.settle(ctx, nil)
	}
	if err := c.settle(ctx, t); err != nil {
		return err
	}
	if t.ctx.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, transferAfter)
	defer cancel()
	to := c.successor(t)
	if to == "" {
		return nil
	}
	if err := await(ctx, t.raft.LeadershipTransferToServer(raft.ServerID(to), raft.ServerAddress(to))); err != nil && t.ctx.Err() == nil {
		c.logger.Info("leadership was not handed over", "error", err)
	}
	return nil
}

// settle waits until no proposal of this node is in flight.
func (c *Cluster) settle(ctx context.Context, t *tenure) error {
	for {
		if c.inFlight.used.Load() == 0 && (t == nil || t.gather.idle()) {
			return nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("wait for proposals in flight: %w", ctx.Err())
		}
	}
}

// Close stops the node. The order matters: no new proposals, Raft told to stop, its connections closed before it is waited for, then
// the peers' ports, then the stores. The log and the state machine are the caller's to close after it. It may be called twice.
func (c *Cluster) Close() error {
	c.draining.Store(true)
	if t := c.tenure(); t != nil { // a future that Raft never answers is left behind; give the answered ones the time to be
		ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
		c.settle(ctx, t)
		cancel()
	}
	c.cancel()
	var errs []error
	if in := c.current.Swap(nil); in != nil {
		errs = append(errs, c.stopInstance(in))
	}
	if c.client != nil {
		c.client.Close()
	}
	c.stopGossip()
	for _, l := range []*listener{c.raftPort, c.gossipPort} {
		if l != nil {
			l.Close()
		}
	}
	if c.server != nil {
		c.server.wg.Wait()
	}
	c.fetches.closeAll()
	c.wg.Wait()
	c.lease.drop()
	if in := c.current.Swap(nil); in != nil { // started while we stopped
		errs = append(errs, c.stopInstance(in))
	}
	if c.book != nil && c.failure() == nil {
		errs = append(errs, c.book.save())
	}
	if c.stable != nil && !c.unstopped.Load() { // Raft panics over a store that is closed under it
		errs = append(errs, c.stable.Close())
		c.stable = nil
	}
	if c.metrics != nil {
		c.metrics.close()
	}
	if c.lock != nil {
		errs = append(errs, c.lock.Unlock())
	}
	return errors.Join(errs...)
}

// stopInstance stops an instance, and notes when it still runs.
func (c *Cluster) stopInstance(in *raftInstance) error {
	err := in.stop()
	if err != nil {
		c.unstopped.Store(true)
	}
	return err
}
