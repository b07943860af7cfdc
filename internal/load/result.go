package load

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Result is what a run found. Requests, and events, are each in exactly one place:
//
//	events = accepted + duplicates + refused + unknown + not_sent
type Result struct {
	Channel     string  `json:"channel"`
	Payload     string  `json:"payload"`
	Size        int     `json:"size_bytes"`
	Batch       int     `json:"batch"`
	Connections int     `json:"connections"`
	InFlight    int     `json:"in_flight"`
	Rate        float64 `json:"rate"` // events per second asked for; 0 is a closed loop
	tally
	Seconds         float64 `json:"seconds"`
	EventsPerSecond float64 `json:"events_per_second"` // accepted
	// Latency is in a closed loop from a request's start to its answer; in an open loop from when it was due, and Service from
	// its start. Requests that were answered 200 only.
	Latency Latency  `json:"latency_ms"`
	Service *Latency `json:"service_ms,omitempty"`
	// Corrected: Latency holds no coordinated omission.
	Corrected bool `json:"corrected"`
	// ClientCPU is user and system time of this process while it measured; ServerCPU that of the nodes, by their own
	// metrics, when they could all be asked.
	ClientCPU float64  `json:"client_cpu_seconds"`
	ServerCPU *float64 `json:"server_cpu_seconds,omitempty"`

	latency, service *hdrhistogram.Histogram
}

// tally counts requests and events.
type tally struct {
	Requests   int64 `json:"requests"`
	Answered   int64 `json:"answered"` // requests with a 200
	Events     int64 `json:"events"`
	Accepted   int64 `json:"accepted"`
	Duplicates int64 `json:"duplicates"`
	Poisoned   int64 `json:"poisoned"` // of the accepted
	Refused    int64 `json:"refused"`  // certainly not committed
	Unknown    int64 `json:"unknown"`  // may be committed or not
	NotSent    int64 `json:"not_sent"`
	BytesSent  int64 `json:"bytes_sent"`
	// Faults are requests by what went wrong; at most maxFaults kinds, the rest under "other".
	Faults map[string]int64 `json:"faults"`
}

const maxFaults = 20

func newTally() tally { return tally{Faults: map[string]int64{}} }

func (t *tally) fault(err error) { t.count(faultText(err), 1) }

func (t *tally) count(text string, n int64) {
	if _, known := t.Faults[text]; !known && len(t.Faults) >= maxFaults {
		text = "other"
	}
	t.Faults[text] += n
}

// faultText leaves out what differs from connection to connection.
func faultText(err error) string {
	if n, ok := err.(*net.OpError); ok {
		err = fmt.Errorf("%s: %w", n.Op, n.Err)
	}
	return fmt.Sprintf("%.200s", err)
}

// kindOf is the last part of a problem's type.
func kindOf(problemType string) string {
	if problemType == "" {
		return "(no problem document)"
	}
	return problemType[strings.LastIndexByte(problemType, ':')+1:]
}

// Latency is a distribution, in milliseconds.
type Latency struct {
	Min  float64 `json:"min"`
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

func latencyOf(h *hdrhistogram.Histogram) Latency {
	ms := func(us int64) float64 { return float64(us) / 1000 }
	if h.TotalCount() == 0 {
		return Latency{}
	}
	return Latency{
		Min: ms(h.Min()), Mean: h.Mean() / 1000, P50: ms(h.ValueAtQuantile(50)), P90: ms(h.ValueAtQuantile(90)), P99: ms(h.ValueAtQuantile(99)),
		P999: ms(h.ValueAtQuantile(99.9)), Max: ms(h.Max()),
	}
}

func newResult(cfg Config) *Result {
	r := &Result{
		Channel: cfg.Channel, Payload: cfg.Payload, Size: cfg.Size, Batch: cfg.Batch, Connections: cfg.Connections, InFlight: cfg.InFlight,
		Rate: cfg.Rate, Corrected: cfg.Rate > 0, tally: newTally(), latency: newHistogram(),
	}
	if cfg.Rate > 0 {
		r.service = newHistogram()
	}
	return r
}

func (r *Result) merge(t *tally, latency, service *hdrhistogram.Histogram) {
	r.Requests += t.Requests
	r.Answered += t.Answered
	r.Events += t.Events
	r.Accepted += t.Accepted
	r.Duplicates += t.Duplicates
	r.Poisoned += t.Poisoned
	r.Refused += t.Refused
	r.Unknown += t.Unknown
	r.NotSent += t.NotSent
	r.BytesSent += t.BytesSent
	for text, n := range t.Faults {
		r.count(text, n)
	}
	r.latency.Merge(latency)
	if service != nil {
		r.service.Merge(service)
	}
}

func (r *Result) finish(took time.Duration, cpu float64) {
	r.Seconds, r.ClientCPU = took.Seconds(), cpu
	r.EventsPerSecond = float64(r.Accepted) / max(r.Seconds, 1e-9)
	r.Latency = latencyOf(r.latency)
	if r.service != nil {
		s := latencyOf(r.service)
		r.Service = &s
	}
}

// Failed tells whether some events were not accepted for sure.
func (r *Result) Failed() bool { return r.Refused+r.Unknown+r.NotSent > 0 }

// Per100k gives CPU seconds for 100 000 accepted events.
func (r *Result) Per100k(cpu float64) float64 { return cpu / max(float64(r.Accepted), 1) * 1e5 }
