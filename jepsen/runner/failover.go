package runner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"penstock/jepsen/client"
	"penstock/jepsen/control"
	"penstock/jepsen/workload"
)

// extraRounds is how many more leaders may be ended than asked for, in place of those that turned out not to lead.
const extraRounds = 5

// Failover measures on one cluster: kills of the leader, clean stops of the leader, and elections under full load. What was
// measured is stored in dir also when it ended early.
func Failover(ctx context.Context, o Options, kills, handovers int, steady time.Duration) (m Measured, dir string, err error) {
	m = Measured{Seed: o.Seed, AskedKills: kills, AskedHandovers: handovers, AskedSteady: steady}
	err = onCluster(ctx, o, "failover", func(r *run) error {
		dir = r.dir
		defer func() { err = errors.Join(err, writeJSON(r.path(measuredFile), m)) }()
		if steady > 0 {
			r.steady(ctx, &m, steady)
		}
		for extra := extraRounds; len(m.Kills) < kills || len(m.Handovers) < handovers; {
			gently := len(m.Kills) >= kills
			s, err := r.lose(ctx, gently)
			if err != nil {
				return fmt.Errorf("round %d: %w", len(m.Kills)+len(m.Handovers)+1, err)
			}
			if s.Rise == 0 && extra > 0 {
				extra--
				r.say("%s did not lead any more: once more", s.Node)
				continue
			}
			if gently {
				m.Handovers = append(m.Handovers, s)
			} else {
				m.Kills = append(m.Kills, s)
			}
			r.say("round %d: %s, %v, write after %v, all equal after %v", len(m.Kills)+len(m.Handovers), s.Node, s.Exit, s.Took.Round(time.Millisecond), s.Back.Round(time.Millisecond))
		}
		return nil
	})
	return m, dir, err
}

// lose ends the leader and returns how long it took until a write that was sent afterwards was acknowledged; then it starts
// it again and waits until all nodes are equal.
func (r *run) lose(ctx context.Context, gently bool) (Sample, error) {
	bounded, cancel := context.WithTimeout(ctx, 4*boundReady)
	defer cancel()
	if err := r.healthy(bounded); err != nil {
		return Sample{}, err
	}
	pause(ctx, 500*time.Millisecond+rand.N(time.Second))
	before, err := r.lookAll(bounded)
	if err != nil {
		return Sample{}, err
	}
	leader := r.obs.leader()
	nodes := r.cluster.Nodes()
	i := slices.IndexFunc(nodes, func(n *control.Node) bool { return n.Host == leader })
	if i < 0 {
		return Sample{}, errors.New("no leader is known")
	}
	sig := syscall.SIGKILL
	if gently {
		sig = syscall.SIGTERM
	}
	start := time.Now()
	if err := nodes[i].Process.Signal(sig); err != nil {
		return Sample{}, err
	}
	s := Sample{Node: leader, Took: r.probe(ctx, start, leader)}
	exit, err := nodes[i].Process.Wait(bounded)
	if err != nil {
		return Sample{}, err
	}
	s.Exit = exit.String()
	if s.Took < 0 {
		return Sample{}, fmt.Errorf("no write was acknowledged within %v", boundLeader)
	}
	start = time.Now()
	if err := nodes[i].Process.Start(); err != nil {
		return Sample{}, err
	}
	if err := r.healthy(bounded); err != nil {
		return Sample{}, err
	}
	s.Back = time.Since(start)
	after, err := r.lookAll(bounded)
	s.Rise = after - before
	return s, err
}

// lookAll asks every node anew and returns the highest term.
func (r *run) lookAll(ctx context.Context) (term uint64, err error) {
	err = poll(ctx, func(ctx context.Context) error {
		for _, c := range r.clients {
			obs := r.obs.look(ctx, c)
			if !obs.Up {
				return fmt.Errorf("%s does not answer", c.Node)
			}
			r.obs.note(obs)
			term = max(term, obs.Term)
		}
		return nil
	})
	return term, err
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
	var s Steady
	s.TermFrom, _ = r.lookAll(ctx)
	s.From = r.clock.Now()
	bounded, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var wg sync.WaitGroup
	var load gauge
	load.last = s.From
	for i := range 16 {
		c := r.clients[i%len(r.clients)]
		wg.Go(func() {
			for n := 0; bounded.Err() == nil; n++ {
				var b strings.Builder
				for k := range 100 {
					fmt.Fprintf(&b, `%c{"specversion":"1.0","id":"steady-%d-%d-%d","source":"/jepsen/steady","type":"jepsen.event","data":{"n":%d}}`, "[,"[min(k, 1)], i, n, k, n)
				}
				if c.Do(bounded, "POST", "/v1/channels/"+workload.Offsets+"/events", nil, "application/cloudevents-batch+json", []byte(b.String()+"]")).Outcome == client.Done {
					load.acked(r.clock.Now(), 100)
				} else {
					pause(bounded, 50*time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
	s.To = r.clock.Now()
	asking, done := context.WithTimeout(ctx, boundReady)
	defer done()
	s.TermTo, _ = r.lookAll(asking) // terms only rise: whatever was elected meanwhile shows here
	s.Acks, s.LongestGapWithoutOK = load.sum, time.Duration(max(load.longest, s.To-load.last))
	m.Steady = &s
}

// gauge counts acknowledgements and keeps the longest time between two.
type gauge struct {
	mu            sync.Mutex
	sum           int64
	last, longest int64
}

func (g *gauge) acked(at int64, n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sum += n
	g.longest = max(g.longest, at-g.last)
	g.last = max(g.last, at)
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
