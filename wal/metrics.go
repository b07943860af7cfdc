package wal

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	fsync                                 prometheus.Histogram
	appended                              prometheus.Counter
	truncated                             prometheus.Counter
	recycled                              prometheus.Counter
	repaired                              prometheus.Counter
	scrubBytes, scrubPasses, scrubDamages prometheus.Counter
	scrubSeconds                          prometheus.Gauge
	free, low, reserve                    prometheus.GaugeFunc
	retained                              prometheus.GaugeFunc
	segments                              prometheus.GaugeFunc
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
		scrubBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_wal_scrub_bytes_total",
			Help: "Bytes of sealed segments that scrubs read.",
		}),
		scrubPasses: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_wal_scrub_passes_total",
			Help: "Scrubs of all sealed segments that came to their end.",
		}),
		scrubDamages: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_wal_scrub_damages_total",
			Help: "Damaged places that scrubs found.",
		}),
		scrubSeconds: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_wal_scrub_seconds",
			Help: "How long the last whole scrub took.",
		}),
		free: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_wal_free_bytes",
			Help: "Free space of the log's file system; -1 when it is not known.",
		}, func() float64 { return float64(l.space.free.Load()) }),
		low: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_wal_low_water",
			Help: "1 while too little space is free to take new events.",
		}, func() float64 {
			if l.space.low.Load() {
				return 1
			}
			return 0
		}),
		reserve: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_wal_reserve_bytes",
			Help: "Size of the ballast file that can be given back to the file system.",
		}, func() float64 { return float64(l.space.reserve.Load()) }),
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
	return []prometheus.Collector{m.fsync, m.appended, m.truncated, m.recycled, m.repaired,
		m.scrubBytes, m.scrubPasses, m.scrubDamages, m.scrubSeconds,
		m.free, m.low, m.reserve, m.retained, m.segments}
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
