// Package retention keeps the log of a node within its bounds while what holds it is little: it carries old needed events so
// that the log behind them can go (DESIGN 4.8), lets what is only kept go when the node is short of room, and then takes the
// snapshots that log must lie behind before it may go.
//
// The order of yielding, when the log is past three quarters of wal.max_bytes or its file system below the low-water mark:
//
//  1. what retention.keep holds, oldest first;
//  2. needed events are carried also where it is less worth it;
//  3. at the bound, or below the mark, new events are refused with 507 (node/api). Outcomes and what Raft needs go on.
//
// It owns one goroutine's worth of decisions and no state that matters: everything it does is a command that the state machine
// may ignore. It promises to carry only while this node leads, at no more than a tenth of what is written (and a little, when
// nothing is), and never to let go of what is needed: the floor sees to that.
package retention

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/fsm"
	"penstock/fsm/command"
	"penstock/node/logread"
	"penstock/wal"
)

// Cluster is what this package needs of the cluster.
type Cluster interface {
	Propose(ctx context.Context, command []byte) ([]byte, error)
	IsLeader() bool
	// LogMayGo is the index below which the log may go but for what is needed or kept.
	LogMayGo() uint64
	TakeSnapshot() error
}

// Log is what this package needs of the log.
type Log interface{ Stats() wal.Stats }

// Keeper looks after the log. All fields but Registerer are required.
type Keeper struct {
	Machine      *fsm.Machine
	Reader       *logread.Reader
	Cluster      Cluster
	Log          Log
	SegmentBytes int64
	Logger       *slog.Logger

	// Owned by Run.
	pass       uint64 // carry all that holds the floor below it; 0: nothing to do
	accepted   uint64 // bytes accepted at the last look
	budget     int64  // bytes that may be carried now
	yieldedAt  time.Time
	snapshotAt time.Time
	failing    bool
	metrics    *Metrics
}

const (
	every = time.Second
	// worth: a pass begins when at most a quarter of what it frees must be carried; half when room is short.
	worth, worthShort = 4, 2
	// share is the part of what is accepted that may be carried, spare what may be in a second besides.
	share             = 10
	spare, spareShort = 1 << 20, 16 << 20
	budgetMost        = 16 << 20
	// yieldEvery lets what yielded go before more does.
	yieldEvery    = 5 * time.Second
	snapshotEvery = 15 * time.Second
	proposeWithin = 10 * time.Second
)

// Metrics are those of a Keeper.
type Metrics struct {
	carried, carriedBytes, yields prometheus.Counter
}

// NewMetrics registers the metrics penstock_retention_*.
func NewMetrics(r prometheus.Registerer, m *fsm.Machine) *Metrics {
	x := &Metrics{
		carried: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_retention_carried_total",
			Help: "Events whose bytes this node, as leader, appended again so that the log behind them can go."}),
		carriedBytes: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_retention_carried_bytes_total",
			Help: "Their size, before compression."}),
		yields: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_retention_yields_total",
			Help: "How often this node, short of room, let go of events that retention.keep would still have kept."}),
	}
	live := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "penstock_retention_carried_events",
		Help: "Events that are carried now: needed, and older than the log."}, func() float64 { return float64(m.CarriedTotal().Events) })
	r.MustRegister(x.carried, x.carriedBytes, x.yields, live)
	return x
}

// Use sets where the keeper counts what it does; without it nothing is counted.
func (k *Keeper) Use(m *Metrics) { k.metrics = m }

// Run looks after the log until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := k.Round(ctx); err != nil && ctx.Err() == nil {
			if !k.failing {
				k.Logger.Warn("log is not kept within its bounds for now", "error", err)
			}
			k.failing = true
		} else {
			k.failing = false
		}
	}
}

// Round is one look, a second after the one before.
func (k *Keeper) Round(ctx context.Context) error {
	stats := k.Log.Stats()
	short := stats.LowWater || stats.MaxBytes > 0 && stats.RetainedBytes >= stats.MaxBytes/4*3
	k.earn(short)
	if short {
		if err := k.makeRoom(ctx, stats); err != nil {
			return err
		}
	}
	if !k.Cluster.IsLeader() {
		k.pass = 0
		return nil
	}
	if k.pass == 0 {
		k.pass = k.target(stats, short)
	}
	if k.pass == 0 {
		return nil
	}
	return k.carry(ctx)
}

// earn adds what may be carried since the last look.
func (k *Keeper) earn(short bool) {
	total := uint64(0)
	for _, c := range k.Machine.Channels() {
		total += c.Bytes
	}
	extra := int64(spare)
	if short {
		extra = spareShort
	}
	if k.accepted > 0 && total > k.accepted { // a channel that was deleted takes its bytes along
		extra += int64(total-k.accepted) / share
	}
	k.accepted = total
	k.budget = min(k.budget+extra, budgetMost)
}

// makeRoom lets what is only kept go, and takes the snapshots that log must lie behind: without new events none would be due.
func (k *Keeper) makeRoom(ctx context.Context, stats wal.Stats) error {
	floor, horizon := k.Machine.Floor(), k.Machine.Horizon()
	if to := min(middle(stats), floor); to > horizon && time.Since(k.yieldedAt) >= yieldEvery {
		if _, err := k.propose(ctx, command.Yield{Index: to}); err != nil {
			return err
		}
		k.yieldedAt = time.Now()
		if k.metrics != nil {
			k.metrics.yields.Inc()
		}
		k.Logger.Warn("short of room for the log: kept events go early", "from", horizon, "to", to, "retained", stats.RetainedBytes, "low", stats.LowWater)
	}
	behind := max(k.Cluster.LogMayGo(), stats.First)
	if wanted := min(floor, k.Machine.Horizon()); wanted > behind && k.span(stats, behind, wanted) >= k.SegmentBytes && time.Since(k.snapshotAt) >= snapshotEvery {
		k.snapshotAt = time.Now()
		return k.Cluster.TakeSnapshot()
	}
	return nil
}

// middle is the index with half of the log before it.
func middle(s wal.Stats) uint64 { return s.First + (s.Last-s.First)/2 }

// span is about how many bytes of the log lie from one index to another.
func (k *Keeper) span(s wal.Stats, from, to uint64) int64 {
	if from >= to || s.Last <= s.First {
		return 0
	}
	return int64(float64(s.RetainedBytes) * float64(to-from) / float64(s.Last-s.First+1))
}

// target is the index up to which the log could go if what holds it were carried, when that is worth it; else 0.
func (k *Keeper) target(stats wal.Stats, short bool) uint64 {
	limit := min(k.Cluster.LogMayGo(), max(k.Machine.Kept(), k.Machine.Horizon())) // what yielded stays gone
	floor := k.Machine.Floor()
	if floor >= limit {
		return 0
	}
	times := uint64(worth)
	if short {
		times = worthShort
	}
	gain := k.span(stats, max(floor, stats.First), limit)
	if gain < k.SegmentBytes { // nothing would go
		return 0
	}
	needed, total := k.Machine.NeededEstimate(limit)
	if needed*times > max(total, uint64(gain)) {
		return 0
	}
	k.Logger.Info("old events are carried so that log can go", "floor", floor, "to", limit, "bytes_about", needed, "frees_about", gain)
	return limit
}

func (k *Keeper) propose(ctx context.Context, c command.Command) (command.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, proposeWithin)
	defer cancel()
	answer, err := k.Cluster.Propose(ctx, command.Encode(c))
	if err != nil {
		return 0, err
	}
	res, err := command.DecodePlainResult(answer)
	return res.Status, err
}
