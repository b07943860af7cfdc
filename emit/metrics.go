package emit

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are those of all emitters of a node. Labels come from configuration only: channel, emitter, outcome, class.
type Metrics struct {
	attempts  *prometheus.CounterVec
	outcomes  *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	lag       *prometheus.GaugeVec
	inFlight  *prometheus.GaugeVec
	waiting   *prometheus.GaugeVec
	held      *prometheus.GaugeVec
	parked    *prometheus.GaugeVec
	breaker   *prometheus.GaugeVec
	replays   *prometheus.CounterVec
	proposals *prometheus.CounterVec
}

// NewMetrics registers the metrics; reg may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	labels := []string{"channel", "emitter"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_emit_attempts_total",
			Help: "Attempts by how they went: delivered, transient, permanent, auth, poison, cut_off (costs no attempt); of replays " +
				"replay_delivered, replay_failed.",
		}, []string{"channel", "emitter", "outcome"}),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_emit_deliveries_total",
			Help: "Deliveries that reached their end and whose outcome is committed: delivered, dead, poison, lost.",
		}, []string{"channel", "emitter", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "penstock_emit_attempt_seconds", Help: "How long an attempt took, whatever its end.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}, labels),
		lag:      gauge("penstock_emit_lag_events", "Deliveries not resolved yet, seen by the emitter's owner."),
		inFlight: gauge("penstock_emit_in_flight", "Attempts in flight."),
		waiting:  gauge("penstock_emit_retries_waiting", "Compactions that wait for their next attempt."),
		held:     gauge("penstock_emit_held", "1 while the emitter is held because dead letters cannot be written."),
		parked:   gauge("penstock_emit_parked", "Compactions past their budget that stay at the head of their lane (on_key_failure: park)."),
		breaker:  gauge("penstock_emit_breaker_open", "1 while the breaker is open: the destination is only probed."),
		replays: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_emit_replays_total",
			Help: "Replays of dead letters whose outcome is committed, by how they went: delivered, failed.",
		}, []string{"channel", "emitter", "outcome"}),
		proposals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_emit_proposals_total", Help: "Batches of outcomes proposed, by result: committed, failed.",
		}, []string{"channel", "emitter", "outcome"}),
	}
	if reg != nil {
		reg.MustRegister(m.attempts, m.outcomes, m.seconds, m.lag, m.inFlight, m.waiting, m.held, m.parked, m.breaker, m.replays, m.proposals)
	}
	return m
}

// Forget drops every series of an emitter, for when it was removed from its channel.
func (m *Metrics) Forget(channel, emitter string) {
	labels := prometheus.Labels{"channel": channel, "emitter": emitter}
	m.attempts.DeletePartialMatch(labels)
	m.outcomes.DeletePartialMatch(labels)
	m.proposals.DeletePartialMatch(labels)
	m.replays.DeletePartialMatch(labels)
	m.seconds.DeletePartialMatch(labels)
	m.forgetGauges(channel, emitter)
}

// forgetGauges drops what only an owner can tell: a former owner would show stale figures.
func (m *Metrics) forgetGauges(channel, emitter string) {
	for _, g := range []*prometheus.GaugeVec{m.lag, m.inFlight, m.waiting, m.held, m.parked, m.breaker} {
		g.DeleteLabelValues(channel, emitter)
	}
}

// meter is Metrics with the labels of one emitter.
type meter struct {
	m                *Metrics
	channel, emitter string
}

func newMeter(m *Metrics, channel, emitter string) *meter {
	if m == nil {
		m = NewMetrics(nil)
	}
	return &meter{m: m, channel: channel, emitter: emitter}
}

func (m *meter) attempt(outcome string, took time.Duration) {
	m.m.attempts.WithLabelValues(m.channel, m.emitter, outcome).Inc()
	m.m.seconds.WithLabelValues(m.channel, m.emitter).Observe(took.Seconds())
}

func (m *meter) resolved(kind OutcomeKind, deliveries int) {
	m.m.outcomes.WithLabelValues(m.channel, m.emitter, kind.String()).Add(float64(deliveries))
}

func (m *meter) replayed(outcome string) {
	m.m.replays.WithLabelValues(m.channel, m.emitter, outcome).Inc()
}

func (m *meter) proposed(result string) {
	m.m.proposals.WithLabelValues(m.channel, m.emitter, result).Inc()
}

func (m *meter) gauges(inFlight, waiting, parked int, held, open bool) {
	m.m.inFlight.WithLabelValues(m.channel, m.emitter).Set(float64(inFlight))
	m.m.waiting.WithLabelValues(m.channel, m.emitter).Set(float64(waiting))
	m.m.parked.WithLabelValues(m.channel, m.emitter).Set(float64(parked))
	m.m.held.WithLabelValues(m.channel, m.emitter).Set(asFloat(held))
	m.m.breaker.WithLabelValues(m.channel, m.emitter).Set(asFloat(open))
}

func (m *meter) lag(pending uint64) {
	m.m.lag.WithLabelValues(m.channel, m.emitter).Set(float64(pending))
}

func (m *meter) stop() { m.m.forgetGauges(m.channel, m.emitter) }

func asFloat(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
