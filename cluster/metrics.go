package cluster

import (
	"github.com/prometheus/client_golang/prometheus"

	"penstock/cluster/gossip"
)

type metrics struct {
	isLeader, termGauge, commit, applied, floor prometheus.Gauge
	clockDeviation, pinned                      prometheus.Gauge
	leaderChanges                               prometheus.Counter
	inDoubt, damagedEntries                     prometheus.Gauge
	mended, doubtElections, damagedSnapshots    prometheus.Counter
	proposals, installs, refused                *prometheus.CounterVec
	gossipNodes                                 *prometheus.GaugeVec
	all                                         []prometheus.Collector
	reg                                         prometheus.Registerer
}

// newMetrics registers penstock_cluster_*; reg nil registers nothing.
func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{reg: reg}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "penstock", Subsystem: "cluster", Name: name, Help: help})
		m.all = append(m.all, g)
		return g
	}
	m.isLeader = gauge("is_leader", "1 when this node leads, 0 otherwise.")
	m.termGauge = gauge("term", "Raft term of this node.")
	m.commit = gauge("commit_index", "Highest index this node knows to be committed.")
	m.applied = gauge("applied_index", "Highest index this node has applied.")
	m.floor = gauge("floor_index", "Lowest index that the state machine still needs.")
	m.clockDeviation = gauge("clock_deviation_seconds", "How far this node's wall clock is from the voters' median, as last seen while leading.")
	m.pinned = gauge("pinned_transfers", "Snapshot transfers that hold the floor.")
	m.leaderChanges = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "penstock", Subsystem: "cluster", Name: "leader_changes_total", Help: "Leaders this node has seen take over."})
	m.proposals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "penstock", Subsystem: "cluster", Name: "proposals_total", Help: "Proposals made on this node by what is known of them: committed, not_committed or unknown."}, []string{"outcome"})
	m.installs = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "penstock", Subsystem: "cluster", Name: "installs_total", Help: "Snapshot installations by direction; more than a few an hour is a fault."}, []string{"direction"})
	m.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "penstock", Subsystem: "cluster", Name: "refused_nodes_total",
		Help: "What other nodes said of themselves and was refused, by reason: conflict (an id twice), foreign (another cluster) or key (not a gossip key of ours)."}, []string{"reason"})
	m.gossipNodes = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "penstock", Subsystem: "cluster", Name: "gossip_nodes", Help: "Nodes that gossip shows, this one included, by state: alive, dead or left."}, []string{"state"})
	m.inDoubt = gauge("in_doubt", "1 while this node may lack entries that it acknowledged: it neither votes nor leads until it has caught up.")
	m.damagedEntries = gauge("damaged_entries", "Entries of the log that cannot be read and are not repaired yet.")
	counter := func(name, help string) prometheus.Counter {
		n := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "penstock", Subsystem: "cluster", Name: name, Help: help})
		m.all = append(m.all, n)
		return n
	}
	m.mended = counter("repaired_entries_total", "Entries of the log that were lost and came back from another node.")
	m.doubtElections = counter("doubt_elections_total", "Times that nodes in doubt had to elect the longest log, since the others were no majority and all were there.")
	m.damagedSnapshots = counter("damaged_snapshots_total", "Snapshots that were damaged and set aside.")
	m.all = append(m.all, m.leaderChanges, m.proposals, m.installs, m.refused, m.gossipNodes)
	for _, r := range []string{"conflict", "foreign", "key"} {
		m.refused.WithLabelValues(r)
	}
	for _, s := range []gossip.State{gossip.Alive, gossip.Dead, gossip.Left} {
		m.gossipNodes.WithLabelValues(string(s))
	}
	for _, o := range []string{"committed", "not_committed", "unknown"} {
		m.proposals.WithLabelValues(o)
	}
	for _, d := range []string{"sent", "received"} {
		m.installs.WithLabelValues(d)
	}
	if reg == nil {
		return m, nil
	}
	for i, col := range m.all {
		if err := reg.Register(col); err != nil {
			m.all = m.all[:i]
			m.close()
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) close() {
	if m.reg == nil {
		return
	}
	for _, c := range m.all {
		m.reg.Unregister(c)
	}
}

func (m *metrics) observe(leads bool, term uint64) {
	m.isLeader.Set(0)
	if leads {
		m.isLeader.Set(1)
	}
	m.termGauge.Set(float64(term))
}

func (m *metrics) progress(c *Cluster) {
	if in := c.instance(); in != nil {
		m.commit.Set(float64(in.raft.CommitIndex()))
	}
	applied, _ := c.sm.Applied()
	m.applied.Set(float64(applied))
	m.floor.Set(float64(c.sm.Floor()))
	m.pinned.Set(float64(c.floor.pinned()))
	m.damagedEntries.Set(float64(c.lostEntries()))
	m.inDoubt.Set(0)
	if c.muzzled() {
		m.inDoubt.Set(1)
	}
	c.countGossip()
}

func (m *metrics) proposal(err *ProposeError) {
	outcome := "committed"
	if err != nil {
		outcome = map[Outcome]string{NotCommitted: "not_committed", Unknown: "unknown"}[err.Outcome]
	}
	m.proposals.WithLabelValues(outcome).Inc()
}
