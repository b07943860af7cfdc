package cluster

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// transferPatience is how long a leader may refuse everything because "leadership is being handed over". The library gives a transfer
// one election timeout.
const transferPatience = 10 * time.Second

// errTransferHung ends the process: the library's flag for a transfer under way stays set, also in a later term of this node as leader,
// and only a new process is rid of it (hashicorp/raft#696).
var errTransferHung = errors.New("a handover of leadership hangs in the Raft library (hashicorp/raft#696): this process refuses everything as leader until it is started anew")

// transferGuard tells from what the library answers whether a transfer hangs.
type transferGuard struct{ since time.Time }

// hangs takes the newest answer; it is true once all of them were "in progress" for transferPatience.
func (g *transferGuard) hangs(answer error, now time.Time) bool {
	if !errors.Is(answer, raft.ErrLeadershipTransferInProgress) {
		g.since = time.Time{}
		return false
	}
	if g.since.IsZero() {
		g.since = now
	}
	return now.Sub(g.since) >= transferPatience
}

// guardTransfer looks, after a transfer that was answered or is waited for no longer, until this node leads no more, or takes entries again. One
// may hang although it was answered.
func (c *Cluster) guardTransfer(t *tenure) {
	var guard transferGuard
	for t.ctx.Err() == nil {
		err := await(t.ctx, t.raft.Barrier(applyEnqueue))
		if guard.hangs(err, time.Now()) {
			c.fatal(ExitFailed, fmt.Errorf("lead in term %d: %w", t.term, errTransferHung))
			return
		}
		if !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-t.ctx.Done():
		}
	}
}
