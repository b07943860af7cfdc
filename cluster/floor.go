package cluster

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"penstock/internal/mutant"
)

// pinPatience is how long a transfer may make no progress before it no longer holds the floor.
const pinPatience = 60 * time.Second

// floorKeeper is the only caller of Log.SetFloor. It gives the log the lowest of: what the state machine still needs or may read, the
// older of the two snapshots, and every pin. With fewer than two snapshots nothing goes.
//
// One lock covers the choice of a label and the raising of the floor, so that the log still holds a label when it is given out (I3).
type floorKeeper struct {
	log    *logStore
	sm     StateMachine
	snaps  *snapshotStore
	logger *slog.Logger

	mu struct {
		sync.Mutex
		pins map[*floorPin]struct{}
	}
}

func newFloorKeeper(log *logStore, sm StateMachine, snaps *snapshotStore, logger *slog.Logger) *floorKeeper {
	k := &floorKeeper{log: log, sm: sm, snaps: snaps, logger: logger}
	k.mu.pins = map[*floorPin]struct{}{}
	return k
}

// floorPin holds the floor for one transfer: from Open of a snapshot until the receiver's log has reached what ours ended with then.
type floorPin struct {
	keeper   *floorKeeper
	label    uint64
	target   uint64
	peer     string // "" until the transfer begins
	open     bool   // the snapshot is being read: a slow transfer is no lack of progress
	reached  uint64
	progress time.Time
}

// pin chooses the label for a snapshot that is about to be sent and holds the floor there.
func (k *floorKeeper) pin(m *snapMeta) (label, term uint64, p *floorPin, err error) {
	last, err := k.log.LastIndex()
	if err != nil {
		return 0, 0, nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	label = min(m.StateIndex, max(k.sm.Floor(), 1)-1)
	if mutant.On(mutant.LabelAtFloor) {
		label = min(m.StateIndex, k.sm.Floor())
	}
	if base, _ := k.log.Base(); label < base {
		k.logger.Error("the log is cut above the floor", "base", base, "label", label)
		label = base
	}
	label = max(label, 2) // 1 and 2 are the first configuration and the first leader's no-op: never a payload
	if label > m.StateIndex {
		return 0, 0, nil, fmt.Errorf("the log begins above its state at %d", m.StateIndex)
	}
	if term = m.StateTerm; label != m.StateIndex {
		if term, err = k.log.termOf(label); err != nil {
			return 0, 0, nil, fmt.Errorf("read the term at %d: %w", label, err)
		}
	}
	p = &floorPin{keeper: k, label: label, target: last, open: true, progress: time.Now()}
	k.mu.pins[p] = struct{}{}
	return label, term, p, nil
}

func (p *floorPin) release() {
	p.keeper.mu.Lock()
	defer p.keeper.mu.Unlock()
	delete(p.keeper.mu.pins, p)
}

func (p *floorPin) assign(peer string) {
	p.keeper.mu.Lock()
	defer p.keeper.mu.Unlock()
	p.peer, p.progress = peer, time.Now()
}

// readerClosed ends a pin that no transfer took over; the patience of one that did begins now.
func (p *floorPin) readerClosed() {
	p.keeper.mu.Lock()
	defer p.keeper.mu.Unlock()
	p.open, p.progress = false, time.Now()
	if p.peer == "" {
		delete(p.keeper.mu.pins, p)
	}
}

// reached tells that the log of peer has base as its base and ends at last. What a peer reports from before the installation has
// a base below the label and does not count.
func (k *floorKeeper) reached(peer string, base, last uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for p := range k.mu.pins {
		if p.peer != peer || base < p.label {
			continue
		}
		if last >= p.target {
			delete(k.mu.pins, p)
		} else if last > p.reached {
			p.reached, p.progress = last, time.Now()
		}
	}
}

// advance raises the log's floor to where it may be.
func (k *floorKeeper) advance() {
	behind, ok := k.snaps.behind()
	if !ok || k.snaps.pending() != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	floor := min(behind+1, k.sm.Floor(), k.sm.Horizon())
	for p := range k.mu.pins {
		if !p.open && time.Since(p.progress) > pinPatience {
			k.logger.Warn("a snapshot transfer no longer holds the floor", "peer", p.peer, "label", p.label, "reached", p.reached, "target", p.target)
			delete(k.mu.pins, p)
			continue
		}
		floor = min(floor, p.label)
	}
	k.log.SetFloor(floor)
}

// pinned tells how many transfers hold the floor.
func (k *floorKeeper) pinned() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.mu.pins)
}
