package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/event"
	"penstock/internal/client"
)

const batchType = "application/cloudevents-batch+json"

// batch is n structured events of one writer, ids writer-first to writer-(first+n-1).
func batch(writer string, first, n int) []byte {
	list := make([]map[string]any, n)
	for i := range n {
		list[i] = map[string]any{
			"specversion": "1.0", "id": fmt.Sprintf("%s-%d", writer, first+i), "source": "/e2e/" + writer, "type": "e2e.counted",
			"data": map[string]any{"writer": writer, "n": first + i},
		}
	}
	b, err := json.Marshal(list)
	if err != nil {
		panic(err)
	}
	return b
}

// writers are a steady load: each writes batches of unique events to any node and repeats by id what is not certain.
type writers struct {
	t       *testing.T
	channel string
	size    int
	stop    chan struct{}
	wg      sync.WaitGroup
	unknown atomic.Int64
	// lastAck is when the newest 200 arrived, in Unix nanoseconds: what a failover is measured by.
	lastAck atomic.Int64
	mu      struct {
		sync.Mutex
		acked map[string]bool
		// sent are the ids of every event ever handed to a node.
		sent map[string]bool
	}
}

func startWriters(t *testing.T, channel string, addresses []string, n, size int) *writers {
	t.Helper()
	w := &writers{t: t, channel: channel, size: size, stop: make(chan struct{})}
	w.mu.acked, w.mu.sent = map[string]bool{}, map[string]bool{}
	for i := range n {
		clients := make([]*client.Client, len(addresses))
		for j, a := range addresses {
			clients[j] = newClient(t, a)
		}
		w.wg.Go(func() { w.write(fmt.Sprintf("w%d", i), clients) })
	}
	return w
}

func (w *writers) write(name string, clients []*client.Client) {
	for first := 0; ; first += w.size {
		body := batch(name, first, w.size)
		w.note(w.mu.sent, name, first)
		for {
			select {
			case <-w.stop:
				return
			default:
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			_, err := clients[rand.IntN(len(clients))].Send(ctx, w.channel, body, batchType, client.SendOptions{})
			cancel()
			if err == nil {
				break
			}
			var unknown *client.UnknownError
			if errors.As(err, &unknown) {
				w.unknown.Add(1)
			}
			time.Sleep(20 * time.Millisecond)
		}
		w.lastAck.Store(time.Now().UnixNano())
		w.note(w.mu.acked, name, first)
	}
}

func (w *writers) note(set map[string]bool, name string, first int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.size {
		set[fmt.Sprintf("%s-%d", name, first+i)] = true
	}
}

// halt stops the load and gives the ids of all acknowledged events.
func (w *writers) halt() map[string]bool {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	w.wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.mu.acked)
}

// waitAcks waits until n more events are acknowledged.
func (w *writers) waitAcks(n int, within time.Duration) {
	w.t.Helper()
	start := w.count()
	eventually(w.t, within, fmt.Sprintf("%d more acks", n), func() error {
		if got := w.count() - start; got < n {
			return fmt.Errorf("%d so far", got)
		}
		return nil
	})
}

func (w *writers) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.mu.acked)
}

// stored is one event as tail shows it.
type stored struct {
	id  string
	pos event.Position
	raw string
}

// tailAll reads a channel from the first index to the end on one node.
func tailAll(t *testing.T, p *proc, channel string) []stored {
	t.Helper()
	var out []stored
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := p.client()
	from := event.Position{}
	for {
		end, err := c.Tail(ctx, channel, client.TailOptions{From: from, Limit: 5000}, func(e client.TailEvent) error {
			out = append(out, stored{id: e.ID, pos: e.Position, raw: string(e.Raw)})
			return nil
		})
		require.NoError(t, err)
		if end.Next.Index > end.Applied || end.Next == from {
			return out
		}
		from = end.Next
	}
}

// checkStored holds what the nodes show against what was acknowledged: acked is stored, nothing is shown twice, positions
// rise, and every node shows the same bytes in the same order.
func checkStored(t *testing.T, g *group, channel string, acked map[string]bool) []stored {
	t.Helper()
	waitApplied(t, g)
	first := tailAll(t, g.nodes[0], channel)
	seen := map[string]event.Position{}
	for i, s := range first {
		if i > 0 {
			require.Negative(t, first[i-1].pos.Compare(s.pos), "positions rise")
		}
		if p, twice := seen[s.id]; twice {
			require.FailNow(t, "shown twice", "%s at %s and %s", s.id, p, s.pos)
		}
		seen[s.id] = s.pos
	}
	for id := range acked {
		if _, ok := seen[id]; !ok {
			require.FailNow(t, "acknowledged and not stored", "%s", id)
		}
	}
	for _, p := range g.nodes[1:] {
		if !slices.Equal(first, tailAll(t, p, channel)) {
			require.FailNow(t, "tails differ", "%s does not show what %s shows", p.id, g.nodes[0].id)
		}
	}
	return first
}

// waitApplied waits until all nodes have applied the same index and have the same state hash there.
func waitApplied(t *testing.T, g *group) {
	t.Helper()
	eventually(t, 30*time.Second, "equal state on all nodes", func() error {
		hashes := map[string][]string{}
		for _, p := range g.nodes {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			s, err := p.client().Cluster(ctx)
			cancel()
			if err != nil {
				return err
			}
			at := fmt.Sprintf("%d %s", s.StateHash.Index, s.StateHash.Hash)
			hashes[at] = append(hashes[at], p.id)
		}
		if len(hashes) == 1 {
			return nil
		}
		return fmt.Errorf("%v", hashes)
	})
}

// waitDelivered waits until nothing of the channel is pending and gives the balanced ledger.
func waitDelivered(t *testing.T, c *client.Client, channel string, within time.Duration) client.Ledger {
	t.Helper()
	var l client.Ledger
	eventually(t, within, "everything of "+channel+" resolved", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		var err error
		if l, err = c.Ledger(ctx, channel); err != nil {
			return err
		}
		for _, e := range l.Emitters {
			if e.Pending > 0 {
				return fmt.Errorf("%+v", l)
			}
		}
		return nil
	})
	checkBalanced(t, l)
	return l
}

func checkBalanced(t *testing.T, l client.Ledger) {
	t.Helper()
	require.True(t, l.Balanced, "%+v", l)
	for _, e := range l.Emitters {
		require.Equal(t, e.Accepted, e.Sum(), "%+v", e)
	}
}

// byID is the process of a node.
func (g *group) byID(id string) *proc {
	for _, p := range g.nodes {
		if p.id == id {
			return p
		}
	}
	return nil
}

// command is a penstock verb to be started; it dies with the test.
func command(args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// ndjsonFile is a file of n JSON lines and what each line holds.
func ndjsonFile(t *testing.T, n int) (path string, line func(i int) string) {
	t.Helper()
	line = func(i int) string { return fmt.Sprintf(`"order":%d,"total":"%d.50"`, i, i*7) }
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{%s}\n", line(i))
	}
	path = filepath.Join(t.TempDir(), "orders.ndjson")
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	return path, line
}

func atLeastAccepted(c *client.Client, channel string, n uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	l, err := c.Ledger(ctx, channel)
	if err != nil {
		return err
	}
	if l.Accepted < n {
		return fmt.Errorf("%d accepted", l.Accepted)
	}
	return nil
}

// sendByID sends a batch until it is acknowledged, by the same ids: what a producer does when a leader changes under it.
func sendByID(t *testing.T, c *client.Client, channel string, body []byte) {
	t.Helper()
	eventually(t, 20*time.Second, "an ack", func() error {
		_, err := c.Send(context.Background(), channel, body, batchType, client.SendOptions{})
		return err
	})
}
