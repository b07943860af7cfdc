package stdout

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"penstock/emit/sink"
	"penstock/emit/sink/sinktest"
	"penstock/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// slow is a writer that would show mixed writes.
type slow struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *slow) Write(p []byte) (int, error) {
	for _, c := range p {
		s.mu.Lock()
		s.b.WriteByte(c)
		s.mu.Unlock()
	}
	return len(p), nil
}

func (s *slow) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.SplitAfter(strings.TrimSuffix(s.b.String(), "\n"), "\n")
}

func TestSinkContract(t *testing.T) {
	w := &slow{}
	sinktest.Run(t, New(w), func() []string {
		if got := w.lines(); len(got) > 1 || got[0] != "" {
			for i := range got {
				got[i] = strings.TrimSuffix(got[i], "\n")
			}
			return got
		}
		return nil
	})
	for _, line := range w.lines() {
		e, err := event.ParseStructured([]byte(strings.TrimSuffix(line, "\n")))
		require.NoError(t, err)
		require.Equal(t, "/src", e.Source)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestBrokenPipeIsTransient(t *testing.T) {
	res := New(broken{}).Deliver(t.Context(), sinktest.Compaction("c", "1"))
	require.False(t, res.OK)
	require.Equal(t, sink.Transient, res.Class)
	require.Contains(t, res.Reason, "broken pipe")
}

type stuck struct{ release chan struct{} }

func (s stuck) Write(p []byte) (int, error) { <-s.release; return len(p), nil }

func TestWaitingForAStuckWriterEndsWithTheAttempt(t *testing.T) {
	w := stuck{make(chan struct{})}
	s := New(w)
	done := make(chan sink.Result)
	go func() { done <- s.Deliver(context.Background(), sinktest.Compaction("c", "1")) }()
	require.Eventually(t, func() bool { return len(turn) == 1 }, time.Second, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.False(t, s.Deliver(ctx, sinktest.Compaction("c", "1")).OK)
	close(w.release)
	require.True(t, (<-done).OK)
}
