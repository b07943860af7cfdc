package replay

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/dlq"
	"penstock/emit"
	"penstock/event"
	"penstock/fsm"
	"penstock/fsm/command"
	"penstock/internal/spec"
	"penstock/internal/vfs/memfs"
)

// world is a cluster of one without Raft: commands are applied at once.
type world struct {
	t       *testing.T
	machine *fsm.Machine
	volume  *dlq.Volume

	mu    sync.Mutex
	index uint64
	down  error
	call  func(node string, body []byte) ([]byte, error)
}

func newWorld(t *testing.T) *world {
	m, err := fsm.Open(newStore(), fsm.Config{})
	require.NoError(t, err)
	v, err := dlq.Open("/dlq", dlq.Config{NodeID: "n1", FS: memfs.New()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	return &world{t: t, machine: m, volume: v}
}

func (w *world) Propose(_ context.Context, c []byte) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down != nil {
		return nil, w.down
	}
	w.index++
	res, err := w.machine.Apply(w.index, 1, command.AppendEntry(nil, time.Now().UnixNano(), [][]byte{c}))
	require.NoError(w.t, err)
	return res[0], nil
}

func (w *world) ReadIndex(context.Context) (uint64, error) { return w.index, w.down }
func (w *world) Now() time.Time                            { return time.Now() }
func (w *world) Handle(string, func(context.Context, string, []byte) ([]byte, error)) {
}
func (w *world) Call(_ context.Context, node, _ string, body []byte) ([]byte, error) {
	return w.call(node, body)
}

func (w *world) do(c command.Command) []byte {
	b, err := w.Propose(context.Background(), command.Encode(c))
	require.NoError(w.t, err)
	return b
}

// bury makes a channel whose emitter, owned by the node, has n dead letters, and gives their ids.
func (w *world) bury(owner string, n int) (ids []string) {
	c := spec.Channel{Name: "c", Semantics: spec.AtLeastOnce, Emitters: []spec.Emitter{{Name: "e", Kind: "stdout", Stdout: &spec.Stdout{}}}}
	c.ApplyDefaults()
	w.do(command.ChannelPut{Spec: c.Canonical()})
	info, _ := w.machine.Channel("c")
	events := make([]event.Event, n)
	for i := range events {
		events[i] = event.Event{ID: "s", Source: "/s", Type: "t", ServerID: true, DataKind: event.DataJSON, Data: []byte("1")}
	}
	body, err := event.EncodeBatch(nil, event.BatchHeader{ChannelIndex: info.Index, SpecVersion: info.Version}, event.HashKey{}, events, make([]bool, n))
	require.NoError(w.t, err)
	w.do(command.Batch{Body: body})
	at := w.index
	e := w.machine.Emitters()[0]
	w.do(command.Assign{Items: []command.Assignment{{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Node: owner}}})
	out := command.Outcome{First: 1, Last: uint64(n), Kind: command.Dead}
	for i := range n {
		out.Positions = append(out.Positions, event.Position{Index: at, Ordinal: uint32(i)})
	}
	w.do(command.Outcomes{ChannelIndex: e.ChannelIndex, EmitterIndex: e.EmitterIndex, Epoch: 1, Node: owner, Outcomes: []command.Outcome{out}})
	for _, l := range w.machine.DeadLetters("", "", "") {
		ids = append(ids, l.ID)
	}
	require.Len(w.t, ids, n)
	return ids
}

func (w *world) service() *Service {
	return New(Deps{NodeID: "n1", Machine: w.machine, Cluster: w, Volume: w.volume, Logger: slog.New(slog.DiscardHandler)})
}

func (w *world) post(s *Service, path, body string) (int, map[string]any) {
	mux := http.NewServeMux()
	for pattern, h := range s.Handlers(func(*http.Request) string { return "tester" }) {
		mux.Handle(pattern, h)
	}
	rec := httptest.NewRecorder()
	mux.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	out := map[string]any{}
	require.NoError(w.t, json.Unmarshal(rec.Body.Bytes(), &out), rec.Body.String())
	return rec.Code, out
}

func TestRefusedRequestsLeaveARejectionAndNothingElse(t *testing.T) { // B25, P9
	w := newWorld(t)
	ids := w.bury("n1", 1)
	s := w.service()
	many, err := json.Marshal(make([]string, 51))
	require.NoError(t, err)
	for name, c := range map[string]struct {
		path, body string
		want       int
	}{
		"51 ids":         {"/v1/dlq/replay", `{"ids":` + string(many) + `}`, 400},
		"none":           {"/v1/dlq/replay", `{"ids":[]}`, 400},
		"all":            {"/v1/dlq/replay", `{"all":true}`, 400},
		"no JSON":        {"/v1/dlq/discard", `ids`, 400},
		"without reason": {"/v1/dlq/discard", `{"ids":["` + ids[0] + `"]}`, 400},
		"pause":          {"/v1/emitters/c/nobody/pause", ``, 404},
	} {
		before := len(w.machine.Audit(fsm.AuditQuery{Limit: 1000}))
		code, out := w.post(s, c.path, c.body)
		require.Equal(t, c.want, code, "%s: %v", name, out)
		trail := w.machine.Audit(fsm.AuditQuery{Limit: 1000})
		require.Len(t, trail, before+1, name)
		require.Equal(t, fsm.AuditRejected, trail[before].Result, name)
	}
	require.Len(t, w.machine.DeadLetters("", "", ""), 1)
	require.False(t, w.machine.Emitters()[0].Paused)
}

func TestWithoutACommittedIntentNothingIsDispatched(t *testing.T) { // P9
	w := newWorld(t)
	ids := w.bury("n2", 1)
	s := w.service()
	w.call = func(string, []byte) ([]byte, error) {
		t.Error("dispatched")
		return nil, errors.New("x")
	}
	w.down = errors.New("no leader")
	code, _ := w.post(s, "/v1/dlq/replay", `{"ids":["`+ids[0]+`"]}`)
	require.Equal(t, 504, code)
	code, _ = w.post(s, "/v1/dlq/discard", `{"ids":["`+ids[0]+`"],"reason":"r"}`)
	require.Equal(t, 504, code)
}

func TestAnAnswerOfAnOwnerThatDoesNotAddUpIsUnknown(t *testing.T) { // K20, K21
	w := newWorld(t)
	ids := w.bury("n2", 2)
	s := w.service()
	for name, answer := range map[string]func(request) ([]byte, error){
		"none":     func(request) ([]byte, error) { return nil, errors.New("connection lost") },
		"garbage":  func(request) ([]byte, error) { return []byte("{"), nil },
		"too few":  func(q request) ([]byte, error) { return json.Marshal(same(q.IDs[:1], emit.ReplayDelivered, "")) },
		"no state": func(q request) ([]byte, error) { return json.Marshal(same(q.IDs, "", "")) },
		"another's": func(q request) ([]byte, error) {
			return json.Marshal(same([]string{"x", "y"}, emit.ReplayDelivered, ""))
		},
	} {
		w.call = func(node string, body []byte) ([]byte, error) {
			require.Equal(t, "n2", node)
			var q request
			require.NoError(t, json.Unmarshal(body, &q))
			return answer(q)
		}
		a, err := s.Replay(t.Context(), Act{Actor: "a", Action: "dlq.replay", Targets: ids}, ReplayOptions{})
		require.NoError(t, err, name)
		require.Equal(t, map[emit.ReplayState]int{emit.ReplayUnknown: 2}, a.Counts, name)
		rec, _ := w.machine.AuditOf(a.Intent)
		require.Equal(t, fsm.AuditUnknown, rec.Result, name)
	}
	w.call = func(_ string, body []byte) ([]byte, error) {
		var q request
		require.NoError(t, json.Unmarshal(body, &q))
		require.Positive(t, q.Within)
		return json.Marshal(same(q.IDs, emit.ReplayDelivered, ""))
	}
	a, err := s.Replay(t.Context(), Act{Actor: "a", Targets: []string{ids[0], "ff", ids[0], ids[1]}}, ReplayOptions{})
	require.NoError(t, err)
	require.Equal(t, map[emit.ReplayState]int{emit.ReplayDelivered: 3, emit.ReplayNotFound: 1}, a.Counts)
}

func TestDropDiscardsUnderAnIntentOfTheNode(t *testing.T) {
	w := newWorld(t)
	ids := w.bury("n1", 3)
	s := w.service()
	var drops []dlq.Drop
	for _, l := range w.machine.DeadLetters("", "", "")[:2] {
		drops = append(drops, dlq.Drop{ID: l.ID, ChannelIndex: l.ChannelIndex, EmitterIndex: l.EmitterIndex, Seq: l.Seq, Cause: "max_bytes"})
	}
	require.NoError(t, s.Drop(t.Context(), drops))
	require.NoError(t, s.Drop(t.Context(), drops), "what is discarded already may go")
	left := w.machine.DeadLetters("", "", "")
	require.Len(t, left, 1)
	require.Equal(t, ids[2], left[0].ID)
	trail := w.machine.Audit(fsm.AuditQuery{})
	require.Len(t, trail, 1)
	require.Equal(t, "node:n1", trail[0].Actor)
	require.Equal(t, fsm.AuditSuccess, trail[0].Result)
	w.down = errors.New("no leader")
	require.Error(t, s.Drop(t.Context(), []dlq.Drop{{ID: ids[2], ChannelIndex: left[0].ChannelIndex, EmitterIndex: left[0].EmitterIndex, Seq: left[0].Seq}}),
		"without a committed discard nothing goes")
	w.down = nil
	require.NoError(t, s.Drop(t.Context(), []dlq.Drop{{ID: "x", ChannelIndex: 99}}), "of an emitter that is gone")
}

func TestTheMirrorHasEachIntentAndEachOutcomeOnce(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	mirror := func() *Mirror { return &Mirror{Path: path, Machine: w.machine, Logger: slog.New(slog.DiscardHandler)} }
	intend := func(n byte) { w.do(command.AuditIntent{ID: [16]byte{n}, Actor: "a", Action: "b"}) }
	close := func(n byte) { w.do(command.AuditOutcome{ID: [16]byte{n}, Result: fsm.AuditSuccess}) }
	m := mirror()
	intend(1)
	require.NoError(t, m.copy())
	intend(2)
	close(2)
	require.NoError(t, m.copy())
	require.NoError(t, m.copy())
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"seq":9,"op`) // a crash in the middle of a line
	require.NoError(t, err)
	require.NoError(t, f.Close())
	close(1)
	m = mirror()
	require.NoError(t, m.copy())
	intend(3)
	require.NoError(t, m.copy())
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	seen := map[string]int{}
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		var a auditAnswer
		if json.Unmarshal([]byte(line), &a) == nil {
			seen[a.ID[:2]+a.Result]++
		}
	}
	require.Equal(t, map[string]int{"01": 1, "01success": 1, "02": 1, "02success": 1, "03": 1}, seen)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

// store is a Store in memory.
type store struct {
	head []byte
	rows map[string][]byte
}

func newStore() *store { return &store{rows: map[string][]byte{}} }

func (s *store) Write(head []byte, rows []fsm.Row) error {
	s.head = append([]byte(nil), head...)
	for _, r := range rows {
		key := string(append([]byte{r.Table}, r.Key...))
		if r.Value == nil {
			delete(s.rows, key)
		} else {
			s.rows[key] = append([]byte(nil), r.Value...)
		}
	}
	return nil
}

func (s *store) Replace(head []byte, rows func(func(fsm.Row) bool)) error {
	clear(s.rows)
	var all []fsm.Row
	rows(func(r fsm.Row) bool { all = append(all, r); return true })
	return s.Write(head, all)
}

func (s *store) View() (fsm.View, error) { return &store{head: s.head, rows: maps.Clone(s.rows)}, nil }
func (s *store) Head() []byte            { return s.head }
func (s *store) Rows(func(fsm.Row) error) error {
	return nil
}
func (s *store) Close() error { return nil }

func TestStaleClaimsAreReleasedAndThoseUnderWayAreNot(t *testing.T) {
	w := newWorld(t)
	w.bury("n1", 3)
	info := w.machine.Emitters()[0]
	l := &letters{info: info, nodeID: "n1", machine: w.machine, cluster: w, volume: w.volume, log: slog.New(slog.DiscardHandler)}
	before := &letters{info: info, nodeID: "n1", machine: w.machine, cluster: w, volume: w.volume, log: l.log} // the process before
	old, mine, other := emit.Claim{ID: [16]byte{1}, Scheduled: true}, emit.Claim{ID: [16]byte{2}, Scheduled: true}, emit.Claim{ID: [16]byte{3}, Scheduled: true}
	_, err := before.Claim(t.Context(), old, []uint64{1})
	require.NoError(t, err)
	states, err := l.Claim(t.Context(), mine, []uint64{2})
	require.NoError(t, err)
	require.Equal(t, []emit.LetterState{emit.LetterOpen}, states)
	states, err = l.Claim(t.Context(), other, []uint64{1, 2})
	require.NoError(t, err)
	require.Equal(t, []emit.LetterState{emit.LetterInProgress, emit.LetterInProgress}, states)
	require.NoError(t, l.Release(t.Context(), other, []uint64{1, 2}), "what it does not have it cannot give back")
	require.NoError(t, l.ReleaseStale(t.Context()))
	claimed := map[uint64]bool{}
	for _, d := range w.machine.DeadLetters("", "", "") {
		claimed[d.Seq] = d.Claimed
	}
	require.Equal(t, map[uint64]bool{1: false, 2: true, 3: false}, claimed)
	require.NoError(t, l.Release(t.Context(), mine, []uint64{2}))
	states, err = l.Claim(t.Context(), other, []uint64{1, 2})
	require.NoError(t, err)
	require.Equal(t, []emit.LetterState{emit.LetterOpen, emit.LetterOpen}, states)
}

// A pause stops every attempt, a replay by hand too; a discard is no attempt.
func TestAReplayOfAPausedEmitterIsForbiddenAndSaysWhy(t *testing.T) {
	w := newWorld(t)
	ids := w.bury("n2", 2)
	s := w.service()
	w.call = func(string, []byte) ([]byte, error) {
		t.Fatal("nothing is dispatched")
		return nil, nil
	}
	require.NoError(t, s.Pause(t.Context(), Act{Actor: "a", Action: "emitter.pause"}, "c", "e", true))
	a, err := s.Replay(t.Context(), Act{Actor: "a", Action: "dlq.replay", Targets: ids}, ReplayOptions{})
	require.NoError(t, err)
	require.Equal(t, map[emit.ReplayState]int{emit.ReplayForbidden: 2}, a.Counts)
	require.Contains(t, a.Statuses[0].Detail, "paused")
	a, err = s.Discard(t.Context(), Act{Actor: "a", Action: "dlq.discard", Reason: "r", Targets: ids[:1]})
	require.NoError(t, err)
	require.Equal(t, map[emit.ReplayState]int{discarded: 1}, a.Counts)
}
