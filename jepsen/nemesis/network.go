package nemesis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock/jepsen/control"
)

func networkFaults() []Fault {
	const counted = "packets were counted by the rules"
	return []Fault{
		{Name: "partition", Long: true, What: "two halves that do not reach each other; in half of the cases the leader alone", Confirmed: counted, begin: partition, end: countHits},
		{Name: "partition-oneway", Long: true, What: "one node (mostly the leader) sends but does not receive, or the other way round", Confirmed: counted, begin: oneWay, end: countHits},
		{Name: "partition-bridge", Long: true, What: "two halves that reach each other only through one node", Confirmed: counted, begin: bridge, end: countHits},
		{Name: "loss", Long: true, What: "a fifth of all packets between nodes is lost at a minority", Confirmed: counted, begin: loss, end: countHits},
		{Name: "reset", Long: true, What: "TCP connections between nodes are reset at random", Confirmed: counted, begin: reset, end: countHits},
		{Name: "delay", Long: true, What: "packets between nodes are held for 20 to 200 ms with jitter, so that some overtake others", Confirmed: "packets were held", begin: delay},
	}
}

func (a *Act) mark() string { return fmt.Sprintf("pj%d", a.ID) }

// hosts gives all nodes in random order, the leader first when asked for.
func (a *Act) hosts(leaderFirst bool) []*control.Node {
	nodes := a.Cluster.Nodes()
	a.Rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	if leader := a.Leader(); leaderFirst && leader != "" {
		for i, n := range nodes {
			if n.Host == leader {
				nodes[0], nodes[i] = nodes[i], nodes[0]
			}
		}
	}
	return nodes
}

// block drops at `at` what comes from `from`.
func (a *Act) block(ctx context.Context, at, from *control.Node) error {
	return a.rule(ctx, control.Rule{Host: at.Host, Chain: "INPUT", Match: []string{"-s", from.Addr}, Jump: []string{"DROP"}, Mark: a.mark()})
}

func (a *Act) rule(ctx context.Context, r control.Rule) error {
	if err := r.Add(ctx, a.Cluster.Net); err != nil {
		return err
	}
	a.later(func(ctx context.Context) error { return r.Remove(ctx, a.Cluster.Net) })
	return nil
}

func (a *Act) split(ctx context.Context, left, right []*control.Node) error {
	var errs []error
	for _, l := range left {
		for _, r := range right {
			errs = append(errs, a.block(ctx, l, r), a.block(ctx, r, l))
		}
	}
	return errors.Join(errs...)
}

func partition(ctx context.Context, a *Act) error {
	nodes := a.hosts(a.Rand.IntN(2) == 0)
	cut := 1 + a.Rand.IntN(len(nodes)/2)
	a.Nodes = nodes[:cut]
	return a.split(ctx, nodes[:cut], nodes[cut:])
}

func oneWay(ctx context.Context, a *Act) error {
	nodes := a.hosts(a.Rand.IntN(4) != 0)
	a.Nodes = nodes[:1]
	deaf := a.Rand.IntN(2) == 0
	var errs []error
	for _, other := range nodes[1:] {
		if deaf {
			errs = append(errs, a.block(ctx, nodes[0], other))
		} else {
			errs = append(errs, a.block(ctx, other, nodes[0]))
		}
	}
	return errors.Join(errs...)
}

func bridge(ctx context.Context, a *Act) error {
	nodes := a.hosts(false)
	a.Nodes = nodes[:1]
	half := 1 + (len(nodes)-1)/2
	return a.split(ctx, nodes[1:half], nodes[half:])
}

// between adds one rule per peer at a minority of the nodes.
func (a *Act) between(ctx context.Context, match, jump []string) error {
	nodes := a.hosts(a.Rand.IntN(2) == 0)
	a.Nodes = nodes[:1+a.Rand.IntN(max(1, len(nodes)/2))]
	var errs []error
	for _, at := range a.Nodes {
		for _, from := range nodes {
			if at != from {
				r := control.Rule{Host: at.Host, Chain: "INPUT", Match: append([]string{"-s", from.Addr}, match...), Jump: jump, First: true, Mark: a.mark()}
				errs = append(errs, a.rule(ctx, r))
			}
		}
	}
	return errors.Join(errs...)
}

func loss(ctx context.Context, a *Act) error {
	return a.between(ctx, []string{"-m", "statistic", "--mode", "random", "--probability", "0.2"}, []string{"DROP"})
}

func reset(ctx context.Context, a *Act) error {
	return a.between(ctx, []string{"-p", "tcp", "-m", "statistic", "--mode", "random", "--probability", "0.01"}, []string{"REJECT", "--reject-with", "tcp-reset"})
}

// countHits confirms by the counters of this fault's own rules.
func countHits(ctx context.Context, a *Act) error {
	var sum int64
	for _, n := range a.Cluster.Nodes() {
		hits, err := control.Hits(ctx, a.Cluster.Net, n.Host, a.mark())
		if err != nil {
			return err
		}
		sum += hits
	}
	if sum == 0 {
		return errors.New("no packet met the rules")
	}
	a.confirm("%d packets", sum)
	return nil
}

func delay(ctx context.Context, a *Act) error {
	nodes := a.hosts(a.Rand.IntN(2) == 0)
	a.Nodes = nodes[:1]
	var peers []string
	for _, n := range nodes[1:] {
		peers = append(peers, n.Addr)
	}
	base := time.Duration(20+a.Rand.IntN(80)) * time.Millisecond
	d, err := control.StartDelay(ctx, a.Cluster.Net, nodes[0].Host, base, base, peers...)
	if err != nil {
		return err
	}
	a.later(func(ctx context.Context) error {
		packets := d.Packets()
		if packets > 0 {
			a.confirm("%d packets held for %v and more", packets, base)
		}
		return d.Stop(ctx)
	})
	return nil
}
