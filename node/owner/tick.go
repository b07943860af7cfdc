package owner

import (
	"context"
	"log/slog"
	"time"

	"penstock/fsm"
	"penstock/fsm/command"
)

// tickInterval bounds how late a compaction may be closed past its linger.
const tickInterval = 50 * time.Millisecond

// Ticker proposes a tick when an open run is past its linger. Only a leader does: IsLeader says so.
type Ticker struct {
	Machine  *fsm.Machine
	Cluster  Cluster
	IsLeader func() bool
	Logger   *slog.Logger

	failing bool // owned by Run: the last proposal failed, which is logged once
}

// Run looks every tickInterval until ctx ends.
func (t *Ticker) Run(ctx context.Context) {
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if !t.IsLeader() || !t.Machine.TickDue(t.Cluster.Now().UnixNano()) {
			continue
		}
		t.propose(ctx)
	}
}

func (t *Ticker) propose(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := t.Cluster.Propose(ctx, command.Encode(command.Tick{}))
	if err != nil && !t.failing && ctx.Err() == nil {
		t.Logger.Warn("tick not committed", "error", err)
	}
	t.failing = err != nil
}
