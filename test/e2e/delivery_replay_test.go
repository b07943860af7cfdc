package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
	"penstock/internal/destination"
)

// replay asks any node, until one takes the request.
func (b *buried) replay(r client.ActRequest) (res client.ActResult) {
	b.t.Helper()
	eventually(b.t, 30*time.Second, "a replay is taken", func() (err error) {
		res, err = b.c.Replay(context.Background(), r)
		return err
	})
	return res
}

// trail are the acts of one kind, the newest first.
func (b *buried) trail(action string) (all []client.AuditRecord) {
	b.t.Helper()
	eventually(b.t, 20*time.Second, "the trail", func() error {
		list, err := b.c.Audit(context.Background(), 1000, false)
		all = nil
		for _, r := range list {
			if r.Action == action {
				all = append(all, r)
			}
		}
		return err
	})
	return all
}

func statusOf(r client.ActResult) map[string]string {
	m := map[string]string{}
	for _, s := range r.Results {
		m[s.ID] = s.Status
	}
	return m
}

// TestShows8ManualReplayAnswersEachIDAndIsAudited: K18 to K21, through nodes that own none of it. 51 ids are refused and
// leave a rejection; unknown, repeated, resolved and foreign ids are answered one by one; two operators at once deliver once; a
// discard moves dead to discarded; --to sends to another emitter; while the emitter is paused nothing is sent.
func TestShows8ManualReplayAnswersEachIDAndIsAudited(t *testing.T) {
	t.Parallel()
	b := bury(t, 24)
	ctx := context.Background()
	owner := b.owner(nil)
	through := b.other(owner)
	b.c = through.client()

	many, err := json.Marshal(map[string]any{"ids": append(append(append([]string{}, b.ids...), b.ids...), b.ids[:3]...)})
	require.NoError(t, err)
	status, _ := through.post("/v1/dlq/replay", "application/json", many)
	require.Equal(t, http.StatusBadRequest, status)
	trail := b.trail("dlq.replay")
	require.Len(t, trail, 1)
	require.Equal(t, "rejected", trail[0].Result)
	require.Contains(t, trail[0].Detail, "51")
	require.Len(t, b.receiver.Received("it"), 24, "nothing was sent")

	// One resolved by a discard, before.
	res, err := b.c.Discard(ctx, client.ActRequest{IDs: b.ids[:1], Reason: "a test order"})
	require.NoError(t, err)
	require.Equal(t, map[string]int{"discarded": 1}, res.Counts)
	e := b.ledger(b.c)
	require.EqualValues(t, 1, e.Discarded)
	require.EqualValues(t, 23, e.Dead)
	require.Equal(t, "a test order", b.trail("dlq.discard")[0].Reason)

	// Paused: nothing is sent, and the answer says why.
	require.NoError(t, b.c.PauseEmitter(ctx, "orders", "billing", true, "look first"))
	res = b.replay(client.ActRequest{IDs: b.ids[1:2]})
	require.Equal(t, "forbidden", res.Results[0].Status)
	require.Contains(t, res.Results[0].Detail, "paused")
	require.NoError(t, b.c.PauseEmitter(ctx, "orders", "billing", false, ""))

	const foreign = "00112233445566778899aabbccddeeff"
	b.receiver.Script("it")
	ids := []string{b.ids[0], b.ids[1], b.ids[1], foreign, "no id at all", b.ids[2]}
	eventually(t, 30*time.Second, "the emitter runs again", func() error {
		res = b.replay(client.ActRequest{IDs: ids, Reason: "mended"})
		if s := statusOf(res)[b.ids[1]]; s == "failed" { // certainly not sent: it is starting
			return fmt.Errorf("%v", res.Results)
		}
		return nil
	})
	require.Len(t, res.Results, len(ids))
	for i, want := range []string{"resolved", "delivered", "delivered", "not_found", "not_found", "delivered"} {
		require.Equal(t, ids[i], res.Results[i].ID)
		require.Equal(t, want, res.Results[i].Status, "%v", res.Results)
	}
	sum := 0
	for _, n := range res.Counts {
		sum += n
	}
	require.Equal(t, len(ids), sum)
	require.Len(t, b.receiver.Received("it"), 2, "a repeated id is sent once")
	raw, err := json.Marshal(res)
	require.NoError(t, err)
	require.NotContains(t, string(raw), `"writer"`, "no payload in the answer")
	acts := b.trail("dlq.replay")
	require.Equal(t, res.RequestID, acts[0].RequestID)
	require.Equal(t, "failure", acts[0].Result, "not all were delivered")
	require.Equal(t, ids, acts[0].IDs)

	// Two operators at once, on two nodes, many times over.
	b.receiver.Script("it", destination.Step{Delay: destination.Duration(20 * time.Millisecond)})
	var group sync.WaitGroup
	var mu sync.Mutex
	delivered := map[string]int{}
	for _, p := range []*proc{through, b.other(owner, through)} {
		c := p.client()
		group.Go(func() {
			for range 3 {
				res, err := c.Replay(ctx, client.ActRequest{IDs: b.ids[3:13]})
				if err != nil {
					continue
				}
				mu.Lock()
				for id, s := range statusOf(res) {
					if s == "delivered" {
						delivered[id]++
					}
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	for _, id := range b.ids[3:13] {
		require.Equal(t, 1, delivered[id], "%s", id)
	}
	require.Len(t, b.receiver.Received("it"), 10, "each once, whoever asks")

	// --to another emitter: it is delivered, and this one's destination sees nothing.
	spec := channelSpec("orders", "", webhookEmitter("billing", b.web+"/hook/it", `"dead_letter":{"max_retries":0}`), webhookEmitter("second", b.web+"/hook/second", ""))
	_, err = b.c.PutChannel(ctx, "orders", spec, client.PutOptions{})
	require.NoError(t, err)
	waitOwned(t, b.c, "orders")
	b.receiver.Script("it", destination.Step{Status: 500})
	eventually(t, 30*time.Second, "sent to the other", func() error {
		res = b.replay(client.ActRequest{IDs: b.ids[13:14], To: "second"})
		if s := res.Results[0].Status; s != "delivered" && s != "resolved" {
			return fmt.Errorf("%v", res.Results)
		}
		return nil
	})
	require.Empty(t, b.receiver.Received("it"))
	got := b.receiver.Received("second")
	require.Len(t, got, 1)
	require.Equal(t, b.first[got[0].ID].CompactionID, got[0].CompactionID)
	res = b.replay(client.ActRequest{IDs: b.ids[14:15], To: "nobody"})
	require.Equal(t, "failed", res.Results[0].Status)
	require.Contains(t, res.Results[0].Detail, "no emitter nobody")

	// A dry run attempts nothing and needs no intent.
	before := len(b.trail("dlq.replay"))
	res = b.replay(client.ActRequest{IDs: b.ids[14:16], DryRun: true})
	require.Equal(t, map[string]int{"would_replay": 2}, res.Counts)
	require.Len(t, b.trail("dlq.replay"), before)
	b.sameIDs()
	for _, r := range b.trail("dlq.replay") {
		require.False(t, r.Open, "every intent has its outcome")
	}
	// Changes of channels are in the trail, too (P9).
	require.NotEmpty(t, b.trail("channel.put"))
	require.Equal(t, "success", b.trail("channel.put")[0].Result)
	require.Equal(t, []string{"orders"}, b.trail("channel.put")[0].IDs)
	e = b.ledger(b.c)
	require.EqualValues(t, 24, e.Delivered+e.Dead+e.Discarded)
}

// TestShows8LeaderKilledInMidReplay: the leader, which is not the owner, dies while replays are under way. Every id is answered,
// with what came of it or unknown; unknown ones resolve by looking them up; the intent gets its outcome.
func TestShows8LeaderKilledInMidReplay(t *testing.T) {
	t.Parallel()
	b := bury(t, 12)
	ctx := context.Background()
	owner := b.owner(nil)
	leader := b.leader()
	if leader == owner {
		leader = b.other(owner)
		_, _ = b.run(0, "", "cluster", "transfer", leader.id)
		eventually(t, 20*time.Second, "the lead moves", func() error {
			if l := b.leader(); l != leader {
				return fmt.Errorf("%s leads", l.id)
			}
			return nil
		})
	}
	asked := b.other(owner, leader)
	b.receiver.Script("it", destination.Step{Delay: destination.Duration(time.Second)})
	type result struct {
		res client.ActResult
		err error
	}
	done := make(chan result, 1)
	go func() {
		res, err := asked.client().Replay(ctx, client.ActRequest{IDs: b.ids, Reason: "mended"})
		done <- result{res, err}
	}()
	eventually(t, 20*time.Second, "attempts are under way", func() error {
		if len(b.receiver.Received("it")) == 0 {
			return fmt.Errorf("none yet")
		}
		return nil
	})
	leader.kill()
	r := <-done
	require.NoError(t, r.err, "the request was begun, and is answered")
	require.Len(t, r.res.Results, 12)
	for _, s := range r.res.Results {
		require.Contains(t, []string{"delivered", "failed", "unknown"}, s.Status, "%v", r.res.Results)
		if s.Status == "failed" {
			require.Contains(t, s.Detail, "not sent")
		}
	}
	b.c = newClient(t, owner.http, asked.http)
	b.receiver.Script("it")
	eventually(t, time.Minute, "every id can be looked up, and what is open is delivered", func() error {
		letters, err := b.c.DeadLetters(ctx, client.DeadLetterFilter{})
		if err != nil {
			return err
		}
		var open []string
		for _, l := range letters {
			open = append(open, l.ID)
		}
		if len(open) > 0 {
			res, err := b.c.Replay(ctx, client.ActRequest{IDs: open})
			return fmt.Errorf("%v %v", res.Counts, err)
		}
		for _, id := range b.ids {
			doc, err := b.c.DeadLetter(ctx, id)
			if err != nil || !strings.Contains(string(doc), "replayed") {
				return fmt.Errorf("%s: %s %w", id, doc, err)
			}
		}
		return nil
	})
	b.sameIDs()
	require.EqualValues(t, 12, b.ledger(b.c).Delivered)
	eventually(t, 20*time.Second, "every intent has its outcome", func() error {
		for _, r := range b.trail("dlq.replay") {
			if r.Open {
				return fmt.Errorf("%+v", r)
			}
		}
		return nil
	})
}

// TestShows7WhatReachedMaxRetriesStaysAndIsNotSent: K16. A record at max_retries, and one above it, is still listed after ten
// scans, and nothing further is sent, restart included; a replay by hand still works. Poison gets no attempt, failover included.
func TestShows7WhatReachedMaxRetriesStaysAndIsNotSent(t *testing.T) {
	t.Parallel()
	b := newBuried(t, options{env: []string{"PENSTOCK_DEAD_LETTER_SCAN=1s"}})
	ctx := context.Background()
	b.receiver.Script("it", destination.Step{Status: 410})
	_, err := b.c.PutChannel(ctx, "orders", channelSpec("orders", `"types":["e2e.counted"],"on_invalid":"poison"`,
		webhookEmitter("billing", b.web+"/hook/it", `"dead_letter":{"max_retries":2}`)), client.PutOptions{})
	require.NoError(t, err)
	waitOwned(t, b.c, "orders")
	sendByID(t, b.c, "orders", batch("d", 0, 2))
	poison := []byte(`[{"specversion":"1.0","id":"p","source":"/e2e/p","type":"other","data":1}]`)
	sendByID(t, b.c, "orders", poison)
	list := func() (dead []client.DeadLetter) {
		eventually(t, 20*time.Second, "listed", func() error {
			letters, err := b.c.DeadLetters(ctx, client.DeadLetterFilter{State: "dead"})
			dead = letters
			return err
		})
		return dead
	}
	eventually(t, time.Minute, "both at max_retries", func() error {
		dead := list()
		if len(dead) != 2 || dead[0].Redeliveries != 2 || dead[1].Redeliveries != 2 {
			return fmt.Errorf("%+v", dead)
		}
		return nil
	})
	ids := []string{list()[0].ID, list()[1].ID}
	res := b.replay(client.ActRequest{IDs: ids[1:]}) // by hand it fails once more: one above
	require.Equal(t, "failed", res.Results[0].Status)
	sends := len(b.receiver.Received("it"))
	require.Equal(t, 2+2*2+1, sends)
	quiet := func(scans int) {
		t.Helper()
		time.Sleep(time.Duration(scans) * 1100 * time.Millisecond)
		require.Len(t, b.receiver.Received("it"), sends, "nothing further is sent")
		dead := list()
		require.Len(t, dead, 2)
		require.EqualValues(t, 2, dead[0].Redeliveries)
		require.EqualValues(t, 3, dead[1].Redeliveries)
	}
	quiet(10)
	owner := b.owner(nil) // the restart, and a failover: poison gets no attempt, and the counts are kept
	owner.kill()
	b.c = newClient(t, b.other(owner).http, b.other(owner, b.other(owner)).http)
	b.owner(owner)
	quiet(3)
	owner.start()
	owner.waitReady(30 * time.Second)
	b.c = b.client()
	require.EqualValues(t, 1, b.ledger(b.c).Poison)
	for _, r := range b.receiver.Received("it") {
		require.NotEqual(t, "p", r.ID, "poison was attempted")
	}
	b.receiver.Script("it")
	eventually(t, 30*time.Second, "by hand it works", func() error {
		res := b.replay(client.ActRequest{IDs: ids})
		if res.Counts["delivered"]+res.Counts["resolved"] != 2 {
			return fmt.Errorf("%v", res.Results)
		}
		return nil
	})
	letters, err := b.c.DeadLetters(ctx, client.DeadLetterFilter{State: "poison"})
	require.NoError(t, err)
	require.Len(t, letters, 1)
	require.Equal(t, "forbidden", b.replay(client.ActRequest{IDs: []string{letters[0].ID}}).Results[0].Status, "poison needs force")
	require.Equal(t, "delivered", b.replay(client.ActRequest{IDs: []string{letters[0].ID}, Force: true}).Results[0].Status)
	e := b.ledger(b.c)
	require.EqualValues(t, 3, e.Delivered)
}
