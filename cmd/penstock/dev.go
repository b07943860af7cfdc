package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"penstock/internal/client"
	"penstock/internal/spec"
	"penstock/node"
	"penstock/node/config"
)

// devReadyWithin is how long after its start a development cluster waits for owners before it says READY without them.
const devReadyWithin = 4500 * time.Millisecond

// devStep is between the ports of one node and those of the next.
const devStep = 10

type devOptions struct {
	nodes    int
	data     string
	portBase int
}

func (a *app) devCommand() *cobra.Command {
	var o devOptions
	var logLevel string
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole cluster in one process, for development",
		Long: "Runs N nodes with real Raft on loopback and a sample channel demo (at-least-once, one file emitter under DIR/out).\n" +
			"Node i listens on 7070 + 10(i-1) and the three ports behind it. Prints a READY line once the channel takes events\n" +
			"and its emitter has an owner.\n" +
			"Without --data everything lies in a temporary directory that is removed at the end.",
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.nodes < 1 || o.nodes > 9 {
				return usageError{fmt.Errorf("--nodes %d: want 1 to 9", o.nodes)}
			}
			if o.portBase < 1 || o.portBase+devStep*o.nodes > 65535 {
				return usageError{fmt.Errorf("--port-base %d: leaves no room for %d nodes", o.portBase, o.nodes)}
			}
			logger, err := newLogger(a.stderr, "text", logLevel, new(slog.LevelVar))
			if err != nil {
				return err
			}
			return a.dev(cmd.Context(), o, logger)
		},
	}
	f := c.Flags()
	f.IntVar(&o.nodes, "nodes", 3, "how many")
	f.StringVar(&o.data, "data", "", "directory to keep everything in")
	f.IntVar(&o.portBase, "port-base", 7070, "HTTP port of the first node")
	f.StringVar(&logLevel, "log-level", "warn", "debug | info | warn | error")
	return c
}

func (a *app) dev(ctx context.Context, o devOptions, logger *slog.Logger) error {
	if o.data == "" {
		dir, err := os.MkdirTemp("", "penstock-dev-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.data = dir
	}
	data, err := filepath.Abs(o.data)
	if err != nil {
		return err
	}
	o.data = data
	readyBy := time.Now().Add(devReadyWithin)
	ctx, hurry, stop := untilSignalled(ctx)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var configs []config.Config
	for i := range o.nodes {
		cfg := devConfig(o, i)
		if err := cfg.Validate(); err != nil {
			return err
		}
		configs = append(configs, cfg)
	}
	ready := make(chan node.Info, o.nodes)
	errs := make(chan error, o.nodes+1)
	var running sync.WaitGroup
	for _, cfg := range configs {
		running.Go(func() {
			err := node.Run(ctx, cfg, node.Options{Logger: logger, Stdout: a.stdout, Hurry: hurry, Ready: func(i node.Info) { ready <- i }})
			if err != nil {
				errs <- fmt.Errorf("node %s: %w", cfg.Node.ID, err)
			}
			cancel() // the cluster stands and falls as one
		})
	}
	running.Go(func() {
		if err := a.welcome(ctx, o, configs, ready, readyBy); err != nil && ctx.Err() == nil {
			errs <- err
			cancel()
		}
	})
	running.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

// devConfig is node i of a development cluster, counted from 0.
func devConfig(o devOptions, i int) config.Config {
	addr := func(node, port int) string {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(o.portBase+devStep*node+port))
	}
	c := config.Default()
	c.Node.ID = "n" + strconv.Itoa(i+1)
	c.Node.DataDir = filepath.Join(o.data, c.Node.ID)
	c.Node.HTTP, c.Node.Raft, c.Node.Gossip, c.Node.Debug = addr(i, 0), addr(i, 1), addr(i, 2), addr(i, 3)
	c.Cluster.Name = "dev"
	c.WAL.SegmentBytes = 16 << 20 // each is filled with zeros when it is made, which all nodes do at once on one disk
	if o.nodes == 1 {
		c.WAL.Storage = config.StorageDisk
		return c
	}
	for n := range o.nodes {
		c.Cluster.Seeds = append(c.Cluster.Seeds, addr(n, 2))
	}
	return c
}

// demoChannel is the sample channel; its file emitter writes to one directory of all nodes, as on shared storage.
func demoChannel(data string) (spec.Channel, error) {
	c := spec.Channel{
		Name: "demo", Semantics: spec.AtLeastOnce, Order: spec.OrderNone,
		Emitters: []spec.Emitter{{
			Name: "out", Kind: "file", Start: "earliest",
			Compaction: spec.Compaction{Events: 1000, Bytes: 1 << 20, Linger: spec.Duration(20e6)},
			File:       &spec.File{Directory: filepath.Join(data, "out")},
		}},
	}
	c.ApplyDefaults()
	return c, c.Validate()
}

// welcome waits until every node is ready, makes the sample channel, and says so on standard output once the channel's
// emitters have owners, or at readyBy.
func (a *app) welcome(ctx context.Context, o devOptions, configs []config.Config, ready <-chan node.Info, readyBy time.Time) error {
	for range configs {
		select {
		case <-ready:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var addresses []string
	for _, c := range configs {
		addresses = append(addresses, c.Node.HTTP)
	}
	ch, err := demoChannel(o.data)
	if err != nil {
		return fmt.Errorf("sample channel: %w", err)
	}
	c, err := client.New(client.Config{Addresses: addresses})
	if err != nil {
		return err
	}
	defer c.Close()
	err = patiently(ctx, func() error { _, err := c.PutChannel(ctx, ch.Name, ch.Canonical(), client.PutOptions{}); return err })
	if err != nil {
		return fmt.Errorf("sample channel: %w", err)
	}
	if err := awaitOwners(ctx, c, ch.Name, readyBy); err != nil {
		a.talk("%v; events are taken, and delivered once it has one", err)
	}
	out := filepath.Join(o.data, "out")
	if a.output == "json" {
		return json.NewEncoder(a.stdout).Encode(map[string]any{"ready": true, "addresses": addresses, "channel": ch.Name, "data": o.data, "out": out})
	}
	fmt.Fprintf(a.stdout, "READY %s channel=%s out=%s\n", strings.Join(addresses, ","), ch.Name, out)
	a.talk("try: echo '{\"hello\":\"world\"}' | penstock send demo --addr %s; penstock ledger --addr %s; Ctrl-C ends it", addresses[0], addresses[0])
	return nil
}

// awaitOwners waits until each emitter of the channel has an owner, so that the first event is delivered at once, but not
// past the deadline. A leader gives emitters away once the leases of its predecessor are over, 2 s after the election.
func awaitOwners(ctx context.Context, c *client.Client, channel string, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for {
		l, err := c.Ledger(ctx, channel)
		if err == nil && !slices.ContainsFunc(l.Emitters, func(e client.LedgerRow) bool { return e.Owner == "" }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("an emitter of channel %s has no owner yet", channel)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
