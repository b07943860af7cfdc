package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"penstock/jepsen/check"
	"penstock/jepsen/client"
	"penstock/jepsen/workload"
)

// liveness: with writers still on, everything must come back within its bound.
func (r *run) liveness(ctx context.Context) {
	r.within(ctx, "leader", boundLeader, func(ctx context.Context) error {
		return poll(ctx, func(context.Context) error {
			if r.allEnded() {
				return fmt.Errorf("no node runs: %w", errEnded)
			}
			if r.obs.leader() == "" {
				return errors.New("no node calls itself leader")
			}
			return nil
		})
	})
	if len(r.channels()) > 0 {
		before := r.clock.Now()
		r.within(ctx, "next ack", boundAck, func(ctx context.Context) error {
			return poll(ctx, func(context.Context) error {
				if r.env.LastAck.Load() < before {
					return errors.New("no write was acknowledged")
				}
				return nil
			})
		})
	}
	r.within(ctx, "all ready", r.patience(boundReady), func(ctx context.Context) error { return poll(ctx, r.allReady) })
	target := r.obs.highest()
	r.within(ctx, "all caught up", r.patience(boundEqual), func(ctx context.Context) error {
		return poll(ctx, func(ctx context.Context) error { return r.applied(ctx, target) })
	})
	r.within(ctx, "next ack after catching up", boundAck, func(ctx context.Context) error {
		before := r.clock.Now()
		return poll(ctx, func(context.Context) error {
			if len(r.channels()) > 0 && r.env.LastAck.Load() < before {
				return errors.New("no write was acknowledged")
			}
			return nil
		})
	})
}

// patience is the bound, or a fraction of it once the cluster has failed to come back: nothing more is to be learned from
// waiting, and the verdict is FAIL already.
func (r *run) patience(bound time.Duration) time.Duration {
	for _, l := range r.final.Liveness {
		if !l.OK {
			return bound / 10
		}
	}
	return bound
}

// resolved: without new events, no delivery stays pending.
func (r *run) resolved(ctx context.Context) {
	r.within(ctx, "deliveries resolved", r.patience(cmp.Or(r.o.Resolve, boundResolved)), func(ctx context.Context) error {
		return poll(ctx, func(ctx context.Context) error {
			for _, channel := range r.channels() {
				l, err := r.anyLedger(ctx, channel)
				if err != nil {
					return err
				}
				for _, row := range l.Emitters {
					if row.Pending > 0 {
						return fmt.Errorf("%d of %d deliveries of %s/%s are pending, owner %q epoch %d", row.Pending, row.Accepted, channel, row.Emitter, row.Owner, row.Epoch)
					}
				}
			}
			return nil
		})
	})
}

func (r *run) anyLedger(ctx context.Context, channel string) (client.Ledger, error) {
	var errs []error
	for _, c := range r.clients {
		l, err := c.Ledger(ctx, channel)
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
	}
	if r.allEnded() {
		return client.Ledger{}, fmt.Errorf("no node runs: %w", errEnded)
	}
	return client.Ledger{}, errors.Join(errs...)
}

// finalReads reads every channel whole on every node, the ledgers and the dead letters.
func (r *run) finalReads(ctx context.Context) error {
	target := r.obs.highest()
	var wg sync.WaitGroup
	errs := make(chan error, 1000)
	for _, c := range r.clients {
		if err := r.ended(c.Node); err != nil {
			r.final.Liveness = append(r.final.Liveness, check.Liveness{Name: "final read", Bound: int64(boundRead), Note: c.Node + ": " + err.Error()})
			continue
		}
		for _, channel := range r.channels() {
			rd, err := workload.NewReader(r.env, "final-"+channel+"-"+c.Node, c, channel)
			if err != nil {
				return err
			}
			wg.Go(func() {
				bounded, cancel := context.WithTimeout(ctx, r.scaled(r.patience(boundRead)))
				defer cancel()
				if err := rd.Whole(bounded, target); err != nil {
					errs <- err
				}
			})
		}
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		r.final.Liveness = append(r.final.Liveness, check.Liveness{Name: "final read", Bound: int64(boundRead), Note: err.Error()})
	}
	r.final.Ledgers = map[string]map[string]client.Ledger{}
	r.final.DeadLetters, r.final.Truncated = map[string][]client.DeadLetter{}, map[string]bool{}
	for i, c := range r.clients {
		_ = r.applied(ctx, target)
		for _, channel := range r.channels() {
			l, err := c.Ledger(ctx, channel)
			if err != nil {
				continue // a node that does not answer is named by the liveness checks
			}
			if r.final.Ledgers[c.Node] == nil {
				r.final.Ledgers[c.Node] = map[string]client.Ledger{}
			}
			r.final.Ledgers[c.Node][channel] = l
			if _, have := r.final.DeadLetters[channel]; !have {
				if letters, truncated, err := r.admin[i].DeadLetters(ctx, channel); err == nil {
					r.final.DeadLetters[channel], r.final.Truncated[channel] = letters, truncated
				} else {
					r.say("dead letters: %v", err)
				}
			}
		}
	}
	return nil
}
