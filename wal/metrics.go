package wal

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	fsync     prometheus.Histogram
	appended  prometheus.Counter
	truncated prometheus.Counter
	recycled  prometheus.Counter
	repaired  prometheus.Counter
	retained  prometheus.GaugeFunc
	segments  prometheus.GaugeFunc
}

func newMetrics(l *Log) *metrics {
	return &metrics{
		fsync: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "penstock_wal_fsync_seconds",
			Help:    "Time of one fdatasync of the log, on the path of an acknowledgement.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18),
		}),
		appended: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_wal_appended_bytes_total",
			Help: "Bytes written to the log, block headers and padding included.",
		}),
		truncated: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_wal_truncated_bytes_total",
			Help: "Bytes of torn batches that recovery cut off.",
		}),
		recycled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_wal_recycled_segments_total",
			Help: "Dropped segment files that were kept to be used again.",
		}),
		repaired: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_wal_repaired_entries_total",
			Help: "Damaged entries that were written again from another node's copy.",
		}),
		retained: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_wal_retained_bytes",
			Help: "Size of the segment files that the log keeps.",
		}, func() float64 { return float64(l.Stats().RetainedBytes) }),
		segments: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_wal_segments",
			Help: "Number of segment files that the log keeps.",
		}, func() float64 { return float64(l.Stats().Segments) }),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.fsync, m.appended, m.truncated, m.recycled, m.repaired, m.retained, m.segments}
}

func (m *metrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for i, c := range m.all() {
		if err := r.Register(c); err != nil {
			for _, done := range m.all()[:i] {
				r.Unregister(done)
			}
			return err
		}
	}
	return nil
}

func (m *metrics) unregister(r prometheus.Registerer) {
	if r == nil {
		return
	}
	for _, c := range m.all() {
		r.Unregister(c)
	}
}
