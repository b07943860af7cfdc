package e2e

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
	"penstock/internal/destination"
)

// buried is a cluster with n dead letters of one webhook emitter, and what sent them there.
type buried struct {
	*group
	c        *client.Client
	receiver *destination.Server
	web      string // its address
	ids      []string
	first    map[string]destination.Received // the first attempt by event id
}

// newBuried is a cluster and a destination, without a channel yet.
func newBuried(t *testing.T, o options) *buried {
	t.Helper()
	b := &buried{group: startGroup(t, o), receiver: &destination.Server{}, first: map[string]destination.Received{}}
	b.web, b.c = newWeb(t, b.receiver), b.client()
	return b
}

// newWeb serves a destination and gives its address.
func newWeb(t *testing.T, s *destination.Server) string {
	t.Helper()
	web := httptest.NewServer(s)
	t.Cleanup(func() {
		s.Stop()
		web.Close()
	})
	return web.URL
}

func bury(t *testing.T, n int) *buried {
	t.Helper()
	b := newBuried(t, options{})
	b.receiver.Script("it", destination.Step{Status: 410})
	_, err := b.c.PutChannel(context.Background(), "orders", channelSpec("orders", "", webhookEmitter("billing", b.web+"/hook/it",
		`"dead_letter":{"max_retries":0}`)), client.PutOptions{})
	require.NoError(t, err)
	waitOwned(t, b.c, "orders")
	sendByID(t, b.c, "orders", batch("d", 0, n))
	eventually(t, 30*time.Second, "dead letters", func() error {
		b.ids = nil
		letters, err := b.c.DeadLetters(context.Background(), client.DeadLetterFilter{})
		for _, l := range letters {
			b.ids = append(b.ids, l.ID)
		}
		if err == nil && len(letters) != n {
			err = fmt.Errorf("%d of %d", len(letters), n)
		}
		return err
	})
	for _, r := range b.receiver.Received("it") {
		b.first[r.ID] = r
	}
	require.Len(t, b.first, n)
	return b
}

// owner is the node that owns the emitter, other than not.
func (b *buried) owner(not *proc) (p *proc) {
	eventually(b.t, 30*time.Second, "an owner", func() error {
		l, err := b.c.Ledger(context.Background(), "orders")
		if err != nil {
			return err
		}
		p = b.byID(l.Emitters[0].Owner)
		if p == nil || p == not {
			return fmt.Errorf("owner is %q", l.Emitters[0].Owner)
		}
		return nil
	})
	return p
}

func (b *buried) other(not ...*proc) *proc {
	for _, p := range b.nodes {
		skip := false
		for _, n := range not {
			skip = skip || n == p
		}
		if !skip {
			return p
		}
	}
	return nil
}

// sameIDs checks that every request carries the ids of the first attempt at its event.
func (b *buried) sameIDs() {
	for _, r := range b.receiver.Received("it") {
		require.Equal(b.t, b.first[r.ID].WebhookID, r.WebhookID)
		require.Equal(b.t, b.first[r.ID].CompactionID, r.CompactionID)
	}
}

func (b *buried) ledger(c *client.Client) client.LedgerRow {
	var out client.LedgerRow
	eventually(b.t, 20*time.Second, "ledger", func() error {
		l, err := c.Ledger(context.Background(), "orders")
		if err == nil {
			checkBalanced(b.t, l)
			out = l.Emitters[0]
		}
		return err
	})
	return out
}

func volumeText(p *proc) string {
	var text strings.Builder
	files, _ := filepath.Glob(filepath.Join(p.dlq, "*.jsonl"))
	for _, f := range files {
		b, _ := os.ReadFile(f)
		text.Write(b)
	}
	return text.String()
}

// TestDeadLettersSurviveTheirOwner: the owner's whole disk is lost, volume included. Within a minute every open dead letter is
// listed, and in the volume of another node; replay through any node delivers them under the ids of the first attempt.
func TestDeadLettersSurviveTheirOwner(t *testing.T) {
	t.Parallel()
	b := bury(t, 30)
	lost := b.owner(nil)
	eventually(t, 10*time.Second, "the owner's volume holds them", func() error {
		for _, id := range b.ids {
			if !strings.Contains(volumeText(lost), id) {
				return fmt.Errorf("%s is missing", id)
			}
		}
		return nil
	})
	lost.kill()
	require.NoError(t, os.RemoveAll(lost.dlq))
	require.NoError(t, os.RemoveAll(lost.dir))
	b.c = newClient(t, b.other(lost).http, b.other(lost, b.other(lost)).http)
	next := b.owner(lost)
	eventually(t, time.Minute, "rebuilt in the new owner's volume", func() error {
		for _, id := range b.ids {
			if !strings.Contains(volumeText(next), id) {
				return fmt.Errorf("%s is missing", id)
			}
		}
		return nil
	})
	letters, err := b.c.DeadLetters(context.Background(), client.DeadLetterFilter{})
	require.NoError(t, err)
	require.Len(t, letters, 30)

	b.receiver.Script("it")
	through := b.other(lost, next).client() // not the owner: it is forwarded
	res, err := through.Replay(context.Background(), client.ActRequest{IDs: append([]string{"0123"}, b.ids...), Reason: "mended"})
	require.NoError(t, err)
	require.Equal(t, map[string]int{"delivered": 30, "not_found": 1}, res.Counts, "%v", res.Results)
	b.sameIDs()
	e := b.ledger(b.c)
	require.EqualValues(t, 30, e.Delivered)
	require.Zero(t, e.Dead)
	audit, err := b.c.Audit(context.Background(), 10, false)
	require.NoError(t, err)
	require.Equal(t, "dlq.replay", audit[0].Action)
	require.False(t, audit[0].Open)
	eventually(t, 10*time.Second, "resolved records leave the volume", func() error {
		if strings.Contains(volumeText(next), b.ids[0]) {
			return fmt.Errorf("%s is still there", b.ids[0])
		}
		return nil
	})
}

// TestReplayWhoseOwnerIsKilledIsUnknownAndCanBeLookedUp: B25, K21. The owner dies while ten replays hang at the destination:
// every id is answered, the intent closes as unknown, and a second replay delivers each of them once more under the same ids.
func TestReplayWhoseOwnerIsKilledIsUnknownAndCanBeLookedUp(t *testing.T) {
	t.Parallel()
	b := bury(t, 10)
	owner := b.owner(nil)
	asked := b.other(owner).client()
	b.receiver.Script("it", destination.Step{Fault: destination.Hang})
	type result struct {
		res client.ActResult
		err error
	}
	done := make(chan result, 1)
	go func() {
		res, err := asked.Replay(context.Background(), client.ActRequest{IDs: b.ids, Reason: "try"})
		done <- result{res, err}
	}()
	eventually(t, 10*time.Second, "attempts are under way", func() error {
		if len(b.receiver.Received("it")) == 0 {
			return fmt.Errorf("none yet")
		}
		return nil
	})
	owner.kill()
	r := <-done
	if r.err == nil {
		require.Len(t, r.res.Results, 10)
		require.Equal(t, 10, r.res.Counts["unknown"], "%v", r.res.Results)
	}
	b.c = newClient(t, b.other(owner).http, b.other(owner, b.other(owner)).http)
	b.owner(owner)
	eventually(t, 20*time.Second, "the intent is closed", func() error {
		audit, err := b.c.Audit(context.Background(), 10, false)
		if err != nil {
			return err
		}
		for _, a := range audit {
			if a.Action == "dlq.replay" && a.Result == "unknown" {
				return nil
			}
		}
		return fmt.Errorf("%+v", audit)
	})
	b.receiver.Script("it")
	eventually(t, 30*time.Second, "the second replay delivers", func() error {
		letters, err := b.c.DeadLetters(context.Background(), client.DeadLetterFilter{})
		if err != nil {
			return err
		}
		var open []string
		for _, l := range letters {
			open = append(open, l.ID)
		}
		if len(open) == 0 {
			return nil
		}
		res, err := b.c.Replay(context.Background(), client.ActRequest{IDs: open})
		if err == nil {
			err = fmt.Errorf("%v", res.Counts)
		}
		return err
	})
	b.sameIDs()
	e := b.ledger(b.c)
	require.EqualValues(t, 10, e.Delivered)
	owner.start()
	owner.waitReady(30 * time.Second)
	require.EqualValues(t, 10, b.ledger(owner.client()).Delivered)
}

// TestWithoutAMajorityNothingIsReplayed: no intent, no act (P9).
func TestWithoutAMajorityNothingIsReplayed(t *testing.T) {
	t.Parallel()
	b := bury(t, 3)
	owner := b.owner(nil)
	b.receiver.Script("it")
	for _, p := range b.nodes {
		if p != owner {
			p.kill()
		}
	}
	_, err := owner.client().Replay(context.Background(), client.ActRequest{IDs: b.ids})
	require.Error(t, err)
	_, err = owner.client().Discard(context.Background(), client.ActRequest{IDs: b.ids, Reason: "x"})
	require.Error(t, err)
	time.Sleep(2 * time.Second)
	require.Empty(t, b.receiver.Received("it"))
	for _, p := range b.nodes {
		if p != owner {
			p.start()
		}
	}
	for _, p := range b.nodes {
		p.waitReady(30 * time.Second)
	}
	require.EqualValues(t, 3, b.ledger(b.c).Dead)
	require.Empty(t, b.receiver.Received("it"))
}

// TestAFailingVolumeMovesItsEmittersAndLosesNothing: DESIGN 4.18. The owner's volume fails in the middle of things; another node
// takes the emitter and buries what has to be buried; all goes on when the volume is mended.
func TestAFailingVolumeMovesItsEmittersAndLosesNothing(t *testing.T) {
	t.Parallel()
	b := bury(t, 5)
	owner := b.owner(nil)
	kept := owner.dlq + ".kept"
	require.NoError(t, os.Rename(owner.dlq, kept))
	require.NoError(t, os.WriteFile(owner.dlq, nil, 0o600)) // from now on every operation on the volume fails
	sendByID(t, b.c, "orders", batch("d", 5, 20))
	next := b.owner(owner)
	eventually(t, 30*time.Second, "buried by the new owner", func() error {
		if e := b.ledger(b.c); e.Dead != 25 || e.Pending != 0 {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	require.NotEqual(t, owner.id, next.id)
	require.NoError(t, os.Remove(owner.dlq))
	require.NoError(t, os.Rename(kept, owner.dlq))
	b.receiver.Script("it")
	sendByID(t, b.c, "orders", batch("d", 25, 5))
	eventually(t, 30*time.Second, "delivery goes on", func() error {
		if e := b.ledger(b.c); e.Delivered != 5 {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	eventually(t, 30*time.Second, "every dead letter is in the new owner's volume", func() error {
		letters, err := b.c.DeadLetters(context.Background(), client.DeadLetterFilter{})
		if err != nil {
			return err
		}
		text := volumeText(b.owner(nil))
		for _, l := range letters {
			if !strings.Contains(text, l.ID) {
				return fmt.Errorf("%s is missing", l.ID)
			}
		}
		return nil
	})
}
