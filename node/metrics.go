package node

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"penstock/cluster"
	"penstock/fsm"
)

// newRegistry is the registry of one node: every part registers its own metrics with it.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// quorumMetrics shows how far the cluster is from losing its majority, as this node sees it; the leader sees it best.
type quorumMetrics struct {
	members                  func() []cluster.Member
	voters, reachable, spare *prometheus.Desc
}

func newQuorumMetrics(members func() []cluster.Member) *quorumMetrics {
	return &quorumMetrics{
		members:   members,
		voters:    prometheus.NewDesc("penstock_cluster_voters", "Voters of the cluster.", nil, nil),
		reachable: prometheus.NewDesc("penstock_cluster_reachable_voters", "Voters that reported to this node in the last seconds, itself included.", nil, nil),
		spare:     prometheus.NewDesc("penstock_cluster_spare_voters", "Voters that may still fail before the majority is lost; below 0 it is.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (q *quorumMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- q.voters
	ch <- q.reachable
	ch <- q.spare
}

// Collect implements prometheus.Collector.
func (q *quorumMetrics) Collect(ch chan<- prometheus.Metric) {
	voters, reachable := 0, 0
	for _, m := range q.members() {
		if m.Suffrage != "voter" {
			continue
		}
		voters++
		if m.Reachable {
			reachable++
		}
	}
	for d, v := range map[*prometheus.Desc]int{q.voters: voters, q.reachable: reachable, q.spare: reachable - (voters/2 + 1)} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v))
	}
}

// stateMetrics shows the replicated state at each scrape. fsm itself knows no metrics: it is deterministic and pure.
type stateMetrics struct {
	machine                               *fsm.Machine
	applied, floor, horizon               *prometheus.Desc
	accepted, duplicates, keys            *prometheus.Desc
	pending, dead, poison, epoch, balance *prometheus.Desc
}

func newStateMetrics(m *fsm.Machine) *stateMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("penstock_fsm_"+name, help, labels, nil)
	}
	return &stateMetrics{
		machine:    m,
		applied:    desc("applied_index", "Index of the last entry applied here."),
		floor:      desc("floor_index", "Lowest index still needed by a pending delivery or an open dead letter."),
		horizon:    desc("horizon_index", "Lowest index that can still be read."),
		accepted:   desc("accepted_events_total", "Events accepted on the channel since it was created.", "channel"),
		duplicates: desc("duplicate_events_total", "Events refused as duplicates since the channel was created.", "channel"),
		keys:       desc("dedup_keys", "Producer ids remembered for dedup.", "channel"),
		pending:    desc("pending_deliveries", "Deliveries not resolved yet.", "channel", "emitter"),
		dead:       desc("dead_deliveries", "Open dead letters, in the replicated state.", "channel", "emitter"),
		poison:     desc("poison_deliveries", "Open poison records, in the replicated state.", "channel", "emitter"),
		epoch:      desc("owner_epoch", "Epoch of the emitter's present owner; it rises at each move.", "channel", "emitter"),
		balance:    desc("ledger_balanced", "1 while the ledger of the channel balances (P3); anything else is a bug.", "channel"),
	}
}

// Describe implements prometheus.Collector.
func (c *stateMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.applied, c.floor, c.horizon, c.accepted, c.duplicates, c.keys, c.pending, c.dead, c.poison, c.epoch, c.balance,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *stateMetrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	applied, _ := c.machine.Applied()
	gauge(c.applied, applied)
	gauge(c.floor, c.machine.Floor())
	gauge(c.horizon, c.machine.Horizon())
	for _, ci := range c.machine.Channels() {
		ch <- prometheus.MustNewConstMetric(c.accepted, prometheus.CounterValue, float64(ci.Accepted), ci.Name)
		ch <- prometheus.MustNewConstMetric(c.duplicates, prometheus.CounterValue, float64(ci.Duplicates), ci.Name)
		gauge(c.keys, ci.DedupKeys, ci.Name)
		gauge(c.balance, balanced(c.machine, ci.Name), ci.Name)
	}
	for _, e := range c.machine.Emitters() {
		gauge(c.pending, e.Pending, e.Channel, e.Emitter)
		gauge(c.dead, e.Dead, e.Channel, e.Emitter)
		gauge(c.poison, e.Poison, e.Channel, e.Emitter)
		gauge(c.epoch, e.Epoch, e.Channel, e.Emitter)
	}
}

func balanced(m *fsm.Machine, channel string) uint64 {
	b, ok := m.LedgerOf(channel)
	if !ok {
		return 1
	}
	for _, r := range b.Rows {
		if r.Accepted != r.Delivered+r.Dead+r.Poison+r.Discarded+r.Lost+r.Pending {
			return 0
		}
	}
	return 1
}
