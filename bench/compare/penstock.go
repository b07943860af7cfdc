package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"penstock/internal/client"
	"penstock/internal/load"
)

// penstock is the system under test, as a user runs it: defaults, dedup on.
type penstock struct {
	binary string
	http   []string
	nodes  []*process
}

func (p *penstock) name() string { return "Penstock" }

func (p *penstock) rows() []row {
	return []row{
		{"1 request of 1 event", 1, 1, eventBytes, load.JSON},
		{"64 requests of 1 event", 64, 1, eventBytes, load.JSON},
		{"10 requests of 100 events, json", 10, 100, eventBytes, load.JSON},
		{"10 requests of 100 events, random", 10, 100, eventBytes, load.Random},
		{"8 requests of 256 KiB, json", 8, 256, eventBytes, load.JSON},
	}
}

func (p *penstock) start(dir string) error {
	addresses, err := freePorts(12)
	if err != nil {
		return err
	}
	p.http = addresses[:3]
	seeds := `"` + strings.Join(addresses[6:9], `", "`) + `"`
	for i := range 3 {
		id := fmt.Sprintf("n%d", i+1)
		file := filepath.Join(dir, id+".yaml")
		text := fmt.Sprintf("node: {id: %s, data_dir: %q, http: %q, raft: %q, gossip: %q, debug: %q}\ncluster: {name: bench, seeds: [%s]}\n",
			id, filepath.Join(dir, id), addresses[i], addresses[3+i], addresses[6+i], addresses[9+i], seeds)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		node, err := start(filepath.Join(dir, id+".log"), p.binary, "server", "--config", file)
		if err != nil {
			return err
		}
		p.nodes = append(p.nodes, node)
	}
	for _, a := range p.http {
		c, err := client.New(client.Config{Addresses: []string{a}, Timeout: 2 * time.Second})
		if err != nil {
			return err
		}
		defer c.Close()
		if err := eventually(time.Minute, a+" ready", func() error { return c.Ready(context.Background()) }); err != nil {
			return err
		}
	}
	return nil
}

func (p *penstock) processes() []*process { return p.nodes }

func (p *penstock) stop() {
	for _, n := range p.nodes {
		n.kill()
	}
	p.nodes = nil
}

func (p *penstock) load(ctx context.Context, r row, d time.Duration) (sent, error) {
	return p.ingest(ctx, r, d, "bench")
}

// ingest runs the load generator as a process of its own.
func (p *penstock) ingest(ctx context.Context, r row, d time.Duration, channel string) (sent, error) {
	var out load.Result
	err := p.verb(ctx, &out, "bench", "ingest", channel, "--to", "leader", "--events", "1000000000", "--duration", d.String(),
		"--connections", fmt.Sprint(r.inFlight), "--batch", fmt.Sprint(r.batch), "--size", fmt.Sprintf("%dB", r.size), "--payload", r.payload)
	if err != nil {
		return sent{}, err
	}
	if lost := out.Events - out.Accepted; lost*mostLost > out.Events {
		return sent{}, fmt.Errorf("not all was accepted: %+v", out)
	} else if lost > 0 {
		fmt.Fprintf(os.Stderr, "%d of %d events were not accepted: %v\n", lost, out.Events, out.Faults)
	}
	return sent{
		events: out.Accepted, bytes: out.Accepted * int64(r.size), seconds: out.Seconds, p50: out.Latency.P50, p99: out.Latency.P99,
		clientCPU: out.ClientCPU,
	}, nil
}

// mostLost: a row may lose one in so many events to a change of the leader, which a busy machine can bring about.
const mostLost = 50

// verb runs a penstock verb and reads its JSON, also that of one that says what it could not do.
func (p *penstock) verb(ctx context.Context, out any, args ...string) error {
	cmd := exec.CommandContext(ctx, p.binary, append([]string{"--addr", strings.Join(p.http, ","), "--output", "json"}, args...)...)
	b, err := cmd.Output()
	if err != nil && json.Unmarshal(b, out) != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return fmt.Errorf("penstock %s: %w: %s%s", strings.Join(args, " "), err, exit.Stderr, b)
		}
		return err
	}
	return json.Unmarshal(b, out)
}

func (p *penstock) client() (*client.Client, error) {
	return client.New(client.Config{Addresses: p.http})
}
