package replay

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/fsm"
)

// metrics shows the audit trail at each scrape.
type metrics struct {
	machine *fsm.Machine
	now     func() time.Time
}

var (
	openDesc   = prometheus.NewDesc("penstock_audit_open_intents", "Operators' acts without an outcome yet.", nil, nil)
	oldestDesc = prometheus.NewDesc("penstock_audit_oldest_open_seconds", "Age of the oldest act without an outcome; 0 without one.", nil, nil)
)

// NewMetrics gives the collector of the audit trail; now is the cluster's clock.
func NewMetrics(m *fsm.Machine, now func() time.Time) prometheus.Collector {
	return &metrics{machine: m, now: now}
}

// Describe implements prometheus.Collector.
func (c *metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- openDesc
	ch <- oldestDesc
}

// Collect implements prometheus.Collector.
func (c *metrics) Collect(ch chan<- prometheus.Metric) {
	n, oldest := c.machine.OpenIntents()
	age := 0.0
	if oldest > 0 {
		age = max(0, c.now().Sub(time.Unix(0, oldest)).Seconds())
	}
	ch <- prometheus.MustNewConstMetric(openDesc, prometheus.GaugeValue, float64(n))
	ch <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, age)
}
