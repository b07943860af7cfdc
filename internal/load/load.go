// Package load is the load generator of `penstock bench ingest` and the shape of what it finds, which the comparison under
// bench/ shares.
//
// It promises to be lean, so that it is not what is measured: requests are laid out before the clock starts, only their ids
// are written while it runs, and connections are plain HTTP/1.1 without a transport in between. Every event has an id that no
// earlier run used. A run ends by itself, at its number of events or its time, whichever comes first, and each request by its
// timeout. It repeats nothing: what was refused, and what has an unknown outcome, is counted apart (P7).
package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Config is one run.
type Config struct {
	// Addresses are the nodes, host:port; connections go to them in turn.
	Addresses []string
	Channel   string
	// Events is how many to send at most, rounded up to whole requests; Duration how long. Both are bounds, and required.
	Events   int
	Duration time.Duration
	// Size is the bytes of an event's data, Batch the events of one request.
	Size, Batch int
	// Payload is the kind: Random, JSON, or Files with Texts, each one JSON value.
	Payload string
	Texts   [][]byte
	// Connections are opened before the clock starts. InFlight bounds the requests under way; HTTP/1.1 has at most one on a
	// connection. 0 is as many as connections.
	Connections, InFlight int
	// Rate is events per second, sent on a schedule that does not wait for answers (open loop); 0 sends the next request when
	// one is answered (closed loop). In an open loop latency counts from the moment a request was due, so that a stall of the
	// server is seen by all the requests it held up (no coordinated omission).
	Rate float64
	// Timeout bounds one request.
	Timeout time.Duration
	// Seed makes the payloads, not the ids, the same on each run.
	Seed uint64
}

// The bounds of a run.
const (
	MaxSize        = 1 << 20
	MaxBatch       = 10_000
	MaxConnections = 4096
	MaxDuration    = 24 * time.Hour
)

// Validate says what is wrong with c.
func (c *Config) Validate() error {
	switch {
	case len(c.Addresses) == 0:
		return errors.New("no address")
	case c.Events < 1:
		return fmt.Errorf("%d events: want at least 1", c.Events)
	case c.Duration <= 0 || c.Duration > MaxDuration:
		return fmt.Errorf("a duration of %s: want more than 0s, up to %s", c.Duration, MaxDuration)
	case c.Size < 1 || c.Size > MaxSize:
		return fmt.Errorf("a size of %d bytes: want 1 to %d", c.Size, MaxSize)
	case c.Batch < 1 || c.Batch > MaxBatch:
		return fmt.Errorf("a batch of %d events: want 1 to %d", c.Batch, MaxBatch)
	case c.Connections < 1 || c.Connections > MaxConnections:
		return fmt.Errorf("%d connections: want 1 to %d", c.Connections, MaxConnections)
	case c.InFlight < 0 || c.InFlight > c.Connections:
		return fmt.Errorf("%d requests in flight: want at most one for each of the %d connections", c.InFlight, c.Connections)
	case c.Rate < 0:
		return fmt.Errorf("a rate of %g: want 0 (closed loop) or more", c.Rate)
	case c.Timeout <= 0:
		return fmt.Errorf("a timeout of %s", c.Timeout)
	case c.Payload == Files && len(c.Texts) == 0:
		return errors.New("payload files: no file given")
	case c.Payload != Files && c.Payload != Random && c.Payload != JSON:
		return fmt.Errorf("payload %q: want %s, %s or %s", c.Payload, JSON, Random, Files)
	}
	return nil
}

// run is what the workers of one run share.
type run struct {
	cfg      Config
	requests []*request
	next     atomic.Int64 // number of the next request
	total    int64
	start    time.Time
	every    time.Duration // between two requests of an open loop, 0 in a closed one
	idle     chan *conn
}

// Run sends until the bounds are reached or ctx ends.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.InFlight == 0 {
		cfg.InFlight = cfg.Connections
	}
	requests, err := layOut(cfg)
	if err != nil {
		return nil, err
	}
	r := &run{cfg: cfg, requests: requests, total: int64((cfg.Events + cfg.Batch - 1) / cfg.Batch), idle: make(chan *conn, cfg.Connections)}
	if cfg.Rate > 0 {
		r.every = time.Duration(float64(cfg.Batch) / cfg.Rate * float64(time.Second))
	}
	defer r.close()
	for i := range cfg.Connections {
		c := &conn{address: cfg.Addresses[i%len(cfg.Addresses)], timeout: cfg.Timeout}
		if err := c.open(ctx); err != nil {
			return nil, fmt.Errorf("connect to %s: %w", c.address, err)
		}
		r.idle <- c
	}
	return r.measure(ctx), nil
}

func (r *run) close() {
	for range len(r.idle) {
		(<-r.idle).close()
	}
}

func (r *run) measure(ctx context.Context) *Result {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Duration)
	defer cancel()
	workers := make([]*worker, r.cfg.InFlight)
	for i := range workers {
		workers[i] = newWorker(r)
	}
	cpu := CPUSeconds()
	r.start = time.Now()
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(func() { w.run(ctx) })
	}
	wg.Wait()
	took := time.Since(r.start)
	out := newResult(r.cfg)
	for _, w := range workers {
		out.merge(&w.tally, w.latency, w.service)
	}
	out.finish(took, CPUSeconds()-cpu)
	return out
}

// turn gives the number of the next request and waits until it is due. In an open loop due is when that is, else the zero time.
func (r *run) turn(ctx context.Context) (n int64, due time.Time, ok bool) {
	n = r.next.Add(1) - 1
	if n >= r.total || ctx.Err() != nil {
		return 0, due, false
	}
	if r.every == 0 {
		return n, due, true
	}
	due = r.start.Add(time.Duration(n) * r.every)
	wait := time.Until(due)
	if wait <= 0 {
		return n, due, true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return n, due, true
	case <-ctx.Done():
		return 0, due, false
	}
}
