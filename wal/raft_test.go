package wal

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"penstock/internal/vfs/memfs"
)

// countFSM counts what Raft applies.
type countFSM struct{ applied []string }

func (f *countFSM) Apply(l *raft.Log) any {
	f.applied = append(f.applied, string(l.Data))
	return len(f.applied)
}
func (f *countFSM) Snapshot() (raft.FSMSnapshot, error) { return f, nil }
func (f *countFSM) Restore(r io.ReadCloser) error       { return r.Close() }
func (f *countFSM) Persist(s raft.SnapshotSink) error   { return s.Close() }
func (f *countFSM) Release()                            {}

func raftConfig() *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = "n1"
	c.LogOutput = io.Discard
	c.HeartbeatTimeout, c.ElectionTimeout = 50*time.Millisecond, 50*time.Millisecond
	c.LeaderLeaseTimeout, c.CommitTimeout = 50*time.Millisecond, time.Millisecond
	c.SnapshotThreshold, c.TrailingLogs = 1<<60, 5
	return c
}

// TestRaftRunsOnThisLog: bootstrap, apply, snapshot with compaction, restart
// from log and snapshot, on the real library.
func TestRaftRunsOnThisLog(t *testing.T) {
	fsys, stable, snaps := memfs.New(), raft.NewInmemStore(), raft.NewInmemSnapshotStore()
	const n = 60
	for round := range 3 {
		l, err := Open(testDir, testConfig(t, fsys))
		require.NoError(t, err)
		addr, trans := raft.NewInmemTransport("n1")
		if round == 0 {
			require.NoError(t, raft.BootstrapCluster(raftConfig(), l, stable, snaps, trans, raft.Configuration{
				Servers: []raft.Server{{ID: "n1", Address: addr}},
			}))
		}
		fsm := &countFSM{}
		r, err := raft.NewRaft(raftConfig(), fsm, l, stable, snaps, trans)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return r.VerifyLeader().Error() == nil }, 5*time.Second, 5*time.Millisecond)
		for i := range n {
			require.NoError(t, r.Apply([]byte(fmt.Sprintf("%d/%d", round, i)), time.Second).Error())
		}
		require.NoError(t, r.Snapshot().Error())
		l.SetFloor(r.AppliedIndex() - 10)
		first, err := l.FirstIndex()
		require.NoError(t, err)
		if round > 0 {
			require.Greater(t, first, uint64(1), "compaction let segments go")
		}
		require.NoError(t, r.Apply([]byte("behind the snapshot"), time.Second).Error())
		require.NoError(t, r.Shutdown().Error())
		require.NoError(t, l.Close())
	}
}
