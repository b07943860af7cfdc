package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"penstock/internal/client"
	"penstock/internal/load"
)

// emitRounds is how often the comparisons of delivery are made, in turn.
const emitRounds = 5

// emission is what `penstock bench emit` found.
type emission struct {
	Rate      float64 `json:"events_per_second"`
	Per100k   float64 `json:"server_cpu_per_100k_seconds"`
	ClientCPU float64 `json:"client_cpu_seconds"`
	Delivered float64 `json:"delivered"`
}

// compareEmit measures delivery on one cluster.
func compareEmit(ctx context.Context, o options) (string, error) {
	p := &penstock{binary: o.binary}
	dir := filepath.Join(o.dir, "emit")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	defer p.stop()
	if err := p.start(dir); err != nil {
		return "", err
	}
	ports, err := freePorts(1)
	if err != nil {
		return "", err
	}
	receiver, err := self(dir, "receiver", "receiver", ports[0])
	if err != nil {
		return "", err
	}
	defer receiver.kill()
	err = eventually(10*time.Second, "a receiver", func() error {
		c, err := net.Dial("tcp", ports[0])
		if err == nil {
			c.Close()
		}
		return err
	})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if err := p.emissions(ctx, o, &b); err != nil {
		return "", err
	}
	cost, err := p.deliveryCost(ctx, o, ports[0])
	if err != nil {
		return "", err
	}
	slow, err := p.slowOfTwenty(ctx, ports[0])
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&b, "\nEach is the median of %d runs of both kinds in turn.\n\n%s", emitRounds, claimTable(append(cost, slow)))
	return b.String(), nil
}

func (p *penstock) emissions(ctx context.Context, o options, b *strings.Builder) error {
	fmt.Fprintf(b, "From the log to the destination, outcomes committed, 1 KiB events; median of %d runs. CPU is of all three servers for 100 000 events, and of the\n"+
		"receiver.\n\n| emitter | events/s | server CPU s | receiver CPU s |\n|---|---:|---:|---:|\n", o.rounds)
	for _, r := range []struct {
		name, kind    string
		batch, events int
	}{{"webhook, 1 event a request", "webhook", 1, 10_000}, {"webhook, 100 events a request", "webhook", 100, 100_000}, {"file, 10 000 events a file", "file", 10_000, 200_000}} {
		var rate, cpu, client []float64
		for range o.rounds {
			var e emission
			if err := p.verb(ctx, &e, "bench", "emit", "--kind", r.kind, "--batch", fmt.Sprint(r.batch), "--events", fmt.Sprint(r.events)); err != nil {
				return err
			}
			rate, cpu, client = append(rate, e.Rate), append(cpu, e.Per100k), append(client, e.ClientCPU/e.Delivered*1e5)
			fmt.Fprintf(os.Stderr, "emit %-40s %9.0f/s %6.2f CPU s per 100k\n", r.name, e.Rate, e.Per100k)
		}
		fmt.Fprintf(b, "| %s | %.0f | %.2f | %.2f |\n", r.name, median(rate), median(cpu), median(client))
	}
	return nil
}

// deliveryCost is what an emitter that keeps up takes from ingest, for each kind.
func (p *penstock) deliveryCost(ctx context.Context, o options, receiver string) ([]claim, error) {
	r := row{inFlight: 10, batch: 100, size: eventBytes, payload: load.JSON}
	file := `{"name":"d","kind":"file","start":"latest","file":{"directory":"cost"}}`
	hook := fmt.Sprintf(`{"name":"d","kind":"webhook","start":"latest","compaction":{"events":100,"linger":"100ms"},"webhook":{"url":"http://%s/"}}`, receiver)
	kinds := []struct{ name, emitters string }{{"none", ""}, {"file", file}, {"webhook", hook}}
	rates := map[string][]float64{}
	for round := range emitRounds {
		for _, k := range kinds {
			s, err := p.withEmitters(ctx, fmt.Sprintf("cost-%s-%d", k.name, round), "["+k.emitters+"]", func(channel string) (sent, error) {
				return p.ingest(ctx, r, o.duration(), channel)
			})
			if err != nil {
				return nil, err
			}
			rate := float64(s.events) / s.seconds
			rates[k.name] = append(rates[k.name], rate)
			fmt.Fprintf(os.Stderr, "ingest with emitter %-8s %9.0f/s\n", k.name, rate)
		}
	}
	bare := median(rates["none"])
	return []claim{
		{"ingest of 10 × 100 with full delivery to files ÷ without", median(rates["file"]) / bare, false, 0.8},
		{"ingest of 10 × 100 with full delivery to a webhook, 100 a request ÷ without", median(rates["webhook"]) / bare, false, 0.8},
	}, nil
}

// withEmitters makes a channel, loads it, waits until all is delivered, and removes it.
func (p *penstock) withEmitters(ctx context.Context, name, emitters string, load func(channel string) (sent, error)) (sent, error) {
	c, err := p.client()
	if err != nil {
		return sent{}, err
	}
	defer c.Close()
	spec := fmt.Sprintf(`{"name":%q,"semantics":"at-least-once","order":"none","dedup":{"on_full":"shorten"},"retention":{"keep":"0s"},"emitters":%s}`, name, emitters)
	if _, err := c.PutChannel(ctx, name, json.RawMessage(spec), client.PutOptions{}); err != nil {
		return sent{}, err
	}
	defer func() { _ = c.DeleteChannel(context.WithoutCancel(ctx), name, client.PutOptions{Discard: true}) }()
	time.Sleep(500 * time.Millisecond) // an owner is found
	s, err := load(name)
	if err != nil {
		return sent{}, err
	}
	return s, eventually(2*time.Minute, "all of "+name+" delivered", func() error { return allDelivered(ctx, c, name, "") })
}

var errPending = errors.New("not all is delivered")

// allDelivered tells whether everything is, but at the emitter named except.
func allDelivered(ctx context.Context, c *client.Client, channel, except string) error {
	l, err := c.Ledger(ctx, channel)
	if err != nil {
		return err
	}
	for _, e := range l.Emitters {
		if e.Emitter != except && e.Delivered != l.Accepted {
			return fmt.Errorf("%w: %+v", errPending, e)
		}
	}
	return nil
}

// slowOfTwenty lets 20 emitters deliver the same events, with and without a slow one among them, and compares how long the other 19
// take.
func (p *penstock) slowOfTwenty(ctx context.Context, receiver string) (claim, error) {
	took := map[string][]float64{}
	for round := range emitRounds {
		for _, first := range []string{"fast", "slow"} {
			seconds, err := p.twenty(ctx, fmt.Sprintf("twenty-%s-%d", first, round), receiver, first)
			if err != nil {
				return claim{}, err
			}
			fmt.Fprintf(os.Stderr, "19 emitters beside a %s one: %.2f s\n", first, seconds)
			took[first] = append(took[first], seconds)
		}
	}
	return claim{"time of 19 emitters beside a slow one (1 s an answer) ÷ beside a fast one", median(took["slow"]) / median(took["fast"]), true, 1.1}, nil
}

func (p *penstock) twenty(ctx context.Context, name, receiver, first string) (float64, error) {
	c, err := p.client()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	var list []string
	for i := range 20 {
		path := "fast"
		if i == 0 {
			path = first
		}
		list = append(list, fmt.Sprintf(`{"name":"e%d","kind":"webhook","start":"earliest","compaction":{"events":100,"linger":"100ms"},"webhook":{"url":"http://%s/%s"}}`, i, receiver, path))
	}
	spec := fmt.Sprintf(`{"name":%q,"semantics":"at-least-once","order":"none","emitters":[%s]}`, name, strings.Join(list, ","))
	if _, err := c.PutChannel(ctx, name, json.RawMessage(spec), client.PutOptions{}); err != nil {
		return 0, err
	}
	defer func() { _ = c.DeleteChannel(context.WithoutCancel(ctx), name, client.PutOptions{Discard: true}) }()
	const events = 10_000
	pause := func(paused bool) error {
		for i := range 20 {
			if err := c.PauseEmitter(ctx, name, fmt.Sprintf("e%d", i), paused, "bench"); err != nil {
				return err
			}
		}
		return nil
	}
	if err := pause(true); err != nil {
		return 0, err
	}
	var filled load.Result
	if err := p.verb(ctx, &filled, "bench", "ingest", name, "--events", fmt.Sprint(events), "--batch", "100", "--connections", "4"); err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := pause(false); err != nil {
		return 0, err
	}
	err = eventually(time.Minute, "19 emitters of "+name, func() error { return allDelivered(ctx, c, name, "e0") })
	return time.Since(begin).Seconds(), err
}
