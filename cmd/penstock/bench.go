package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock/internal/client"
	"penstock/internal/load"
	"penstock/internal/spec"
)

func (a *app) benchCommand() *cobra.Command {
	c := group(&cobra.Command{Use: "bench", Short: "Measure a running cluster"})
	c.AddCommand(a.benchIngest(), a.benchEmit())
	return c
}

// ingestFlags are what becomes a load.Config.
type ingestFlags struct {
	cfg   load.Config
	size  string
	files []string
	to    string
}

func (a *app) benchIngest() *cobra.Command {
	var f ingestFlags
	c := &cobra.Command{
		Use:   "ingest [CHANNEL]",
		Short: "Send events and measure rate and latency",
		Long: "Sends events with ids of their own to a channel (default: bench, made without emitters when it is not there) until --events or\n" +
			"--duration is reached. Without --rate each answer is followed by the next request (closed loop); with it requests follow a\n" +
			"schedule, and latency counts from when a request was due, so that a stall is seen by all the requests it held up.\n\n" +
			"Nothing is repeated: what was refused, not sent, or has an unknown outcome is counted apart. Exit code 1 when there is any of\n" +
			"these, 4 when an outcome is unknown.",
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, list []string) error {
			var size spec.Size
			if err := size.UnmarshalText([]byte(f.size)); err != nil {
				return usageError{fmt.Errorf("--size %q: want a size with a unit, as 1KiB", f.size)}
			}
			f.cfg.Size, f.cfg.Channel, f.cfg.Timeout = int(size), "bench", a.timeout
			if len(list) == 1 {
				f.cfg.Channel = list[0]
			}
			return a.ingest(cmd.Context(), f)
		},
	}
	fs := c.Flags()
	fs.IntVar(&f.cfg.Events, "events", 100_000, "events to send at most, rounded up to whole requests")
	fs.DurationVar(&f.cfg.Duration, "duration", time.Minute, "how long to send at most")
	fs.StringVar(&f.size, "size", "1KiB", "data of one event")
	fs.IntVar(&f.cfg.Batch, "batch", 1, "events of one request")
	fs.IntVar(&f.cfg.Connections, "connections", 16, "connections, opened before the clock starts")
	fs.IntVar(&f.cfg.InFlight, "in-flight", 0, "requests under way at most (default: one on each connection)")
	fs.Float64Var(&f.cfg.Rate, "rate", 0, "events per second on a schedule (open loop); 0 is a closed loop")
	fs.StringVar(&f.cfg.Payload, "payload", load.JSON, "json (shaped like webhooks, padded to --size) | random | files")
	fs.StringSliceVar(&f.files, "file", nil, "JSON (one value) or NDJSON files for --payload files; --size does not count then")
	fs.StringVar(&f.to, "to", "given", "given (the addresses of --addr, in turn) | leader | all (members)")
	fs.Uint64Var(&f.cfg.Seed, "seed", 1, "of the payloads; ids differ in each run")
	return c
}

func (a *app) ingest(ctx context.Context, f ingestFlags) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := interruptible(ctx)
	defer cancel()
	if f.cfg.Texts, err = readTexts(f.files); err != nil {
		return err
	}
	members, err := c.Cluster(ctx)
	if err != nil {
		return err
	}
	if f.cfg.Addresses, err = targets(f.to, client.SplitAddresses(a.addr), members); err != nil {
		return err
	}
	if err := f.cfg.Validate(); err != nil {
		return usageError{err}
	}
	if err := benchChannel(ctx, c, f.cfg.Channel); err != nil {
		return err
	}
	before, berr := serverCPU(ctx, members)
	r, err := load.Run(ctx, f.cfg)
	if err != nil {
		return err
	}
	if after, err := serverCPU(context.WithoutCancel(ctx), members); err == nil && berr == nil {
		used := after - before
		r.ServerCPU = &used
	}
	if err := a.print(r, func(w io.Writer) { ingestTable(w, r) }); err != nil {
		return err
	}
	switch {
	case r.Unknown > 0:
		return errActUnknown
	case r.Failed():
		return errReported
	}
	return nil
}

func ingestTable(w io.Writer, r *load.Result) {
	row(w, "sent:", fmt.Sprintf("%d events in %d requests, %.2f s", r.Events, r.Requests, r.Seconds))
	row(w, "accepted:", fmt.Sprintf("%d, %.0f events/s, %.1f MB/s", r.Accepted, r.EventsPerSecond, r.EventsPerSecond*float64(r.Size)/1e6))
	row(w, "duplicates:", r.Duplicates)
	row(w, "refused:", r.Refused)
	row(w, "unknown:", r.Unknown)
	row(w, "not sent:", r.NotSent)
	for _, text := range sortedKeys(r.Faults) {
		row(w, "", fmt.Sprintf("%d times %s", r.Faults[text], text))
	}
	l := func(name string, l load.Latency) {
		row(w, name, fmt.Sprintf("p50 %.3f  p90 %.3f  p99 %.3f  p99.9 %.3f  max %.3f ms", l.P50, l.P90, l.P99, l.P999, l.Max))
	}
	l("latency:", r.Latency)
	if r.Service != nil {
		l("of that service:", *r.Service)
	}
	row(w, "CPU of this client:", fmt.Sprintf("%.2f s, %.2f s per 100000 events", r.ClientCPU, r.Per100k(r.ClientCPU)))
	if r.ServerCPU != nil {
		row(w, "CPU of all nodes:", fmt.Sprintf("%.2f s, %.2f s per 100000 events", *r.ServerCPU, r.Per100k(*r.ServerCPU)))
	}
}

func sortedKeys(m map[string]int64) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// targets are the addresses to send to.
func targets(to string, given []string, c client.Cluster) ([]string, error) {
	var out []string
	switch to {
	case "given":
		for _, g := range given {
			if strings.HasPrefix(g, "https://") {
				return nil, usageError{fmt.Errorf("%s: the load generator speaks plain HTTP only", g)}
			}
			out = append(out, strings.TrimPrefix(g, "http://"))
		}
	case "all", "leader":
		for _, m := range c.Members {
			if m.HTTP != "" && (to == "all" || m.ID == c.Leader) {
				out = append(out, m.HTTP)
			}
		}
		if len(out) == 0 {
			return nil, fmt.Errorf("--to %s: no such node is known (leader %q)", to, c.Leader)
		}
	default:
		return nil, usageError{fmt.Errorf("--to %q: want given, leader or all", to)}
	}
	return out, nil
}

// benchChannel makes the channel when it is not there. It deduplicates, keeps nothing, and never refuses for the number of ids.
func benchChannel(ctx context.Context, c *client.Client, name string) error {
	_, err := c.Channel(ctx, name)
	if !client.NotFound(err) {
		return err
	}
	s := json.RawMessage(`{"name":` + quote(name) + `,"semantics":"at-least-once","order":"none","dedup":{"on_full":"shorten"},"retention":{"keep":"0s"},"emitters":[]}`)
	_, err = c.PutChannel(ctx, name, s, client.PutOptions{})
	return err
}

func quote(s string) string {
	b, _ := json.Marshal(s) // a string always can be
	return string(b)
}

// readTexts reads the values of --payload files: each line of an .ndjson or .jsonl file, or the whole of another.
func readTexts(files []string) ([][]byte, error) {
	var out [][]byte
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		lines := [][]byte{b}
		if strings.HasSuffix(name, ".ndjson") || strings.HasSuffix(name, ".jsonl") {
			lines = bytes.Split(b, []byte{'\n'})
		}
		for _, l := range lines {
			if len(bytes.TrimSpace(l)) == 0 {
				continue
			}
			var one bytes.Buffer
			if err := json.Compact(&one, l); err != nil { // one line each, for NDJSON
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			out = append(out, one.Bytes())
		}
	}
	if len(files) > 0 && len(out) == 0 {
		return nil, errors.New("--file: no JSON value in there")
	}
	return out, nil
}
