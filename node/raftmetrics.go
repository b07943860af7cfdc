package node

import (
	"strings"
	"sync"

	metrics "github.com/hashicorp/go-metrics/compat"
	"github.com/prometheus/client_golang/prometheus"
)

// Raft, its stable store and memberlist report to one place of the process, by names of their own that come and go with their versions.
// What is worth watching of it is shown under names that stay. Several nodes in one process (penstock dev) show the same sums.
const (
	bridgedCount   = iota // a counter
	bridgedValue          // a gauge
	bridgedSeconds        // a histogram; the libraries report milliseconds
)

var bridged = []struct {
	key, name, help string
	kind            int
}{
	{"raft.commitTime", "penstock_raft_commit_seconds", "Raft: from the append of an entry on the leader to its commit.", bridgedSeconds},
	{"raft.leader.dispatchLog", "penstock_raft_dispatch_seconds", "Raft: time the leader takes to write entries to its own log.", bridgedSeconds},
	{"raft.rpc.appendEntries.storeLogs", "penstock_raft_store_seconds", "Raft: time a follower takes to write entries to its log.", bridgedSeconds},
	{"raft.fsm.apply", "penstock_raft_apply_seconds", "Raft: time to apply one entry to the state machine.", bridgedSeconds},
	{"raft.leader.lastContact", "penstock_raft_last_contact_seconds", "Raft: how long ago a majority last answered the leader; near cluster.lease it steps down.", bridgedSeconds},
	{"raft.snapshot.persist", "penstock_raft_snapshot_seconds", "Raft: time to write a snapshot.", bridgedSeconds},
	{"raft.state.leader", "penstock_raft_elections_won_total", "Raft: times this node became the leader.", bridgedCount},
	{"raft.state.candidate", "penstock_raft_candidacies_total", "Raft: times this node asked to be elected.", bridgedCount},
	{"raft.transition.heartbeat_timeout", "penstock_raft_heartbeat_timeouts_total", "Raft: times this node missed its leader.", bridgedCount},
	{"raft.transition.leader_lease_timeout", "penstock_raft_lease_timeouts_total", "Raft: times this leader stepped down for want of a majority.", bridgedCount},
	{"raft.thread.main.saturation", "penstock_raft_main_busy_ratio", "Raft: share of time its main loop is busy; near 1 it is the bottleneck.", bridgedValue},
	{"raft.thread.fsm.saturation", "penstock_raft_fsm_busy_ratio", "Raft: share of time the state machine is busy; near 1 it is the bottleneck.", bridgedValue},
	{"raft.boltdb.writeCapacity", "penstock_raft_stable_writes_per_second", "Writes a second that the stable store (term and vote) could take.", bridgedValue},
	{"memberlist.health.score", "penstock_gossip_health_score", "Gossip: 0 is well; higher, and this node itself is slow or loses packets.", bridgedValue},
	{"memberlist.msg.suspect", "penstock_gossip_suspicions_total", "Gossip: times a node was suspected to be dead.", bridgedCount},
	{"memberlist.msg.dead", "penstock_gossip_deaths_total", "Gossip: times a node was taken for dead.", bridgedCount},
	{"memberlist.degraded.timeout", "penstock_gossip_probe_timeouts_total", "Gossip: probes of other nodes without an answer in time.", bridgedCount},
	{"memberlist.udp.sent", "penstock_gossip_sent_bytes_total", "Gossip: bytes sent in packets.", bridgedCount},
	{"memberlist.udp.received", "penstock_gossip_received_bytes_total", "Gossip: bytes received in packets.", bridgedCount},
}

// bridge is the sink that the libraries report to. It keeps nothing of what it does not know, and no label: those are of peers.
type bridge struct {
	counts  map[string]prometheus.Counter
	values  map[string]prometheus.Gauge
	seconds map[string]prometheus.Histogram
	all     []prometheus.Collector
}

// processBridge is made once in a process: that is how the libraries want it.
var processBridge = sync.OnceValues(func() (*bridge, error) {
	b := &bridge{counts: map[string]prometheus.Counter{}, values: map[string]prometheus.Gauge{}, seconds: map[string]prometheus.Histogram{}}
	for _, m := range bridged {
		switch m.kind {
		case bridgedCount:
			b.counts[m.key] = prometheus.NewCounter(prometheus.CounterOpts{Name: m.name, Help: m.help})
			b.all = append(b.all, b.counts[m.key])
		case bridgedValue:
			b.values[m.key] = prometheus.NewGauge(prometheus.GaugeOpts{Name: m.name, Help: m.help})
			b.all = append(b.all, b.values[m.key])
		case bridgedSeconds:
			b.seconds[m.key] = prometheus.NewHistogram(prometheus.HistogramOpts{Name: m.name, Help: m.help, Buckets: prometheus.ExponentialBuckets(0.0001, 3, 11)})
			b.all = append(b.all, b.seconds[m.key])
		}
	}
	cfg := metrics.DefaultConfig("")
	cfg.EnableHostname, cfg.EnableRuntimeMetrics, cfg.EnableTypePrefix = false, false, false
	_, err := metrics.NewGlobal(cfg, b)
	return b, err
})

// SetGauge implements metrics.MetricSink.
func (b *bridge) SetGauge(key []string, v float32) {
	if g, ok := b.values[strings.Join(key, ".")]; ok {
		g.Set(float64(v))
	}
}

// IncrCounter implements metrics.MetricSink.
func (b *bridge) IncrCounter(key []string, v float32) {
	if c, ok := b.counts[strings.Join(key, ".")]; ok && v >= 0 {
		c.Add(float64(v))
	}
}

// AddSample implements metrics.MetricSink. What some versions report as a sample and others as a gauge is a gauge here.
func (b *bridge) AddSample(key []string, v float32) {
	k := strings.Join(key, ".")
	if h, ok := b.seconds[k]; ok {
		h.Observe(float64(v) / 1000)
	} else if g, ok := b.values[k]; ok {
		g.Set(float64(v))
	}
}

// SetGaugeWithLabels implements metrics.MetricSink.
func (b *bridge) SetGaugeWithLabels(key []string, v float32, _ []metrics.Label) { b.SetGauge(key, v) }

// IncrCounterWithLabels implements metrics.MetricSink.
func (b *bridge) IncrCounterWithLabels(key []string, v float32, _ []metrics.Label) {
	b.IncrCounter(key, v)
}

// AddSampleWithLabels implements metrics.MetricSink.
func (b *bridge) AddSampleWithLabels(key []string, v float32, _ []metrics.Label) { b.AddSample(key, v) }

// EmitKey implements metrics.MetricSink.
func (b *bridge) EmitKey([]string, float32) {}
