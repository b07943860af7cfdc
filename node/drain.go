package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// uploadGrace is how long a drain lets uploads go on before it cuts them.
const uploadGrace = 2 * time.Second

// drain stops the node in the order that keeps the promise of DESIGN section 7: refuse new work, answer what was accepted,
// commit the outcomes that are known, hand over leadership, sync log and checkpoint, and only then leave the marker of a
// clean stop. Anything that cannot be done within the drain time makes it a failed drain: exit 14, no marker.
func (n *Node) drain(server *http.Server, stopLoops func(), loopsDone <-chan struct{}) error {
	limit := time.Duration(n.cfg.Drain)
	n.log.Info("draining", "limit", limit)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()

	var failures []error
	failed := func(what string, err error) {
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", what, err))
		}
	}
	n.api.BeginDrain()
	failed("answer accepted requests", n.finishRequests(ctx))
	// Emitters stop once no request waits on them: what they know of outcomes they commit now, while there is a leader.
	stopLoops()
	failed("commit known outcomes", n.waitOutcomes(ctx, loopsDone))
	if err := n.cluster.Drain(ctx); err != nil {
		n.log.Warn("leadership not handed over", "error", err)
	}
	shutdown, cancelShutdown := context.WithTimeout(context.Background(), time.Second)
	defer cancelShutdown()
	if err := server.Shutdown(shutdown); err != nil {
		_ = server.Close()
	}
	failed("close", n.close())
	if len(failures) > 0 {
		return exitWith(ExitDrainFailed, "drain failed", errors.Join(failures...))
	}
	if err := leaveCleanStop(n.cfg.Node.DataDir); err != nil {
		return exitWith(ExitDrainFailed, "drain failed", err)
	}
	n.log.Info("stopped clean")
	return nil
}

// finishRequests waits until each accepted request has its answer. Uploads still under way after the grace, or at a second
// signal, are cut off and answered: certainly not committed.
func (n *Node) finishRequests(ctx context.Context) error {
	grace := time.AfterFunc(uploadGrace, n.api.CutBodies)
	defer grace.Stop()
	hurried, stop := context.WithCancel(ctx)
	defer stop()
	if n.opts.Hurry != nil {
		go func() {
			select {
			case <-n.opts.Hurry:
				n.api.CutBodies()
			case <-hurried.Done():
			}
		}()
	}
	return n.api.WaitDrained(ctx)
}

func (n *Node) waitOutcomes(ctx context.Context, loopsDone <-chan struct{}) error {
	select {
	case <-loopsDone:
		return n.runners.Flushed()
	case <-ctx.Done():
		return errors.New("the drain time is over")
	}
}
