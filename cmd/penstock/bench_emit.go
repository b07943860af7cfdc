package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"penstock/internal/client"
	"penstock/internal/load"
	"penstock/internal/spec"
)

// emitFlags are what is measured by bench emit.
type emitFlags struct {
	kind, size, listen string
	events, batch      int
	concurrency        int
	limit, delay       time.Duration
}

// emitResult is what was found.
type emitResult struct {
	Kind            string  `json:"kind"`
	Events          int64   `json:"events"`
	Delivered       uint64  `json:"delivered"`
	Batch           int     `json:"batch"`
	Size            int     `json:"size_bytes"`
	Concurrency     int     `json:"concurrency"`
	Seconds         float64 `json:"seconds"` // from resume to the last outcome committed
	EventsPerSecond float64 `json:"events_per_second"`
	Requests        int64   `json:"requests,omitempty"`          // the receiver got
	BytesReceived   int64   `json:"bytes_received,omitempty"`    //
	ClientCPU       float64 `json:"client_cpu_seconds"`          // of this process: the receiver
	ServerCPU       float64 `json:"server_cpu_seconds"`          // of all nodes; 0 when they could not all be asked
	Per100k         float64 `json:"server_cpu_per_100k_seconds"` //
}

func (a *app) benchEmit() *cobra.Command {
	var f emitFlags
	c := &cobra.Command{
		Use:   "emit",
		Short: "Measure delivery from the log to a webhook receiver or files",
		Long: "Makes a channel with one paused emitter, fills it, resumes the emitter, and measures until the outcome of the last event is\n" +
			"committed. The webhook receiver is this process; it answers 200 (after --delay). The channel is removed again; files of the\n" +
			"file emitter stay under bench-emit in the data directory of the node that owned it.",
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.emit(cmd.Context(), f) },
	}
	fs := c.Flags()
	fs.StringVar(&f.kind, "kind", spec.KindWebhook, "webhook | file")
	fs.IntVar(&f.events, "events", 20_000, "events to deliver")
	fs.IntVar(&f.batch, "batch", 1, "events of one compaction: of one request, or one file")
	fs.StringVar(&f.size, "size", "1KiB", "data of one event")
	fs.IntVar(&f.concurrency, "concurrency", 16, "attempts at once")
	fs.DurationVar(&f.limit, "duration", 2*time.Minute, "give up after this long")
	fs.DurationVar(&f.delay, "delay", 0, "how long the receiver takes to answer")
	fs.StringVar(&f.listen, "listen", "127.0.0.1:0", "where the receiver listens; the nodes must reach it there")
	return c
}

func (a *app) emit(ctx context.Context, f emitFlags) error {
	var size spec.Size
	switch err := size.UnmarshalText([]byte(f.size)); {
	case err != nil || size < 1 || size > load.MaxSize:
		return usageError{fmt.Errorf("--size %q: want a size with a unit, as 1KiB", f.size)}
	case f.kind != spec.KindWebhook && f.kind != spec.KindFile:
		return usageError{fmt.Errorf("--kind %q: want webhook or file", f.kind)}
	case f.events < 1 || f.batch < 1 || f.batch > load.MaxBatch || f.concurrency < 1 || f.limit <= 0:
		return usageError{errors.New("--events, --batch, --concurrency and --duration must be positive")}
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := interruptible(ctx)
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, f.limit)
	defer stop()
	rec, err := startReceiver(f.listen, f.delay)
	if err != nil {
		return err
	}
	defer rec.close()
	r := &emitResult{Kind: f.kind, Batch: f.batch, Size: int(size), Concurrency: f.concurrency}
	if err := a.emitOnce(ctx, c, f, rec, r); err != nil {
		return err
	}
	return a.print(r, func(w io.Writer) {
		row(w, "delivered:", fmt.Sprintf("%d events in compactions of %d, %.2f s, %.0f events/s", r.Delivered, r.Batch, r.Seconds, r.EventsPerSecond))
		row(w, "received:", fmt.Sprintf("%d requests, %d bytes", r.Requests, r.BytesReceived))
		row(w, "CPU of this client:", fmt.Sprintf("%.2f s", r.ClientCPU))
		row(w, "CPU of all nodes:", fmt.Sprintf("%.2f s, %.2f s per 100000 events", r.ServerCPU, r.Per100k))
	})
}

// emitOnce fills a channel of its own, lets it be delivered, and removes it.
func (a *app) emitOnce(ctx context.Context, c *client.Client, f emitFlags, rec *receiver, r *emitResult) error {
	name, err := f.channel(ctx, c, rec)
	if err != nil {
		return err
	}
	defer func() {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if err := c.DeleteChannel(after, name, client.PutOptions{Discard: true}); err != nil {
			a.talk("penstock: channel %s was not removed: %v", name, err)
		}
	}()
	if err := c.PauseEmitter(ctx, name, emitterName, true, "bench"); err != nil {
		return err
	}
	members, err := c.Cluster(ctx)
	if err != nil {
		return err
	}
	if r.Events, err = a.fill(ctx, f, r, name); err != nil {
		return err
	}
	before, berr := serverCPU(ctx, members)
	own, start := load.CPUSeconds(), time.Now()
	if err := c.PauseEmitter(ctx, name, emitterName, false, "bench"); err != nil {
		return err
	}
	if r.Delivered, err = delivered(ctx, c, name, uint64(r.Events)); err != nil {
		return err
	}
	r.Events = int64(r.Delivered)
	r.Seconds, r.ClientCPU = time.Since(start).Seconds(), load.CPUSeconds()-own
	if after, err := serverCPU(ctx, members); err == nil && berr == nil {
		r.ServerCPU = after - before
		r.Per100k = r.ServerCPU / float64(r.Delivered) * 1e5
	}
	r.EventsPerSecond = float64(r.Delivered) / r.Seconds
	r.Requests, r.BytesReceived = rec.requests.Load(), rec.bytes.Load()
	return nil
}

const emitterName = "bench"

func (f *emitFlags) channel(ctx context.Context, c *client.Client, rec *receiver) (name string, err error) {
	id := make([]byte, 6)
	if _, err := rand.Read(id); err != nil {
		return "", err
	}
	name = "bench-emit-" + hex.EncodeToString(id)
	ch := spec.Channel{Name: name, Semantics: spec.AtLeastOnce, Order: spec.OrderNone, Dedup: spec.Dedup{OnFull: "shorten"}}
	e := spec.Emitter{
		Name: emitterName, Kind: f.kind, Start: "earliest", Concurrency: f.concurrency,
		Compaction: spec.Compaction{Events: f.batch, Linger: spec.Duration(100 * time.Millisecond)},
	}
	if f.batch == 1 {
		e.Compaction.Linger = 0
	}
	switch f.kind {
	case spec.KindWebhook:
		e.Webhook = &spec.Webhook{URL: rec.url}
	case spec.KindFile:
		e.File = &spec.File{Directory: "bench-emit"}
	}
	ch.Emitters = []spec.Emitter{e}
	ch.ApplyDefaults()
	b, err := json.Marshal(ch)
	if err != nil {
		return "", err
	}
	_, err = c.PutChannel(ctx, name, b, client.PutOptions{})
	return name, err
}

// fill ingests the events and gives how many there are at least.
func (a *app) fill(ctx context.Context, f emitFlags, r *emitResult, channel string) (int64, error) {
	addresses, err := targets("given", client.SplitAddresses(a.addr), client.Cluster{})
	if err != nil {
		return 0, err
	}
	filled, err := load.Run(ctx, load.Config{
		Addresses: addresses, Channel: channel, Events: f.events, Duration: f.limit, Size: r.Size, Batch: min(100, f.events),
		Payload: load.JSON, Connections: 8, Timeout: a.timeout, Seed: 1,
	})
	if err != nil {
		return 0, err
	}
	if filled.Failed() { // the ledger says how many there are
		a.talk("penstock: filling the channel: %d events refused, %d unknown, %d not sent: %v", filled.Refused, filled.Unknown, filled.NotSent, filled.Faults)
	}
	if filled.Accepted == 0 {
		return 0, errors.New("the channel could not be filled")
	}
	return filled.Accepted, nil
}

// delivered waits until all accepted events are, at least n.
func delivered(ctx context.Context, c *client.Client, channel string, n uint64) (uint64, error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var e client.LedgerRow
	for {
		l, err := c.Ledger(ctx, channel)
		if err == nil && len(l.Emitters) == 1 {
			e = l.Emitters[0]
			switch {
			case l.Accepted >= n && e.Delivered == l.Accepted:
				return e.Delivered, nil
			case l.Accepted >= n && e.Pending == 0 && e.Sum() == l.Accepted:
				return e.Delivered, fmt.Errorf("%d events were not delivered: %+v", l.Accepted-e.Delivered, e)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return e.Delivered, fmt.Errorf("%d of %d events were delivered in time", e.Delivered, n)
		}
	}
}

// receiver is a webhook that takes everything.
type receiver struct {
	url             string
	server          *http.Server
	requests, bytes atomic.Int64
}

func startReceiver(listen string, delay time.Duration) (*receiver, error) {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	r := &receiver{url: "http://" + l.Addr().String() + "/"}
	r.server = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		n, err := io.Copy(io.Discard, q.Body)
		if err != nil {
			return
		}
		if delay > 0 {
			time.Sleep(delay)
		}
		r.requests.Add(1)
		r.bytes.Add(n)
	})}
	go func() { _ = r.server.Serve(l) }()
	return r, nil
}

func (r *receiver) close() { _ = r.server.Close() }
