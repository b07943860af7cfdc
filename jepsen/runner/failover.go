package runner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"penstock/jepsen/client"
	"penstock/jepsen/workload"
)

// Targets of failover (issue: settled by measurement).
const (
	targetMedian   = time.Second
	targetP99      = 3 * time.Second
	targetHandover = 300 * time.Millisecond
)

// Measured is the outcome of Failover.
type Measured struct {
	Kills, Handovers []time.Duration
	Steady           time.Duration
	Elections        uint64 // during Steady
	Acks             int64  // events acknowledged during Steady
}

// Good tells whether the targets were met.
func (m Measured) Good() bool {
	ok := m.Elections == 0
	if len(m.Kills) > 0 {
		ok = ok && quantile(m.Kills, .5) <= targetMedian && quantile(m.Kills, .99) <= targetP99
	}
	if len(m.Handovers) > 0 {
		ok = ok && quantile(m.Handovers, .5) <= targetHandover
	}
	return ok
}

// String is the table that is printed.
func (m Measured) String() string {
	var b strings.Builder
	row := func(name string, d []time.Duration, target string) {
		if len(d) > 0 {
			fmt.Fprintf(&b, "%-28s n=%d  median %v  p99 %v  worst %v  (target: %s)\n", name, len(d), quantile(d, .5), quantile(d, .99), quantile(d, 1), target)
		}
	}
	row("SIGKILL of the leader", m.Kills, "median 1s, p99 3s")
	row("SIGTERM of the leader", m.Handovers, "median 300ms")
	if m.Steady > 0 {
		fmt.Fprintf(&b, "%-28s %v  %.0f events/s  %d elections  (target: 0)\n", "full load without faults", m.Steady, float64(m.Acks)/m.Steady.Seconds(), m.Elections)
	}
	return b.String()
}

func quantile(d []time.Duration, p float64) time.Duration {
	s := slices.Clone(d)
	slices.Sort(s)
	return s[min(len(s)-1, int(p*float64(len(s))))].Round(time.Millisecond)
}

// Failover measures on one cluster: kills of the leader, clean stops of the leader, and elections under full load.
func Failover(ctx context.Context, o Options, kills, handovers int, steady time.Duration) (m Measured, err error) {
	err = onCluster(ctx, o, "failover", func(r *run) error {
		if steady > 0 {
			r.steady(ctx, &m, steady)
		}
		for i := range kills + handovers {
			took, err := r.lose(ctx, i >= kills)
			if err != nil {
				return fmt.Errorf("round %d: %w", i+1, err)
			}
			if i < kills {
				m.Kills = append(m.Kills, took)
			} else {
				m.Handovers = append(m.Handovers, took)
			}
			r.say("round %d: %v", i+1, took.Round(time.Millisecond))
		}
		return nil
	})
	return m, err
}

// lose ends the leader and returns how long it took until a write that was sent afterwards was acknowledged.
func (r *run) lose(ctx context.Context, gently bool) (time.Duration, error) {
	bounded, cancel := context.WithTimeout(ctx, 2*boundReady)
	defer cancel()
	if err := r.healthy(bounded); err != nil {
		return 0, err
	}
	pause(ctx, 500*time.Millisecond+rand.N(time.Second))
	leader := r.obs.leader()
	for _, n := range r.cluster.Nodes() {
		if n.Host != leader {
			continue
		}
		sig := syscall.SIGKILL
		if gently {
			sig = syscall.SIGTERM
		}
		start := time.Now()
		if err := n.Process.Signal(sig); err != nil {
			return 0, err
		}
		took := r.probe(ctx, start, leader)
		if _, err := n.Process.Wait(bounded); err != nil {
			return 0, err
		}
		if took < 0 {
			return 0, fmt.Errorf("no write was acknowledged within %v", boundLeader)
		}
		return took, n.Process.Start()
	}
	return 0, fmt.Errorf("no leader is known")
}

// probe sends a new write every 10 ms to each node that is left, each with a deadline of its own, and takes the first
// acknowledgement. (A client that waits on one request would measure its own patience.)
func (r *run) probe(ctx context.Context, start time.Time, dead string) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, boundLeader)
	defer cancel()
	var first atomic.Int64
	var wg sync.WaitGroup
	n := 0
	for ctx.Err() == nil {
		for _, c := range r.clients {
			if c.Node == dead {
				continue
			}
			n++
			id := fmt.Sprintf("probe-%d-%d", start.UnixNano(), n)
			wg.Go(func() {
				one, done := context.WithTimeout(ctx, 2*time.Second)
				defer done()
				body := fmt.Appendf(nil, `[{"specversion":"1.0","id":%q,"source":"/jepsen/probe","type":"jepsen.event"}]`, id)
				if c.Do(one, "POST", "/v1/channels/"+workload.Offsets+"/events", nil, "application/cloudevents-batch+json", body).Outcome == client.Done {
					if first.CompareAndSwap(0, int64(time.Since(start))) {
						cancel()
					}
				}
			})
		}
		pause(ctx, 10*time.Millisecond)
	}
	wg.Wait()
	if first.Load() == 0 {
		return -1
	}
	return time.Duration(first.Load())
}

// steady writes as fast as the cluster takes it and counts changes of term.
func (r *run) steady(ctx context.Context, m *Measured, d time.Duration) {
	for r.obs.leader() == "" && ctx.Err() == nil { // the first election is none of the false ones
		pause(ctx, observeEvery)
	}
	before := r.term()
	bounded, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var wg sync.WaitGroup
	var acks atomic.Int64
	for i := range 16 {
		c := r.clients[i%len(r.clients)]
		wg.Go(func() {
			for n := 0; bounded.Err() == nil; n++ {
				var b strings.Builder
				for k := range 100 {
					fmt.Fprintf(&b, `%c{"specversion":"1.0","id":"steady-%d-%d-%d","source":"/jepsen/steady","type":"jepsen.event","data":{"n":%d}}`, "[,"[min(k, 1)], i, n, k, n)
				}
				if c.Do(bounded, "POST", "/v1/channels/"+workload.Offsets+"/events", nil, "application/cloudevents-batch+json", []byte(b.String()+"]")).Outcome == client.Done {
					acks.Add(100)
				} else {
					pause(bounded, 50*time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
	m.Steady, m.Acks, m.Elections = d, acks.Load(), r.term()-before
}

func (r *run) term() uint64 {
	r.obs.mu.Lock()
	defer r.obs.mu.Unlock()
	var top uint64
	for _, o := range r.obs.newest {
		top = max(top, o.Term)
	}
	return top
}
