package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"penstock/cluster"
	"penstock/fsm"
	"penstock/fsm/checkpoint"
	"penstock/internal/spec"
	"penstock/node/replay"
)

// markLost: nobody knows how far the log reached. Among others that is a doubt; a cluster of one has nobody to settle it with.
func (n *Node) markLost(error) error {
	if n.cfg.Single() {
		return errors.New("a cluster of one has no other copy")
	}
	return cluster.NoteDoubt(n.cfg.Node.DataDir, "the log's mark is lost: how far the log reached is not known")
}

// errState is a checkpoint that cannot be used.
var errState = errors.New("the checkpoint is damaged")

// openCheckpoint opens the state as it was last written. A damaged one is kept apart: no copy of anything is lost with it, snapshot and log make
// the state again.
func (n *Node) openCheckpoint(path string) error {
	err := n.loadState(path)
	if !errors.Is(err, errState) {
		return err
	}
	apart := fmt.Sprintf("%s.damaged-%d", path, time.Now().UnixNano())
	n.log.Error("the checkpoint is damaged; it is kept apart, and the state made again from snapshot and log", "error", err, "kept_as", apart)
	if err := errors.Join(os.Rename(path, apart), syncDir(n.cfg.Node.DataDir)); err != nil {
		return fmt.Errorf("keep a damaged checkpoint apart: %w", err)
	}
	return n.loadState(path)
}

// loadState opens the checkpoint; errState means that it is damaged.
func (n *Node) loadState(path string) (err error) {
	n.store, err = checkpoint.Open(path, checkpoint.Config{Fatal: n.fatalDisk, NoSpace: n.wal.ReleaseReserve})
	if errors.Is(err, checkpoint.ErrDamaged) {
		return fmt.Errorf("%w: %w", errState, err)
	}
	if err != nil {
		return err
	}
	n.machine, err = fsm.Open(n.store, fsm.Config{})
	if err == nil {
		return nil
	}
	var later *fsm.ErrTooNew
	if !errors.As(err, &later) && !errors.Is(err, syscall.EIO) {
		// What a checkpoint holds is nobody's but this node's: whatever else is wrong with it is damage.
		err = fmt.Errorf("%w: %w", errState, err)
	}
	err = errors.Join(fmt.Errorf("%s: %w", path, err), n.store.Close())
	n.store = nil
	return err
}

// scrubEvery is the interval as cluster takes it, where 0 means its default.
func scrubEvery(d spec.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return time.Duration(d)
}

// act has an act of this node's own recorded: the log of the process has it in any case.
func (n *Node) act(action, detail string) {
	select {
	case n.acts <- replay.Act{Actor: "node " + n.cfg.Node.ID, Action: action, Reason: detail}:
	default:
	}
}

// recordActs gives the audit what act was told. What has happened is recorded until it is, or this node ends.
func (n *Node) recordActs(ctx context.Context) {
	for {
		select {
		case act := <-n.acts:
			done := func(context.Context) (result, detail string) { return fsm.AuditSuccess, act.Reason }
			for n.replays.Audited(ctx, act, done) != nil {
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
					return
				}
			}
		case <-ctx.Done():
			return
		}
	}
}
