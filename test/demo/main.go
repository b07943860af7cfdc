// Command demo shows the whole of Penstock in under a minute, on real processes: it starts three nodes on loopback, sends a
// few thousand events made of the payloads in testdata, kills the leader with SIGKILL in the middle, goes on, restarts it,
// and checks that every acknowledged event was delivered once, the ledger balances and all nodes hold the same. It exits 0
// only if all of it held. Everything it made stays in its directory, to be looked at.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"penstock/internal/client"
)

const (
	channel = "orders"
	emitter = "files"
	// failoverLimit is what a failover may take from the kill to the next acknowledgement.
	failoverLimit = 3 * time.Second
)

func main() {
	bin := flag.String("bin", "bin/penstock", "the binary")
	dir := flag.String("dir", "demo-data", "directory for everything, emptied first")
	payloads := flag.String("payloads", "testdata/payloads", "directory of JSON payloads")
	events := flag.Int("events", 4000, "how many")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, 2*time.Minute)
	defer stop()
	d, err := prepare(*bin, *dir, *payloads, *events)
	if err == nil {
		err = d.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo: FAILED:", err)
		fmt.Fprintln(os.Stderr, "demo: the logs of the nodes are", filepath.Join(*dir, "n*.log"))
		os.Exit(1)
	}
}

// demo is one run.
type demo struct {
	bin, dir string
	events   int
	payloads []payload
	nodes    []*process
	client   *client.Client
	writer   *writer
	start    time.Time
}

func (d *demo) say(format string, v ...any) {
	fmt.Printf("%6.1fs  %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, v...))
}

func prepare(bin, dir, payloads string, events int) (*demo, error) {
	d := &demo{events: events, start: time.Now()}
	var err error
	if d.bin, err = filepath.Abs(bin); err != nil {
		return nil, err
	}
	if d.dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if d.payloads, err = loadPayloads(payloads); err != nil {
		return nil, err
	}
	if err := emptied(d.dir); err != nil {
		return nil, err
	}
	d.nodes, err = layOut(d.bin, d.dir)
	if err != nil {
		return nil, err
	}
	d.client, err = client.New(client.Config{Addresses: d.addresses(), Timeout: 12 * time.Second})
	return d, err
}

// emptied makes dir new; what lies there is removed only when an earlier run left it.
func emptied(dir string) error {
	const mark = ".penstock-demo"
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(dir, mark)); err != nil {
			return fmt.Errorf("%s is not empty and no earlier demo made it", dir)
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, mark), nil, 0o644)
}

func (d *demo) addresses() []string {
	var out []string
	for _, n := range d.nodes {
		out = append(out, n.http)
	}
	return out
}

func (d *demo) run(ctx context.Context) error {
	defer func() {
		for _, n := range d.nodes {
			n.kill()
		}
	}()
	if err := d.startAll(ctx); err != nil {
		return err
	}
	failover, err := d.sendThroughFailover(ctx)
	if err != nil {
		return err
	}
	if err := d.drained(ctx); err != nil {
		return err
	}
	files, err := d.check(ctx)
	if err != nil {
		return err
	}
	if err := d.report(failover, files); err != nil {
		return err
	}
	return d.stopAll()
}

func (d *demo) startAll(ctx context.Context) error {
	for _, n := range d.nodes {
		if err := n.start(); err != nil {
			return err
		}
	}
	for _, n := range d.nodes {
		if err := n.waitReady(ctx, 20*time.Second); err != nil {
			return err
		}
	}
	d.say("three nodes are ready: %s", strings.Join(d.addresses(), " "))
	out, err := d.penstock("channel", "apply", "-f", filepath.Join(d.dir, "channel.yaml"))
	if err != nil {
		return err
	}
	d.say("channel applied\n%s", indent(out))
	return nil
}

// sendThroughFailover writes all events, kills the leader when 40 % are acknowledged, and starts it again at 70 %.
func (d *demo) sendThroughFailover(ctx context.Context) (time.Duration, error) {
	d.writer = newWriter(d.client, d.payloads, d.events)
	if err := d.writer.until(ctx, d.events*4/10); err != nil {
		return 0, err
	}
	leader, err := d.leader(ctx)
	if err != nil {
		return 0, err
	}
	d.say("%d events acknowledged; SIGKILL for the leader, %s", d.writer.acked(), leader.id)
	leader.kill()
	killed := time.Now()
	if err := d.writer.until(ctx, d.writer.acked()+1); err != nil {
		return 0, err
	}
	failover := d.writer.lastAck.Sub(killed)
	if failover > failoverLimit {
		return failover, fmt.Errorf("the failover took %s, more than %s", failover, failoverLimit)
	}
	d.say("acknowledged again %s after the kill", failover.Round(time.Millisecond))
	if err := d.writer.until(ctx, d.events*7/10); err != nil {
		return 0, err
	}
	if err := leader.start(); err != nil {
		return 0, err
	}
	if err := d.writer.until(ctx, d.events); err != nil {
		return 0, err
	}
	if err := leader.waitReady(ctx, 20*time.Second); err != nil {
		return 0, err
	}
	d.say("all %d events acknowledged (%d requests repeated by id); %s is back", d.writer.acked(), d.writer.retries, leader.id)
	return failover, nil
}

func (d *demo) leader(ctx context.Context) (*process, error) {
	for {
		if c, err := d.client.Cluster(ctx); err == nil {
			for _, n := range d.nodes {
				if n.id == c.Leader {
					return n, nil
				}
			}
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return nil, fmt.Errorf("no leader: %w", err)
		}
	}
}

// drained waits until nothing is pending.
func (d *demo) drained(ctx context.Context) error {
	var last string
	for deadline := time.Now().Add(40 * time.Second); time.Now().Before(deadline); {
		l, err := d.client.Ledger(ctx, channel)
		if err == nil && len(l.Emitters) == 1 && l.Emitters[0].Pending == 0 {
			d.say("everything is delivered")
			return nil
		}
		last = fmt.Sprintf("%+v %v", l, err)
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("deliveries are still pending: %s", last)
}

func (d *demo) report(failover time.Duration, files int) error {
	table, err := d.penstock("ledger", channel)
	if err != nil {
		return err
	}
	fmt.Printf("\n%s\n", table)
	fmt.Printf("failover:   %s from SIGKILL of the leader to the next acknowledgement\n", failover.Round(time.Millisecond))
	fmt.Printf("delivered:  %d files under %s\n", files, filepath.Join(d.dir, "n*", "out"))
	fmt.Printf("checked:    %d acknowledged events, each delivered once; the ledger balances; tail and state are the same on all nodes\n", len(d.writer.ids))
	return nil
}

func (d *demo) stopAll() error {
	for _, n := range d.nodes {
		if err := n.stop(30 * time.Second); err != nil {
			return err
		}
	}
	d.say("three clean stops; done")
	return nil
}

// penstock runs a verb against the cluster and gives its standard output.
func (d *demo) penstock(args ...string) (string, error) {
	c := exec.Command(d.bin, append(args, "--addr", strings.Join(d.addresses(), ","))...)
	var errs strings.Builder
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("penstock %s: %w: %s%s", strings.Join(args, " "), err, out, errs.String())
	}
	return string(out), nil
}

func indent(s string) string {
	return "         " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n         ")
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
