package runner

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/jepsen/check"
	"penstock/jepsen/client"
	"penstock/jepsen/destination"
	"penstock/jepsen/history"
	"penstock/jepsen/nemesis"
	"penstock/jepsen/oracle"
	"penstock/jepsen/workload"
)

// stored writes the evidence of a small run of one channel in which all went well.
func stored(t *testing.T, change func(dir string, o *Options)) string {
	dir := t.TempDir()
	o := Defaults()
	o.Workload, o.Nemesis, o.Kinds, o.MinAcks, o.Time = "offsets", []string{"kill"}, []string{"kill"}, 1, 20*time.Second
	change(dir, &o)
	require.NoError(t, writeJSON(filepath.Join(dir, "options.json"), o))
	require.NoError(t, writeJSON(filepath.Join(dir, "plan.json"), nemesis.Plan(o.Kinds, o.Time, o.Seed)))
	require.NoError(t, writeJSON(filepath.Join(dir, "final.json"), check.Final{Liveness: []check.Liveness{{Name: "leader", OK: true}}}))
	lines(t, filepath.Join(dir, "faults.jsonl"), history.Fault{Kind: "kill", Phase: history.Confirmed}, history.Fault{Kind: "kill", Phase: history.End, T: 9})
	lines(t, filepath.Join(dir, "observations.jsonl"), history.Observation{Node: "n1", Up: true, State: "leader", Term: 2, Commit: 3})
	lines(t, filepath.Join(dir, "destinations", "d1.jsonl"), destination.Attempt{Emitter: "offsets-hook", Compaction: "c", WebhookID: "w", Events: []string{"/jepsen/s1 s1/p0/1"}, Kept: true, Status: 200})
	seen := []history.Seen{{Source: "/jepsen/s1", ID: "s1/p0/1", Position: "3.0"}}
	lines(t, filepath.Join(dir, "history", "s1.jsonl"),
		history.Op{Type: history.Invoke, Client: "s1", Seq: 1, F: history.WriteOffset, Channel: workload.Offsets, Source: "s1", Partition: "p0", IDs: []string{"s1/p0/1"}, Offset: &history.Offset{Position: 1}},
		history.Op{T: 5, Type: history.OK, Client: "s1", Seq: 1, F: history.WriteOffset, Channel: workload.Offsets, Acks: []history.Ack{{ID: "s1/p0/1", Position: "3.0"}}})
	for _, n := range []string{"n1", "n2", "n3"} {
		lines(t, filepath.Join(dir, "history", "final-"+n+".jsonl"),
			history.Op{T: 6, Type: history.Invoke, Client: "f" + n, Seq: 1, F: history.FinalTail, Channel: workload.Offsets, Node: n},
			history.Op{T: 7, Type: history.OK, Client: "f" + n, Seq: 1, F: history.FinalTail, Channel: workload.Offsets, Node: n, Seen: seen})
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "logs"), 0o755))
		require.NoError(t, writeJSON(filepath.Join(dir, "logs", n+".json"), oracle.Log{Node: n, Entries: []oracle.Entry{
			{Index: 1}, {Index: 2, Commands: []oracle.Command{{Put: &oracle.Put{Name: workload.Offsets, WindowNanos: 1}}}},
			{Index: 3, Commands: []oracle.Command{{Batch: &oracle.Batch{ChannelIndex: 2, SpecVersion: 1, Events: []oracle.Event{{Source: "/jepsen/s1", ID: "s1/p0/1"}}}}}},
		}}))
	}
	return dir
}

func lines[T any](t *testing.T, path string, records ...T) {
	w, err := history.Create[T](path)
	require.NoError(t, err)
	for _, r := range records {
		w.Append(r)
	}
	require.NoError(t, w.Close())
}

// except gives what did not pass, but for one check: the synthetic run has no ledgers, which is UNKNOWN by itself.
func except(v check.Verdict, name string) (left []check.Result) {
	for _, c := range v.Checks {
		if c.Name != name && c.Status != check.Pass {
			left = append(left, c)
		}
	}
	return left
}

func TestRecheckJudgesAStoredRunAgain(t *testing.T) {
	dir := stored(t, func(string, *Options) {})
	v, err := Recheck(dir)
	require.NoError(t, err)
	require.Empty(t, except(v, "ledger"))
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	require.NoError(t, err)
	require.Contains(t, string(page), "<svg")
	require.Contains(t, string(page), string(v.Verdict))
	require.NotContains(t, string(page), "ZgotmplZ")
}

func TestNoFaultsNoWritersNoScenarioAreInvalid(t *testing.T) {
	cases := []struct {
		name   string
		change func(dir string, o *Options)
		why    string
	}{
		{"faults disabled", func(_ string, o *Options) { o.Nemesis, o.Kinds = []string{"none"}, nil }, "no fault was planned"},
		{"writers stopped", func(_ string, o *Options) { o.MinAcks = 100 }, "1 events were acknowledged, want at least 100"},
		{"asked and never seen", func(_ string, o *Options) {
			o.Nemesis, o.Kinds = []string{"kill", "loss"}, []string{"kill", "loss"}
		}, "loss was asked for and never confirmed"},
		{"no workload", func(_ string, o *Options) { o.Workload = "none" }, "no channel had writers"},
		{"fewer kills than chaos mode owes", func(_ string, o *Options) { o.MinFault = 20 }, "1 faults were confirmed, want at least 20"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			v, err := Recheck(stored(t, c.change))
			require.NoError(t, err)
			require.Equal(t, check.Invalid, v.Verdict)
			require.Contains(t, fmt.Sprint(v.Checks[len(v.Checks)-1].Violations), c.why)
		})
	}
}

func TestOptionsNameEverythingThatIsWrong(t *testing.T) {
	o := Defaults()
	o.Workload, o.FS, o.Nodes, o.Time, o.Binary = "x", "fat", 9, time.Second, "/nowhere"
	err := o.complete()
	for _, part := range []string{`workload is named "x"`, "fat", "9 nodes", "1s", "/nowhere"} {
		require.ErrorContains(t, err, part)
	}
}

func TestAMembershipChangeOfAnEarlierTryStands(t *testing.T) {
	refused := func(detail string) client.Answer {
		return client.Answer{Outcome: client.NotDone, Status: http.StatusConflict, Body: []byte(`{"detail":"refused: ` + detail + `"}`)}
	}
	require.True(t, stands(http.MethodPost, refused("n2r2 is a voter already")))
	require.True(t, stands(http.MethodPost, refused("n4 is a member already")))
	require.True(t, stands(http.MethodDelete, refused("n2 is not a member")))
	require.False(t, stands(http.MethodPost, refused("n9 is not a member")), "it cannot be promoted")
	require.False(t, stands(http.MethodPost, refused("n4 has not caught up")))
}
