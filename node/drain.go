package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

const (
	// uploadGrace is how long a drain lets uploads go on before it cuts them, if its time allows.
	uploadGrace = 2 * time.Second
	// hurryLimit is how long a drain may still take once it is to hurry.
	hurryLimit = 5 * time.Second
	// shutdownLimit bounds the wait for answers to be written, and for handlers whose connection was closed to notice.
	shutdownLimit = time.Second
)

// The phases of a drain share its time: uploads come first, then attempts in flight, then the outcomes that are known. What
// is cut off is no failed drain; what would not fit into a short drain must therefore be cut sooner.
func uploadsFor(drain time.Duration) time.Duration   { return min(uploadGrace, drain/4) }
func emitterGrace(drain time.Duration) time.Duration { return min(2*time.Second, drain/8) }
func emitterFlush(drain time.Duration) time.Duration { return min(5*time.Second, drain/4) }

// drain stops the node in the order that keeps the promise of DESIGN section 7: refuse new work, answer what was accepted,
// commit the outcomes that are known, hand over leadership, sync log and checkpoint, and only then leave the marker of a
// clean stop. Anything that cannot be done within the drain time makes it a failed drain: exit 14, no marker.
func (n *Node) drain(server *http.Server, stopLoops func(), loopsDone <-chan struct{}) error {
	limit := time.Duration(n.cfg.Drain)
	n.log.Info("draining", "limit", limit.String())
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	n.api.BeginDrain() // before anything cuts an upload: whoever is cut is told that the node shuts down
	defer n.hurryWith(ctx, cancel)()

	var failures []error
	failed := func(what string, err error) {
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", what, err))
		}
	}
	failed("answer accepted requests", n.finishRequests(ctx))
	// Emitters stop once no request waits on them: what they know of outcomes they commit now, while there is a leader.
	stopLoops()
	failed("commit known outcomes", n.waitOutcomes(ctx, loopsDone))
	if err := n.cluster.Drain(ctx); err != nil {
		n.log.Warn("leadership not handed over", "error", err)
	}
	n.stopServing(server)
	failed("close", n.closeParts())
	return n.leave(failures)
}

// leave marks the stop as clean, if it is, and gives the directory up: in this order, since whoever opens the directory next
// takes the marker away before its own stop can be unclean.
func (n *Node) leave(failures []error) error {
	if len(failures) == 0 {
		if err := leaveCleanStop(n.cfg.Node.DataDir); err != nil {
			failures = append(failures, err)
		}
	}
	if err := n.lock.Unlock(); err != nil {
		n.log.Warn("data directory not unlocked", "error", err)
	}
	if len(failures) > 0 {
		return exitWith(ExitDrainFailed, "drain failed", errors.Join(failures...))
	}
	n.log.Info("stopped clean")
	return nil
}

// hurryWith cuts the drain of ctx short once Options.Hurry is closed; the returned func ends that.
func (n *Node) hurryWith(ctx context.Context, cancel context.CancelFunc) (stop func()) {
	over := make(chan struct{})
	go func() {
		select {
		case <-n.opts.Hurry: // nil: never
		case <-over:
			return
		}
		n.log.Info("drain hurries", "limit", hurryLimit.String())
		n.api.CutBodies()
		select {
		case <-time.After(hurryLimit):
			cancel()
		case <-ctx.Done():
		case <-over:
		}
	}()
	return func() { close(over) }
}

// finishRequests waits until each accepted request has its answer. Uploads still under way after the grace are cut off and
// answered: certainly not committed.
func (n *Node) finishRequests(ctx context.Context) error {
	grace := time.AfterFunc(uploadsFor(time.Duration(n.cfg.Drain)), n.api.CutBodies)
	defer grace.Stop()
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

// stopServing lets the answers out, closes every connection, and waits for the handlers, which read the log and the state.
func (n *Node) stopServing(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownLimit)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		_ = server.Close()
	}
	quiet, cancelQuiet := context.WithTimeout(context.Background(), shutdownLimit)
	defer cancelQuiet()
	if err := n.api.WaitQuiet(quiet); err != nil {
		n.log.Warn("requests still run that nobody waits for", "error", err)
	}
}
