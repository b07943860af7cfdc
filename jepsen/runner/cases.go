package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"penstock/jepsen/client"
	"penstock/jepsen/control"
	"penstock/jepsen/workload"
)

// Case is one report from the users of similar systems as a scenario of its own.
type Case struct {
	Name, What string
	Run        func(ctx context.Context, o Options, rounds int, hold time.Duration) error
}

// Cases lists them.
func Cases() []Case {
	return []Case{
		{"B45", "power-off of all nodes at staggered times; then only two come back, in every pairing and order: a leader with the newest log in 15s, nothing acked lost, terms rise by 5 at most", caseB45},
		{"S15", "a follower is isolated, then healed: no change of leader, no gap between acks above 500ms", caseS15},
		{"B10", "an id is refused as a duplicate, with the position of the first, before a restart, after a rolling restart, and after its log is gone (snapshot)", caseB10},
	}
}

// write sends events by id to any node until they are acknowledged; it returns where each stands.
func (r *run) write(ctx context.Context, prefix string, from, n int) (map[string]string, error) {
	ids := map[string]string{}
	body := []byte{'['}
	for i := from; i < from+n; i++ {
		if i > from {
			body = append(body, ',')
		}
		body = fmt.Appendf(body, `{"specversion":"1.0","id":"%s-%d","source":"/jepsen/case","type":"jepsen.event","data":{"n":%d}}`, prefix, i, i)
	}
	body = append(body, ']')
	try := 0
	err := poll(ctx, func(ctx context.Context) error {
		c := r.clients[try%len(r.clients)]
		try++
		a := c.Do(ctx, http.MethodPost, "/v1/channels/"+workload.Offsets+"/events", url.Values{"detail": {"1"}}, "application/cloudevents-batch+json", body)
		if a.Outcome != client.Done {
			return errors.New(c.Node + ": " + a.Error())
		}
		var answer client.IngestAnswer
		if err := json.Unmarshal(a.Body, &answer); err != nil {
			return err
		}
		for _, e := range answer.Events {
			ids[e.ID] = e.Position
			if e.DuplicateOf != "" {
				ids[e.ID] = e.DuplicateOf
			}
		}
		return nil
	})
	return ids, err
}

// holds checks that node shows every id at its position.
func (r *run) holds(ctx context.Context, c *client.Client, want map[string]string) error {
	seen := map[string]string{}
	for from := "1"; ; {
		page, a := c.Tail(ctx, workload.Offsets, from, 5000, 0)
		if page.First > 0 && from == "1" { // what came before holds no event of ours
			from = strconv.FormatUint(page.First, 10)
			continue
		}
		if a.Outcome != client.Done {
			return errors.New(c.Node + ": " + a.Error())
		}
		for _, e := range page.Events {
			seen[e.ID] = e.Position
		}
		if len(page.Events) == 0 || page.Next == "" || page.Next == from {
			break
		}
		from = page.Next
	}
	for id, position := range want {
		if seen[id] != position {
			return fmt.Errorf("%s: %s was acked at %s and is at %q", c.Node, id, position, seen[id])
		}
	}
	return nil
}

func caseB45(ctx context.Context, o Options, rounds int, _ time.Duration) error {
	return onCluster(ctx, o, "B45", func(r *run) error {
		acked := map[string]string{}
		orders := [][]int{{0, 1, 2}, {1, 2, 0}, {0, 2, 1}, {2, 1, 0}, {1, 0, 2}, {2, 0, 1}}
		for round := range rounds {
			order := orders[round%len(orders)]
			bounded, cancel := context.WithTimeout(ctx, 60*time.Second)
			err := r.roundB45(bounded, order, round, acked)
			cancel()
			if err != nil {
				return fmt.Errorf("round %d, order %v: %w", round+1, order, err)
			}
		}
		return nil
	})
}

func (r *run) roundB45(ctx context.Context, order []int, round int, acked map[string]string) error {
	more, err := r.write(ctx, "b45", round*50, 50)
	if err != nil {
		return err
	}
	maps.Copy(acked, more)
	before := r.term()
	nodes := r.cluster.Nodes()
	for at, i := range order {
		if at == 1 { // what commits without the first is what the pair must not lose
			late, err := r.write(ctx, "b45-late", round*50, 10)
			if err != nil {
				return err
			}
			maps.Copy(acked, late)
		}
		if _, err := r.cluster.PowerCut(ctx, nodes[i], control.ShutdownDrop); err != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
	pair := order[:2] // the first two to go are the oldest logs; other orders bring the newest
	for _, i := range pair {
		if err := r.cluster.PowerOn(ctx, nodes[i]); err != nil {
			return err
		}
	}
	start := time.Now()
	electing, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if more, err = r.write(electing, "b45-pair", round*50, 1); err != nil {
		return fmt.Errorf("no leader among two of three within 15s: %w", err)
	}
	took := time.Since(start).Round(time.Millisecond)
	maps.Copy(acked, more)
	for _, i := range pair {
		if err := poll(electing, func(ctx context.Context) error { return r.holds(ctx, r.clients[i], acked) }); err != nil {
			return err
		}
	}
	if err := r.cluster.PowerOn(ctx, nodes[order[2]]); err != nil {
		return err
	}
	if err := r.healthy(ctx); err != nil {
		return fmt.Errorf("the third does not join: %w", err)
	}
	if err := poll(ctx, func(ctx context.Context) error { return r.holds(ctx, r.clients[order[2]], acked) }); err != nil {
		return err
	}
	if rise := r.term() - before; rise > 5 {
		return fmt.Errorf("the term rose by %d, want at most 5", rise)
	}
	r.say("B45 round %d order %v: write after %v, term +%d", round+1, order, took, r.term()-before)
	return nil
}

func caseS15(ctx context.Context, o Options, _ int, hold time.Duration) error {
	return onCluster(ctx, o, "S15", func(r *run) error {
		if err := r.healthy(ctx); err != nil {
			return err
		}
		leader, term := r.obs.leader(), r.term()
		nodes := r.cluster.Nodes()
		i := slices.IndexFunc(nodes, func(n *control.Node) bool { return n.Host != leader })
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
		gaps := r.gaps(ctx, leader, hold, func() error {
			for _, n := range nodes {
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
		case gaps > 500*time.Millisecond:
			return fmt.Errorf("the longest gap between acks around the heal was %v, want below 500ms", gaps)
		case r.obs.leader() != leader:
			return fmt.Errorf("the leader was %s and is %s", leader, r.obs.leader())
		case r.term() != term:
			return fmt.Errorf("the term was %d and is %d", term, r.term())
		}
		r.say("S15: leader %s kept term %d, longest gap %v", leader, term, gaps.Round(time.Millisecond))
		return nil
	})
}

// gaps writes steadily to one node, heals after hold, goes on for ten seconds, and returns the longest time between acks.
func (r *run) gaps(ctx context.Context, node string, hold time.Duration, heal func() error) time.Duration {
	var longest time.Duration
	last := time.Now()
	i := slices.IndexFunc(r.clients, func(c *client.Client) bool { return c.Node == node })
	end := time.Now().Add(hold + 10*time.Second)
	healAt := time.Now().Add(hold)
	for n := 0; time.Now().Before(end) && ctx.Err() == nil; n++ {
		if heal != nil && time.Now().After(healAt) {
			if err := heal(); err != nil {
				r.say("heal: %v", err)
			}
			heal = nil
			last = time.Now()
		}
		body := fmt.Appendf(nil, `[{"specversion":"1.0","id":"gap-%d","source":"/jepsen/gap","type":"jepsen.event"}]`, n)
		if r.clients[i].Do(ctx, http.MethodPost, "/v1/channels/"+workload.Offsets+"/events", nil, "application/cloudevents-batch+json", body).Outcome == client.Done {
			if heal == nil {
				longest = max(longest, time.Since(last))
			}
			last = time.Now()
		}
		time.Sleep(10 * time.Millisecond)
	}
	return longest
}

func caseB10(ctx context.Context, o Options, _ int, _ time.Duration) error {
	o.Keep, o.Snapshot, o.Segment = "0s", "1MiB", "1MiB"
	return onCluster(ctx, o, "B10", func(r *run) error {
		first, err := r.write(ctx, "b10", 0, 1000)
		if err != nil {
			return err
		}
		again := func(when string) error {
			bounded, cancel := context.WithTimeout(ctx, 60*time.Second)
			defer cancel()
			repeat, err := r.write(bounded, "b10", 0, 1000)
			if err != nil {
				return fmt.Errorf("%s: %w", when, err)
			}
			for id, position := range first {
				if repeat[id] != position {
					return fmt.Errorf("%s: %s was first at %s, the answer says %s", when, id, position, repeat[id])
				}
			}
			r.say("B10 %s: all 1000 are duplicates of the first", when)
			return nil
		}
		if err := again("before a restart"); err != nil {
			return err
		}
		for _, n := range r.cluster.Nodes() {
			if _, err := n.Process.Stop(ctx, 15*time.Second); err != nil {
				return err
			}
			if err := n.Process.Start(); err != nil {
				return err
			}
			bounded, cancel := context.WithTimeout(ctx, boundReady)
			err := r.healthy(bounded)
			cancel()
			if err != nil {
				return fmt.Errorf("after the restart of %s: %w", n.ID, err)
			}
		}
		if err := again("after a rolling restart"); err != nil {
			return err
		}
		for i := range 100 { // so much log that what held the first events is gone
			if _, err := r.write(ctx, fmt.Sprintf("b10-fill-%d", i), 0, 1000); err != nil {
				return err
			}
		}
		return again("after the log moved on")
	})
}
