package dlq

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Stats is what the volume holds. An id that stands in the files twice counts once; Bytes are those of the record files, as
// du counts them.
type Stats struct {
	Dead, Poison               int
	OldestDead, OldestPoisoned time.Time // zero when there is none
	Bytes                      int64
	SealedFiles                int
	// Full is true when the volume refuses records of usual size.
	Full bool
}

// Stats counts, from memory but for the files that an operator took away.
func (v *Volume) Stats() (Stats, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return Stats{}, ErrClosed
	}
	if err := v.refresh(); err != nil {
		return Stats{}, err
	}
	st := Stats{Bytes: v.bytes(), SealedFiles: len(v.sealed)}
	st.Dead, st.Poison = v.index.dead, v.index.poison
	for _, s := range append([]segment{v.active}, v.sealed...) {
		st.OldestDead = oldest(st.OldestDead, s.oldestDead)
		st.OldestPoisoned = oldest(st.OldestPoisoned, s.oldestPoisoned)
	}
	st.Full = v.cfg.Overflow == Block && v.room(4<<10) != nil
	return st, nil
}

// metrics collects from Stats at each scrape.
type metrics struct {
	v             *Volume
	writeFailures prometheus.Counter
	quarantined   prometheus.Counter
	dropped       prometheus.Counter
}

var (
	depthDesc        = prometheus.NewDesc("penstock_dlq_depth", "Dead-letter records in this node's volume.", nil, nil)
	sizeDesc         = prometheus.NewDesc("penstock_dlq_size_bytes", "Bytes of records in this node's dead-letter volume.", nil, nil)
	oldestDesc       = prometheus.NewDesc("penstock_dlq_oldest_seconds", "Age of the oldest dead letter in this node's volume; 0 without one.", nil, nil)
	maxAgeDesc       = prometheus.NewDesc("penstock_dlq_max_age_seconds", "dead_letter.max_age of this node; 0 is no bound.", nil, nil)
	fullDesc         = prometheus.NewDesc("penstock_dlq_full", "1 while this node's dead-letter volume is at its bound and emitters are held.", nil, nil)
	poisonDesc       = prometheus.NewDesc("penstock_poison_depth", "Poison records in this node's volume.", nil, nil)
	poisonOldestDesc = prometheus.NewDesc("penstock_poison_oldest_seconds", "Age of the oldest poison record in this node's volume; 0 without one.", nil, nil)
)

func newMetrics(v *Volume) *metrics {
	return &metrics{
		v: v,
		writeFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_dlq_write_failures_total",
			Help: "Appends to the dead-letter volume that failed, those refused at its bound included.",
		}),
		quarantined: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_dlq_quarantined_total",
			Help: "Lines that were no dead letters and moved to the quarantine.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_dlq_dropped_total",
			Help: "Records given up at a bound of the volume (overflow: drop_oldest); each is an audited discard.",
		}),
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{depthDesc, sizeDesc, oldestDesc, maxAgeDesc, fullDesc, poisonDesc, poisonOldestDesc} {
		ch <- d
	}
	m.writeFailures.Describe(ch)
	m.quarantined.Describe(ch)
	m.dropped.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.writeFailures.Collect(ch)
	m.quarantined.Collect(ch)
	m.dropped.Collect(ch)
	st, err := m.v.Stats()
	if err != nil {
		return
	}
	now := m.v.cfg.Now()
	age := func(t time.Time) float64 {
		if t.IsZero() {
			return 0
		}
		return max(0, now.Sub(t).Seconds())
	}
	gauge := func(d *prometheus.Desc, x float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, x) }
	gauge(depthDesc, float64(st.Dead))
	gauge(sizeDesc, float64(st.Bytes))
	gauge(oldestDesc, age(st.OldestDead))
	gauge(maxAgeDesc, m.v.cfg.MaxAge.Seconds())
	full := 0.0
	if st.Full {
		full = 1
	}
	gauge(fullDesc, full)
	gauge(poisonDesc, float64(st.Poison))
	gauge(poisonOldestDesc, age(st.OldestPoisoned))
}
