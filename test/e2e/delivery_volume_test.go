package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
	"penstock/internal/destination"
)

// metric is the sum of a metric's samples on a node.
func (p *proc) metric(name string) (sum float64) {
	p.g.t.Helper()
	_, text := p.do("GET", "/metrics", "", nil)
	for line := range strings.SplitSeq(text, "\n") {
		if rest, ok := strings.CutPrefix(line, name); ok && rest != "" && (rest[0] == ' ' || rest[0] == '{') {
			v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
			require.NoError(p.g.t, err, line)
			sum += v
		}
	}
	return sum
}

// recordsOf are the records in a node's volume by id, as an export gives them; of each the event and its data as they stand there.
func recordsOf(t *testing.T, p *proc) map[string]string {
	t.Helper()
	var out bytes.Buffer
	eventually(t, 20*time.Second, "an export", func() error {
		out.Reset()
		return p.client().Export(context.Background(), client.DeadLetterFilter{}, &out)
	})
	all := map[string]string{}
	for line := range strings.SplitSeq(strings.TrimSpace(out.String()), "\n") {
		if line == "" {
			continue
		}
		var r struct {
			ID           string          `json:"id"`
			CompactionID string          `json:"compactionId"`
			Event        json.RawMessage `json:"event"`
			Data         json.RawMessage `json:"data"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &r), line)
		require.NotEmpty(t, r.CompactionID, line)
		require.NotEmpty(t, r.Event, line)
		all[r.ID] = r.CompactionID + " " + string(r.Event) + " " + string(r.Data)
	}
	return all
}

// TestShows5AVolumeThatIsGoneIsRebuiltByteForByte: the owner's volume is deleted, then its whole disk. Within a minute all open
// dead letters, of which some are a part of their compaction only, are listed and in a volume again, the event byte for byte, and
// replay delivers them under their ids.
func TestShows5AVolumeThatIsGoneIsRebuiltByteForByte(t *testing.T) {
	t.Parallel()
	b := newBuried(t, options{})
	ctx := context.Background()
	b.receiver.Script("it", destination.Step{Status: 410})
	_, err := b.c.PutChannel(ctx, "orders", channelSpec("orders", `"types":["t"],"on_invalid":"poison"`, webhookEmitter("billing", b.web+"/hook/it",
		`"dead_letter":{"max_retries":0},"compaction":{"events":4,"linger":"200ms"}`)), client.PutOptions{})
	require.NoError(t, err)
	waitOwned(t, b.c, "orders")
	var events []string
	for i := range 16 {
		kind := "t"
		if i%4 == 1 {
			kind = "other" // poison: the rest of its compaction dies apart from it
		}
		events = append(events, fmt.Sprintf(`{"specversion":"1.0","id":"k%d","source":"/s","type":%q,"data":{"n": %d.10, "s":"\u00e9\ud83d\ude00 ","big":228930314431312345}}`, i, kind, i))
	}
	sendByID(t, b.c, "orders", []byte("["+strings.Join(events, ",")+"]"))
	eventually(t, 30*time.Second, "all are dead letters or poison", func() error {
		if e := b.ledger(b.c); e.Dead != 12 || e.Poison != 4 {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	owner := b.owner(nil)
	want := recordsOf(t, owner)
	require.Len(t, want, 16)
	same := func(p *proc) error {
		if have := recordsOf(t, p); fmt.Sprint(have) != fmt.Sprint(want) {
			return fmt.Errorf("%d records of %d, or not the same", len(have), len(want))
		}
		return nil
	}
	owner.kill()
	require.NoError(t, os.RemoveAll(owner.dlq))
	owner.start()
	owner.waitReady(30 * time.Second)
	eventually(t, time.Minute, "rebuilt after the volume was deleted", func() error { return same(b.owner(nil)) })

	owner = b.owner(nil)
	owner.kill()
	require.NoError(t, os.RemoveAll(owner.dlq))
	require.NoError(t, os.RemoveAll(owner.dir))
	b.c = newClient(t, b.other(owner).http, b.other(owner, b.other(owner)).http)
	next := b.owner(owner)
	eventually(t, time.Minute, "rebuilt after the disk was lost", func() error { return same(next) })
	letters, err := b.c.DeadLetters(ctx, client.DeadLetterFilter{})
	require.NoError(t, err)
	require.Len(t, letters, 16)
	compactions := map[string]bool{}
	b.receiver.Script("it")
	for _, l := range letters {
		require.Contains(t, want[l.ID], l.CompactionID+" ")
		compactions[l.CompactionID] = true
		if l.State == "dead" {
			b.ids = append(b.ids, l.ID)
		}
	}
	require.Len(t, compactions, 4)
	require.Equal(t, map[string]int{"delivered": 12}, b.replay(client.ActRequest{IDs: b.ids}).Counts)
	for _, r := range b.receiver.Received("it") {
		require.True(t, compactions[r.CompactionID], "replayed under the id of the first attempt")
	}
}

// TestShows6ADirtyVolumeIsPutInOrder: a non-empty active file, a leftover rewrite file, three malformed lines, a torn last line, a
// 1-byte file and an unknown file, as a killed process and an operator may leave them, on a real node.
func TestShows6ADirtyVolumeIsPutInOrder(t *testing.T) {
	t.Parallel()
	b := newBuried(t, options{nodes: 1, single: true})
	b.receiver.Script("it", destination.Step{Status: 410})
	_, err := b.c.PutChannel(context.Background(), "orders", channelSpec("orders", "", webhookEmitter("billing", b.web+"/hook/it", `"dead_letter":{"max_retries":0}`)), client.PutOptions{})
	require.NoError(t, err)
	waitOwned(t, b.c, "orders")
	sendByID(t, b.c, "orders", batch("d", 0, 8))
	eventually(t, 30*time.Second, "dead letters", func() error {
		if e := b.ledger(b.c); e.Dead != 8 {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	n := b.nodes[0]
	want := recordsOf(t, n)
	n.kill()
	path := func(name string) string { return filepath.Join(n.dlq, name) }
	active, err := os.ReadFile(path("active.jsonl"))
	require.NoError(t, err)
	lines := strings.SplitAfter(strings.TrimSpace(string(active)), "\n")
	require.Len(t, lines, 8, "all in the active file: it is sealed at the next start")
	bad := []string{"{\"v\":1,\"id\":\"nonsense\"}\n", "\x00\xff not JSON\n", strings.Replace(lines[0], "410", "411", 1)}
	torn := lines[7][:len(lines[7])/2]
	require.NoError(t, os.WriteFile(path("active.jsonl"), []byte(strings.Join(lines[:4], "")+strings.Join(bad, "")+strings.Join(lines[4:7], "")+torn), 0o600))
	require.NoError(t, os.WriteFile(path("sealed-0000000000000002.jsonl.tmp"), []byte(lines[0]), 0o600))
	require.NoError(t, os.WriteFile(path("notes.txt"), []byte("an operator's"), 0o644))
	require.NoError(t, os.WriteFile(path("sealed-0000000000000001.jsonl"), []byte("x"), 0o600)) // a 1-byte file
	n.start()
	n.waitReady(30 * time.Second)

	eventually(t, 30*time.Second, "every record is in the volume again", func() error {
		if have := recordsOf(t, n); fmt.Sprint(have) != fmt.Sprint(want) {
			return fmt.Errorf("%d records of %d", len(have), len(want))
		}
		return nil
	})
	require.NoFileExists(t, path("sealed-0000000000000002.jsonl.tmp"))
	quarantine, err := os.ReadFile(path("quarantine.jsonl"))
	require.NoError(t, err)
	for _, line := range append(bad, torn+"\n", "x\n") {
		require.Contains(t, string(quarantine), line, "byte for byte")
	}
	info, err := os.Stat(path("quarantine.jsonl"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.EqualValues(t, 5, n.metric("penstock_dlq_quarantined_total"))
	notes, err := os.ReadFile(path("notes.txt"))
	require.NoError(t, err)
	require.Equal(t, "an operator's", string(notes))
	files, err := os.ReadDir(n.dlq)
	require.NoError(t, err)
	sealed := 0
	for _, f := range files {
		if strings.HasPrefix(f.Name(), "sealed-") {
			sealed++
		}
	}
	require.NotZero(t, sealed, "%v", files)
	require.Equal(t, 1, strings.Count(volumeText(n), "rebuilt from the log"), "only the torn one is made anew: the others know what the destination answered")

	b.receiver.Script("it")
	for id := range want {
		b.ids = append(b.ids, id)
	}
	eventually(t, 30*time.Second, "replayable", func() error {
		res := b.replay(client.ActRequest{IDs: b.ids})
		if res.Counts["delivered"]+res.Counts["resolved"] != 8 {
			return fmt.Errorf("%v", res.Results)
		}
		return nil
	})
	require.EqualValues(t, 8, b.ledger(b.c).Delivered)
}

// mounted is a cluster whose dead-letter volumes are little file systems of their own.
func mounted(t *testing.T) *group {
	t.Helper()
	g := newGroup(t, options{})
	for _, p := range g.nodes {
		require.NoError(t, os.MkdirAll(p.dlq, 0o700))
		if err := syscall.Mount("tmpfs", p.dlq, "tmpfs", 0, "size=1m"); err != nil {
			t.Skipf("needs the right to mount: %v", err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(p.dlq, syscall.MNT_DETACH) })
	}
	for _, p := range g.nodes {
		p.start()
	}
	for _, p := range g.nodes {
		p.waitReady(20 * time.Second)
	}
	return g
}

// TestShows6AVolumeThatIsFullOrReadOnlyLosesNothing: the file system of the owner's volume is full: the emitter moves. Those of
// all are: it is held. One becomes read-only: the same. Nothing is lost, nothing is deleted, and all goes on when it is mended.
func TestShows6AVolumeThatIsFullOrReadOnlyLosesNothing(t *testing.T) {
	t.Parallel()
	b := &buried{group: mounted(t), receiver: &destination.Server{}, first: map[string]destination.Received{}}
	web := newWeb(t, b.receiver)
	b.c = b.client()
	b.receiver.Script("it", destination.Step{Status: 410})
	_, err := b.c.PutChannel(context.Background(), "orders", channelSpec("orders", "", webhookEmitter("billing", web+"/hook/it", `"dead_letter":{"max_retries":0}`)), client.PutOptions{})
	require.NoError(t, err)
	waitOwned(t, b.c, "orders")
	sent := 0
	send := func() {
		sendByID(t, b.c, "orders", batch("d", sent, 5))
		sent += 5
	}
	allDead := func(what string) {
		t.Helper()
		eventually(t, time.Minute, what, func() error {
			if e := b.ledger(b.c); e.Pending != 0 || int(e.Dead) != sent {
				return fmt.Errorf("%+v of %d", e, sent)
			}
			return nil
		})
	}
	filler := func(p *proc) string { return filepath.Join(p.dlq, "filler") }
	fill := func(p *proc) {
		f, err := os.Create(filler(p))
		require.NoError(t, err)
		defer f.Close()
		for _, size := range []int{1 << 16, 4096, 1} {
			for chunk := make([]byte, size); err == nil; {
				_, err = f.Write(chunk)
			}
			require.ErrorIs(t, err, syscall.ENOSPC)
			err = nil
		}
	}
	send()
	allDead("buried")
	first := b.owner(nil)
	kept := volumeText(first)
	fill(first)
	send()
	b.owner(first)
	allDead("buried by another node")
	require.Contains(t, volumeText(first), kept, "nothing is deleted")

	for _, p := range b.nodes {
		if p != first {
			fill(p)
		}
	}
	send()
	eventually(t, time.Minute, "held", func() error {
		sum := 0.0
		for _, p := range b.nodes {
			sum += p.metric("penstock_emit_held")
		}
		if e := b.ledger(b.c); sum == 0 || e.Pending == 0 {
			return fmt.Errorf("held %v, %+v", sum, e)
		}
		return nil
	})
	require.EqualValues(t, sent-5, b.ledger(b.c).Dead, "no outcome says what is not on disk")
	for _, p := range b.nodes {
		require.NoError(t, os.Remove(filler(p)))
	}
	allDead("it goes on when there is room")

	owner := b.owner(nil)
	// A file system that became read-only: whatever is opened from now on cannot be written.
	eventually(t, time.Minute, "the active file is sealed, since a replay failed", func() error {
		b.replay(client.ActRequest{IDs: ids(mustLetters(t, b))})
		if owner = b.owner(nil); owner == nil {
			return fmt.Errorf("no owner")
		}
		if _, err := os.Stat(filepath.Join(owner.dlq, "active.jsonl")); err == nil {
			return fmt.Errorf("there is one")
		}
		return nil
	})
	require.NoError(t, syscall.Mount(owner.dlq, owner.dlq, "", syscall.MS_BIND, ""))
	t.Cleanup(func() { _ = syscall.Unmount(owner.dlq, syscall.MNT_DETACH) })
	require.NoError(t, syscall.Mount("", owner.dlq, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	send()
	moved := b.owner(owner)
	allDead("buried while one volume is read-only")
	require.NotEqual(t, owner.id, moved.id)
	require.NoError(t, syscall.Unmount(owner.dlq, syscall.MNT_DETACH))
	b.receiver.Script("it")
	send()
	eventually(t, time.Minute, "delivery goes on", func() error {
		if e := b.ledger(b.c); e.Pending != 0 || e.Delivered < 5 {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	eventually(t, time.Minute, "the mended volume works again", func() error {
		if b, err := os.ReadFile(owner.logTo); err != nil || !bytes.Contains(b, []byte("dead-letter volume works again")) {
			return fmt.Errorf("its node has not said so: %v", err)
		}
		return nil
	})
	e := b.ledger(b.c)
	require.EqualValues(t, sent, e.Delivered+e.Dead)
}

func mustLetters(t *testing.T, b *buried) []client.DeadLetter {
	t.Helper()
	list, err := b.c.DeadLetters(context.Background(), client.DeadLetterFilter{})
	require.NoError(t, err)
	require.NotEmpty(t, list)
	return list
}
