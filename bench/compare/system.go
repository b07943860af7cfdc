package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"penstock/internal/load"
)

const eventBytes = 1024

// system is three processes that keep messages.
type system interface {
	name() string
	start(dir string) error
	processes() []*process
	rows() []row
	// load sends for so long as the row says.
	load(ctx context.Context, r row, d time.Duration) (sent, error)
	stop()
}

// row is one kind of load.
type row struct {
	name                  string
	inFlight, batch, size int
	payload               string
}

// sent is what a client found.
type sent struct {
	events, bytes int64
	seconds       float64
	p50, p99      float64 // ms, of a request or message
	clientCPU     float64
}

// measured is one row of one round.
type measured struct {
	rate, megabytes, p50, p99 float64
	serverCPU, clientCPU      float64 // seconds per 100 000 events
	amplification             float64 // bytes written to the device for one of payload
	peak                      float64 // MiB of the largest process
}

// key names a row of a system.
type key struct{ system, row string }

// compareIngest runs all systems, round after round, and gives all that was measured.
func compareIngest(ctx context.Context, o options) (map[key][]measured, map[string][]float64, error) {
	out, disk := map[key][]measured{}, map[string][]float64{}
	for round := range o.rounds {
		if err := measureDisk(o.dir, disk); err != nil {
			return nil, nil, err
		}
		list := systems(o)
		n := len(list)
		for i := range list { // each round starts with another
			s := list[(i+round)%n]
			if err := measureSystem(ctx, o, s, out); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", s.name(), err)
			}
		}
	}
	return out, disk, nil
}

func measureSystem(ctx context.Context, o options, s system, out map[key][]measured) error {
	dir := filepath.Join(o.dir, "run")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	defer s.stop()
	if err := s.start(dir); err != nil {
		return err
	}
	for i, r := range s.rows() {
		if i == 0 { // what is set up once: files, connections, tables
			if _, err := s.load(ctx, r, time.Second); err != nil {
				return fmt.Errorf("warm up: %w", err)
			}
		}
		if err := settle(o.dir); err != nil {
			return err
		}
		m, err := measureRow(ctx, o, s, r)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		fmt.Fprintf(os.Stderr, "%-44s %-32s %9.0f/s p50 %7.2f ms, %6.2f CPU s per 100k\n", s.name(), r.name, m.rate, m.p50, m.serverCPU)
		k := key{s.name(), r.name}
		out[k] = append(out[k], m)
	}
	return nil
}

// settle waits until the disk is written no more: what the row before left to be done, files that are prepared ahead.
func settle(dir string) error {
	deadline, last := time.Now().Add(10*time.Second), int64(-1)
	for time.Now().Before(deadline) {
		written, err := diskWritten(dir)
		if err != nil {
			return err
		}
		if last >= 0 && written-last < 1<<20 { // terms, heartbeats and marks are written all the time
			return nil
		}
		last = written
		time.Sleep(400 * time.Millisecond)
	}
	return nil
}

func measureRow(ctx context.Context, o options, s system, r row) (measured, error) {
	resetPeak(s.processes())
	before, err := usageOf(s.processes())
	if err != nil {
		return measured{}, err
	}
	onDisk, err := diskWritten(o.dir)
	if err != nil {
		return measured{}, err
	}
	c, err := s.load(ctx, r, o.duration())
	if err != nil {
		return measured{}, err
	}
	written, err := diskWritten(o.dir)
	if err != nil {
		return measured{}, err
	}
	after, err := usageOf(s.processes())
	if err != nil {
		return measured{}, err
	}
	n := float64(max(c.events, 1)) / 1e5
	return measured{
		rate: float64(c.events) / c.seconds, megabytes: float64(c.bytes) / c.seconds / 1e6, p50: c.p50, p99: c.p99,
		serverCPU: (after.cpu - before.cpu) / n, clientCPU: c.clientCPU / n,
		amplification: float64(written-onDisk) / float64(max(c.bytes, 1)), peak: float64(after.peak) / (1 << 20),
	}, nil
}

func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

// window sends messages with a bound on those that are not acknowledged yet, in the order of their acknowledgements. publish sends
// one and gives what waits for its acknowledgement.
func window(ctx context.Context, inFlight int, d time.Duration, publish func(data []byte) (wait func() error, err error)) (sent, error) {
	type flying struct {
		at   time.Time
		wait func() error
	}
	h := hdrhistogram.New(1, 600_000_000, 3)
	data := noise(eventBytes)
	queue := make(chan flying, inFlight-1)
	if inFlight == 1 {
		queue = make(chan flying)
	}
	slots := make(chan struct{}, inFlight)
	failed := make(chan error, 1)
	out, cpu, begin := sent{}, load.CPUSeconds(), time.Now()
	go func() {
		defer close(failed)
		for f := range queue {
			err := f.wait()
			<-slots
			if err != nil {
				failed <- err
				for range queue { //nolint:revive // the sender must not hang
					<-slots
				}
				return
			}
			_ = h.RecordValue(max(1, time.Since(f.at).Microseconds()))
			out.events++
		}
	}()
	var err error
	for err == nil && ctx.Err() == nil && time.Since(begin) < d {
		slots <- struct{}{}
		at := time.Now()
		var wait func() error
		if wait, err = publish(data); err == nil {
			queue <- flying{at, wait}
		}
	}
	close(queue)
	if ferr := <-failed; ferr != nil {
		err = ferr
	}
	if err != nil {
		return sent{}, err
	}
	out.seconds, out.clientCPU, out.bytes = time.Since(begin).Seconds(), load.CPUSeconds()-cpu, out.events*eventBytes
	out.p50, out.p99 = float64(h.ValueAtQuantile(50))/1000, float64(h.ValueAtQuantile(99))/1000
	return out, ctx.Err()
}

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}
