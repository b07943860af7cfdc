package runner

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"penstock/jepsen/client"
	"penstock/jepsen/control"
	"penstock/jepsen/workload"
)

func caseS15(ctx context.Context, o Options, _ int, hold time.Duration) error {
	return onCluster(ctx, o, "S15", func(r *run) error {
		if err := r.healthy(ctx); err != nil {
			return err
		}
		leader, term := r.obs.leader(), r.term()
		nodes := r.cluster.Nodes()
		i := slices.IndexFunc(nodes, func(n *control.Node) bool { return n.Host != leader })
		if leader == "" {
			return fmt.Errorf("%w: no leader is known", errVacuous)
		}
		for _, n := range nodes {
			if n != nodes[i] {
				for _, rule := range []control.Rule{
					{Host: nodes[i].Host, Chain: "INPUT", Match: []string{"-s", n.Addr}, Jump: []string{"DROP"}, Mark: "s15"},
					{Host: n.Host, Chain: "INPUT", Match: []string{"-s", nodes[i].Addr}, Jump: []string{"DROP"}, Mark: "s15"},
				} {
					if err := rule.Add(ctx, r.cluster.Net); err != nil {
						return err
					}
				}
			}
		}
		var dropped int64
		longest, acks := r.gaps(ctx, leader, hold, func() error {
			for _, n := range nodes {
				hits, err := control.Hits(ctx, r.cluster.Net, n.Host, "s15")
				if err != nil {
					return err
				}
				dropped += hits
				if err := control.Flush(ctx, r.cluster.Net, n.Host); err != nil {
					return err
				}
			}
			return nil
		})
		if err := r.healthy(ctx); err != nil {
			return err
		}
		switch {
		case dropped == 0:
			return fmt.Errorf("%w: no packet met the rules that isolate", errVacuous)
		case acks < 100:
			return fmt.Errorf("%w: only %d writes were acknowledged", errVacuous, acks)
		case longest > 500*time.Millisecond:
			return fmt.Errorf("the longest gap between acks around the heal was %v, want below 500ms", longest)
		case r.obs.leader() != leader:
			return fmt.Errorf("the leader was %s and is %s", leader, r.obs.leader())
		case r.term() != term:
			return fmt.Errorf("the term was %d and is %d", term, r.term())
		}
		r.say("S15: leader %s kept term %d, longest gap %v", leader, term, longest.Round(time.Millisecond))
		return nil
	})
}

// gaps writes steadily to one node, heals after hold, goes on for ten seconds, and returns the longest time without an ack
// from just before the heal on, and how many acks there were in all.
func (r *run) gaps(ctx context.Context, node string, hold time.Duration, heal func() error) (longest time.Duration, acks int) {
	i := slices.IndexFunc(r.clients, func(c *client.Client) bool { return c.Node == node })
	healAt := time.Now().Add(hold)
	end := healAt.Add(10 * time.Second)
	last := time.Now()
	for n := 0; time.Now().Before(end) && ctx.Err() == nil; n++ {
		if heal != nil && time.Now().After(healAt) {
			if err := heal(); err != nil {
				r.say("heal: %v", err)
			}
			heal = nil
			last = time.Now() // the commands that heal take their time here, and are no gap of the cluster's
		}
		body := fmt.Appendf(nil, `[{"specversion":"1.0","id":"gap-%d","source":"/jepsen/gap","type":"jepsen.event"}]`, n)
		if r.clients[i].Do(ctx, http.MethodPost, "/v1/channels/"+workload.Offsets+"/events", nil, "application/cloudevents-batch+json", body).Outcome == client.Done {
			acks++
			if heal == nil {
				longest = max(longest, time.Since(last))
			}
			last = time.Now()
		}
		pause(ctx, 10*time.Millisecond)
	}
	return max(longest, time.Since(last)), acks
}
