package e2e

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// stepped is a cluster whose processes end themselves with SIGKILL at a step that the test names: the process that crosses it
// first. Its destination is moody.
type stepped struct {
	*buried
	m       *moody
	trigger string
	sent    int
	letters map[string]client.DeadLetter // as first seen, by position
}

func startStepped(t *testing.T, spec func(url string) []byte) *stepped {
	t.Helper()
	m := &moody{tries: map[string]int{}, taken: map[string]int{}, ids: map[string]map[string]bool{}}
	web := httptest.NewServer(m)
	t.Cleanup(web.Close)
	trigger := filepath.Join(t.TempDir(), "trigger")
	s := &stepped{m: m, trigger: trigger, letters: map[string]client.DeadLetter{}, buried: &buried{group: startGroup(t, options{env: []string{
		"PENSTOCK_DEAD_LETTER_SCAN=1s", "PENSTOCK_CHAOS_MODE=yes", "PENSTOCK_CHAOS_MODE_TRIGGER=" + trigger,
	}})}}
	s.c = s.client()
	_, err := s.c.PutChannel(context.Background(), "orders", spec(web.URL), client.PutOptions{})
	require.NoError(t, err)
	waitOwned(t, s.c, "orders")
	return s
}

func (s *stepped) send() {
	sendByID(s.t, s.c, "orders", batch("k", s.sent, 10))
	s.sent += 10
}

// arm makes the next process that crosses the point end there.
func (s *stepped) arm(point string) {
	require.NoError(s.t, os.WriteFile(s.trigger+".new", []byte(point), 0o600))
	require.NoError(s.t, os.Rename(s.trigger+".new", s.trigger))
}

// dies waits for the process that crosses the point, busy meanwhile, and gives it when it is gone.
func (s *stepped) dies(point string, busy func()) (dead *proc) {
	eventually(s.t, 90*time.Second, "a process ends at "+point, func() error {
		busy()
		if _, err := os.Stat(s.trigger); err == nil {
			return fmt.Errorf("nobody has crossed it")
		}
		for _, p := range s.nodes {
			if p.ended() {
				dead = p
				return nil
			}
		}
		return fmt.Errorf("the process has not ended yet")
	})
	return dead
}

// ended tells whether the process is gone.
func (p *proc) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// killAt ends the owner at the point and starts it again.
func (s *stepped) killAt(point string, busy func()) {
	s.arm(point)
	dead := s.dies(point, busy)
	s.send()
	dead.start()
	dead.waitReady(60 * time.Second)
}

// look checks that no dead letter has another id or compaction id than before.
func (s *stepped) look() []client.DeadLetter {
	var list []client.DeadLetter
	eventually(s.t, 30*time.Second, "dead letters are listed", func() (err error) {
		list, err = s.c.DeadLetters(context.Background(), client.DeadLetterFilter{})
		return err
	})
	seen := map[string]bool{}
	for _, l := range list {
		at := l.Position.String()
		require.False(s.t, seen[at], "two dead letters of one event")
		seen[at] = true
		if old, ok := s.letters[at]; ok {
			require.Equal(s.t, old.ID, l.ID)
			require.Equal(s.t, old.CompactionID, l.CompactionID)
		}
		s.letters[at] = l
	}
	return list
}

// settle waits until nothing is pending, and checks that each event is delivered or in exactly one dead letter.
func (s *stepped) settle() client.LedgerRow {
	var e client.LedgerRow
	eventually(s.t, time.Minute, "nothing is pending", func() error {
		if e = s.ledger(s.c); e.Pending != 0 || int(e.Accepted) != s.sent {
			return fmt.Errorf("%+v of %d", e, s.sent)
		}
		return nil
	})
	return e
}

// TestShows3AKillAtEachStepOfDelivery: the owner ends before a send, after one, behind the fsync of a dead letter, behind the
// commit of an outcome; in the middle of a rewrite, a rotation and a rebuild of its volume; and at three steps of a replay. Every
// event is delivered or in exactly one dead letter, the ledger balances, repeats carry only ids seen before, and a dead letter
// keeps its id.
func TestShows3AKillAtEachStepOfDelivery(t *testing.T) {
	t.Parallel()
	s := startStepped(t, func(url string) []byte {
		return channelSpec("orders", "", webhookEmitter("billing", url,
			`"retry":{"ttl":"10m","backoff":{"min":"50ms","max":"500ms"}},"dead_letter":{"max_retries":1000}`))
	})
	pause := func() { time.Sleep(20 * time.Millisecond) }
	sending := func() { s.send(); pause() }
	replaying := func() {
		if list := s.look(); len(list) > 0 {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			_, _ = s.c.Replay(ctx, client.ActRequest{IDs: []string{list[0].ID}})
		}
		pause()
	}
	s.send()
	for range scale(t, 20, 2) {
		for _, point := range []string{"emit.before_send", "emit.after_send", "dlq.after_fsync", "emit.after_outcome"} {
			s.killAt(point, sending)
		}
		s.look()
		for _, point := range []string{"replay.before_send", "replay.after_send", "replay.after_outcome", "dlq.before_rename", "dlq.in_rotation"} {
			if point == "dlq.in_rotation" {
				s.send() // so that there is something to seal
			}
			s.killAt(point, replaying)
		}
		// A volume that is gone is rebuilt by its owner, or by the next one.
		owner := s.owner(nil)
		owner.kill()
		require.NoError(t, os.RemoveAll(owner.dlq))
		s.arm("dlq.in_rebuild")
		owner.start()
		s.dies("dlq.in_rebuild", pause).start()
		for _, p := range s.nodes {
			p.waitReady(60 * time.Second)
		}
	}
	e := s.settle()
	dead := s.look()
	require.Len(t, dead, int(e.Dead))
	require.EqualValues(t, s.sent, e.Delivered+e.Dead)
	s.m.mu.Lock()
	require.EqualValues(t, e.Delivered, len(s.m.taken), "what is delivered is what was taken, and no dead letter was")
	s.m.mu.Unlock()

	s.m.mended.Store(true)
	eventually(t, 2*time.Minute, "everything is delivered", func() error {
		var ids []string
		for _, l := range s.look() {
			ids = append(ids, l.ID)
		}
		if len(ids) > 0 {
			_, _ = s.c.Replay(context.Background(), client.ActRequest{IDs: ids[:min(len(ids), 50)]})
		}
		if e = s.ledger(s.c); e.Delivered != uint64(s.sent) {
			return fmt.Errorf("%+v of %d", e, s.sent)
		}
		return nil
	})
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	require.Len(t, s.m.taken, s.sent)
	repeats := 0
	for id, seen := range s.m.ids {
		require.Len(t, seen, 1, "%s was sent under %v", id, seen)
		repeats += s.m.taken[id] - 1
	}
	t.Logf("%d events, %d were dead letters, %d taken more than once", s.sent, len(s.letters), repeats)
}

// TestShows4AtMostOnceAttemptsNothingTwiceWhateverTheStep: L1. The owner ends before the only attempt, after it, and behind the
// commit of its outcome. No event is attempted twice, none becomes a dead letter, what the receiver misses is lost, and what is
// lost is what has no success outcome.
func TestShows4AtMostOnceAttemptsNothingTwiceWhateverTheStep(t *testing.T) {
	t.Parallel()
	s := startStepped(t, func(url string) []byte {
		return fmt.Appendf(nil, `{"name":"orders","semantics":"at-most-once","order":"none","emitters":[%s]}`, webhookEmitter("billing", url, ""))
	})
	for range scale(t, 10, 1) {
		for _, point := range []string{"emit.before_send", "emit.after_send", "emit.after_outcome"} {
			s.killAt(point, func() { s.send(); time.Sleep(20 * time.Millisecond) })
		}
	}
	e := s.settle()
	require.Empty(t, s.look())
	require.EqualValues(t, s.sent, e.Delivered+e.Lost)
	require.NotZero(t, e.Lost)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	missed := 0
	for i := range s.sent {
		id := fmt.Sprintf("k-%d", i)
		require.LessOrEqual(t, s.m.tries[id], 1, "%s was attempted twice", id)
		if s.m.taken[id] == 1 {
			continue
		}
		if missed++; missed > 50 {
			continue // explain reads the log: a sample
		}
		x, err := s.c.Explain(context.Background(), id, "")
		require.NoError(t, err)
		require.Len(t, x.Events, 1, id)
		require.Equal(t, "lost", x.Events[0].Deliveries[0].State, "%s did not arrive", id)
	}
	require.LessOrEqual(t, missed, int(e.Lost), "what the receiver misses is lost")
	require.LessOrEqual(t, int(e.Delivered), len(s.m.taken), "delivered is only what it took")
	t.Logf("%d events, %d delivered, %d taken, %d lost", s.sent, e.Delivered, len(s.m.taken), e.Lost)
}
