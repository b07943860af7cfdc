package runner

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"penstock/jepsen/control"
)

const (
	b45Leader = 15 * time.Second
	b45Terms  = 5
)

func caseB45(ctx context.Context, o Options, rounds int, _ time.Duration) error {
	return onCluster(ctx, o, "B45", func(r *run) error {
		acked := map[string]string{}
		orders := [][]int{{0, 1, 2}, {1, 2, 0}, {0, 2, 1}, {2, 1, 0}, {1, 0, 2}, {2, 0, 1}}
		for round := range rounds {
			order := orders[round%len(orders)]
			bounded, cancel := context.WithTimeout(ctx, 90*time.Second)
			err := r.roundB45(bounded, order, round, round/len(orders)%2 == 1, acked)
			cancel()
			if err != nil {
				return fmt.Errorf("round %d, order %v: %w", round+1, order, err)
			}
		}
		return nil
	})
}

// roundB45 cuts the power of one node after the other while writes go on, starts the first two to go (or all, at once), and
// wants everything that was acknowledged from those that are up.
func (r *run) roundB45(ctx context.Context, order []int, round int, atOnce bool, acked map[string]string) error {
	nodes := r.cluster.Nodes()
	if err := r.healthy(ctx); err != nil {
		return err
	}
	before, err := r.lookAll(ctx)
	if err != nil {
		return err
	}
	stopLoad := r.load(ctx, fmt.Sprintf("b45-%d", round), acked)
	pause(ctx, 300*time.Millisecond)
	flag := []uint32{control.ShutdownDrop, control.ShutdownFlush}[round%2]
	for _, i := range order {
		if _, err := r.cluster.PowerCut(ctx, nodes[i], flag); err != nil {
			stopLoad()
			return err
		}
		pause(ctx, 200*time.Millisecond) // what commits without the first is what a pair must not lose
	}
	if n := stopLoad(); n == 0 {
		return fmt.Errorf("%w: nothing was acknowledged while the power went", errVacuous)
	}
	up := order[:2] // the first two to go hold the oldest logs; other orders bring the newest
	if atOnce {
		up = order
	}
	for _, i := range up {
		if err := r.cluster.PowerOn(ctx, nodes[i]); err != nil {
			return err
		}
	}
	start := time.Now()
	electing, cancel := context.WithTimeout(ctx, b45Leader)
	defer cancel()
	more, err := r.write(electing, fmt.Sprintf("b45-up-%d", round), 0, 1)
	if err != nil {
		return fmt.Errorf("no leader among %d of three within %v: %w", len(up), b45Leader, err)
	}
	took := time.Since(start).Round(time.Millisecond)
	maps.Copy(acked, more)
	if !atOnce {
		if err := r.allHold(ctx, up, acked); err != nil {
			return err
		}
		if err := r.cluster.PowerOn(ctx, nodes[order[2]]); err != nil {
			return err
		}
	}
	if err := r.healthy(ctx); err != nil {
		return fmt.Errorf("not all come back: %w", err)
	}
	if err := r.allHold(ctx, order, acked); err != nil {
		return err
	}
	after, err := r.lookAll(ctx)
	if err != nil {
		return err
	}
	if after-before > b45Terms {
		return fmt.Errorf("the term rose by %d, want at most %d", after-before, b45Terms)
	}
	r.say("B45 round %d order %v up %d: write after %v, term +%d, %d acked in all", round+1, order, len(up), took, after-before, len(acked))
	return nil
}

// allHold waits until each of the nodes shows every acknowledged event at its position.
func (r *run) allHold(ctx context.Context, nodes []int, acked map[string]string) error {
	bounded, cancel := context.WithTimeout(ctx, boundEqual)
	defer cancel()
	for _, i := range nodes {
		if err := poll(bounded, func(ctx context.Context) error { return r.holds(ctx, r.clients[i], acked) }); err != nil {
			return err
		}
	}
	return nil
}

// load writes until it is stopped, puts what was acknowledged into acked, and tells how much that was. A write whose outcome
// is not known counts as nothing.
func (r *run) load(ctx context.Context, prefix string, acked map[string]string) (stop func() int) {
	writing, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var mu sync.Mutex
	n := 0
	for w := range 4 {
		wg.Go(func() {
			for k := 0; writing.Err() == nil; k++ {
				more, err := r.write(writing, fmt.Sprintf("%s-%d-%d", prefix, w, k), 0, 5)
				if err == nil {
					mu.Lock()
					maps.Copy(acked, more)
					n += len(more)
					mu.Unlock()
				}
			}
		})
	}
	return func() int { cancel(); wg.Wait(); return n }
}
