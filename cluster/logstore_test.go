package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// slowLog takes as long for a write as it is told.
type slowLog struct {
	Log
	takes time.Duration
}

func (l slowLog) StoreLogs([]*raft.Log) error {
	time.Sleep(l.takes)
	return nil
}

// Silence is asked for at each request and kept nowhere: a process that was paused during a write, to which that write looks
// as long as the pause, is silent until the write returns, which it does at once when the disk is well.
func TestSilenceBeginsWithAWriteThatHangsAndEndsWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLogStore(slowLog{takes: 3 * time.Second})
		require.False(t, s.silent())
		done := make(chan error)
		go func() { done <- s.StoreLog(&raft.Log{Index: 1}) }()
		time.Sleep(silentAfter)
		require.False(t, s.silent())
		time.Sleep(time.Millisecond)
		require.True(t, s.silent())
		require.NoError(t, <-done)
		require.False(t, s.silent())
		time.Sleep(time.Minute)
		require.False(t, s.silent(), "no write, no silence")
	})
}
