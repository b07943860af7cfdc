package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// gapBound is how long nothing may be acknowledged around one change of the members. The claim is two seconds; the short form shares two
// cores with other clusters.
func gapBound() time.Duration {
	if os.Getenv("PENSTOCK_FULL") == "1" {
		return 2 * time.Second
	}
	return 8 * time.Second
}

// gapWatch finds the longest time without an ack.
type gapWatch struct {
	w    *writers
	stop chan struct{}
	wg   sync.WaitGroup

	mu  sync.Mutex
	max time.Duration
}

func watchGaps(w *writers) *gapWatch {
	g := &gapWatch{w: w, stop: make(chan struct{})}
	g.wg.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-g.stop:
				return
			case <-tick.C:
			}
			gap := time.Since(time.Unix(0, w.lastAck.Load()))
			g.mu.Lock()
			g.max = max(g.max, gap)
			g.mu.Unlock()
		}
	})
	w.t.Cleanup(func() { close(g.stop); g.wg.Wait() })
	return g
}

// during does a change of the members under load and holds its gap against the bound, acks behind it included.
func (g *gapWatch) during(what string, change func()) {
	g.w.t.Helper()
	g.w.waitAcks(20, 30*time.Second)
	g.mu.Lock()
	g.max = 0
	g.mu.Unlock()
	began := time.Now()
	change()
	g.w.waitAcks(50, 30*time.Second)
	g.mu.Lock()
	gap := g.max
	g.mu.Unlock()
	g.w.t.Logf("%s: %s, longest gap between acks %s", what, time.Since(began).Round(time.Millisecond), gap.Round(time.Millisecond))
	require.Less(g.w.t, gap, gapBound(), "write gap of: %s", what)
}

// leave takes a node out of what the test looks at; its process is the test's to end.
func (g *group) leave(p *proc) {
	g.nodes = slices.DeleteFunc(slices.Clone(g.nodes), func(n *proc) bool { return n == p })
	g.t.Cleanup(p.kill)
}

// cli runs a verb of penstock cluster through one node until it is taken: a leader may just be changing.
func (p *proc) cli(verb ...string) {
	p.g.t.Helper()
	eventually(p.g.t, 60*time.Second, fmt.Sprint(verb), func() error {
		out, err := command(append([]string{"--addr", p.http, "cluster"}, verb...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// voters are the voters as a node sees them.
func (p *proc) voters() []string {
	p.g.t.Helper()
	s, err := p.client().Cluster(context.Background())
	require.NoError(p.g.t, err)
	var out []string
	for _, m := range s.Members {
		if m.Suffrage == "voter" {
			out = append(out, m.ID)
		}
	}
	slices.Sort(out)
	return out
}

// oneLeader fails the test when two nodes say that they lead in one term.
func oneLeader(t *testing.T, seen map[uint64]string, nodes []*proc) {
	t.Helper()
	for _, p := range nodes {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		s, err := p.client().Cluster(ctx)
		cancel()
		if err != nil || s.State != "leader" {
			continue
		}
		if other, ok := seen[s.Term]; ok && other != p.id {
			require.FailNow(t, "two leaders", "%s and %s in term %d", other, p.id, s.Term)
		}
		seen[s.Term] = p.id
	}
}

// audited gives the acts of the trail with one action, each of which must have come to an end.
func audited(t *testing.T, c *client.Client, action string) []client.AuditRecord {
	t.Helper()
	var out []client.AuditRecord
	eventually(t, 20*time.Second, "the trail has "+action, func() error {
		records, err := c.Audit(context.Background(), 500, false)
		if err != nil {
			return err
		}
		out = nil
		for _, r := range records {
			if r.Action != action {
				continue
			}
			if r.Open {
				return fmt.Errorf("open: %+v", r)
			}
			out = append(out, r)
		}
		if len(out) == 0 {
			return fmt.Errorf("none of %d records", len(records))
		}
		return nil
	})
	return out
}
