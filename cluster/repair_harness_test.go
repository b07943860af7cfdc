package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"penstock/internal/vfs"
	"penstock/wal"
)

const walSegment = 32 << 10

// walNode is a testNode whose log is the real one, on the disk of its directory.
type walNode struct {
	*testNode
	wal *wal.Log
	// crash fails the n-th call that changes the log in a repair, after it was done or instead; 0 fails none.
	crash  int
	before bool
	log    *crashingLog
}

func newWalNodes(t *testing.T, n int) (nodes []*walNode, plain []*testNode) {
	for _, node := range newTestNodes(t, n) {
		node.cfg.RepairPatience = 500 * time.Millisecond
		w := &walNode{testNode: node}
		t.Cleanup(w.stop)
		nodes, plain = append(nodes, w), append(plain, node)
	}
	return nodes, plain
}

func (n *walNode) walDir() string { return filepath.Join(n.dir, "wal") }

// open opens the log and the cluster over it.
func (n *walNode) open() error {
	var err error
	n.wal, err = wal.Open(n.walDir(), wal.Config{
		SegmentBytes: walSegment, MarkInterval: 5 * time.Millisecond, CacheBytes: -1, AllowDamage: true, Logger: slog.New(slog.DiscardHandler),
		MarkLost: func(error) error { return NoteDoubt(n.dir, "the mark is lost") },
		Fatal:    func(err error) { n.t.Errorf("%s: %v", n.id, err) },
	})
	if err != nil {
		return err
	}
	n.log = &crashingLog{realLog: realLog{n.wal}, node: n}
	n.c, err = Open(n.cfg, n.log, n.sm)
	if err != nil {
		n.c = nil
		return errors.Join(err, n.wal.Close())
	}
	return nil
}

func (n *walNode) start() {
	n.t.Helper()
	require.NoError(n.t, n.open(), "start %s", n.id)
}

func (n *walNode) stop() {
	n.testNode.stop()
	if n.wal != nil {
		n.wal.Close()
		n.wal = nil
	}
}

// realLog is the log as node gives it to the cluster.
type realLog struct{ *wal.Log }

func (l realLog) Damage() []LogDamage {
	var out []LogDamage
	for _, d := range l.Log.Damage() {
		out = append(out, LogDamage{First: d.First, Last: d.Last, OpenEnd: d.OpenEnd, Known: d.Known, Term: d.Term, PayloadCRC: d.PayloadCRC,
			Hole: d.Kind == wal.DamageHole, Text: d.String()})
	}
	return out
}

func (l realLog) Recovered() (uint64, bool) {
	r := l.Recovery()
	return r.MarkIndex, r.Short
}

func (l realLog) Recheck(ctx context.Context, index uint64) error {
	_, err := l.Log.Recheck(ctx, index)
	return err
}

func (l realLog) Scrub(ctx context.Context, _ time.Duration) error {
	_, err := l.Log.Scrub(ctx, 0)
	return err
}

var errCrash = errors.New("the process ends here")

// crashingLog ends the "process" at one step of a repair.
type crashingLog struct {
	realLog
	node *walNode
	step atomic.Int64
	dead atomic.Bool // nothing is written any more
}

func (l *crashingLog) at(do func() error) error {
	if l.dead.Load() {
		return errCrash
	}
	if l.node.crash == 0 || l.step.Add(1) != int64(l.node.crash) {
		return do()
	}
	l.dead.Store(true)
	if !l.node.before {
		if err := do(); err != nil {
			return err
		}
	}
	return errCrash
}

func (l *crashingLog) Repair(entries []*raft.Log) error {
	return l.at(func() error { return l.realLog.Repair(entries) })
}

func (l *crashingLog) LeaveHoles(index uint64) error {
	return l.at(func() error { return l.realLog.LeaveHoles(index) })
}

func (l *crashingLog) CutAt(index, term uint64) error {
	return l.at(func() error { return l.realLog.CutAt(index, term) })
}

// filledNodes runs three nodes until n commands are committed everywhere, and stops them.
func filledNodes(t *testing.T, n int) (nodes []*walNode, plain []*testNode) {
	nodes, plain = newWalNodes(t, 3)
	for _, node := range nodes {
		node.start()
	}
	fill(t, plain, "c", n)
	awaitSame(t, plain...)
	stopAll(nodes)
	return nodes, plain
}

// fill commits n commands, some of them twice when leadership is lost meanwhile.
func fill(t *testing.T, plain []*testNode, prefix string, n int) {
	t.Helper()
	for i := range n {
		command := fmt.Appendf(nil, "%s%d %0400d", prefix, i, i)
		eventually(t, 30*time.Second, func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_, err := awaitLeader(t, plain...).c.Propose(ctx, command)
			return err == nil
		}, "command %d is not committed", i)
	}
}

func stopAll(nodes []*walNode) {
	for _, n := range nodes {
		n.stop()
	}
}

// requireCommands: every node comes to have applied want, and a state machine made again from its log would have too.
func requireCommands(t *testing.T, want []string, nodes ...*walNode) {
	t.Helper()
	for _, n := range nodes {
		var got, logged []string
		eventually(t, 15*time.Second, func() bool {
			got, logged = n.sm.commands(), n.logged()
			return slices.Equal(got, want) && slices.Equal(logged, want)
		}, "%s does not come to have what was committed: %v damaged", n.id, n.wal.Damage())
	}
}

// logged is what a state machine made again from the log has applied, as far as the log can be read.
func (n *walNode) logged() []string {
	again := &toySM{}
	last, err := n.wal.LastIndex()
	require.NoError(n.t, err)
	for i := uint64(1); i <= last; i++ {
		var e raft.Log
		if n.wal.GetLog(i, &e) != nil {
			break
		}
		if e.Type == raft.LogCommand {
			_, err := again.Apply(e.Index, e.Term, e.Data)
			require.NoError(n.t, err)
		}
	}
	return again.commands()
}

// flip flips a bit of the payload of an entry where it lies on the disk of a stopped node.
func (n *walNode) flip(index uint64) {
	n.t.Helper()
	found := false
	err := wal.Walk(vfs.OS, n.walDir(), func(r wal.Record) error {
		if r.Index == index {
			found = true
			n.flipAt(filepath.Join(n.walDir(), fmt.Sprintf("wal-%020d.seg", r.Segment)), r.Offset+200)
		}
		return nil
	})
	require.True(n.t, found, "entry %d: %v", index, err)
}

func (n *walNode) flipAt(path string, at int64) {
	n.t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(n.t, err)
	defer f.Close()
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	require.NoError(n.t, err)
	b[0] ^= 4
	_, err = f.WriteAt(b[:], at)
	require.NoError(n.t, err)
}
