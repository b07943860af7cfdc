package check

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/jepsen/client"
	"penstock/jepsen/destination"
	"penstock/jepsen/history"
	"penstock/jepsen/oracle"
)

// good is the evidence of a small run in which all went well: ten orders by one writer, one of them a dead letter at
// "strict", and one partition of source offsets.
func good() Input {
	in := Input{
		Expect: Expect{MinAcks: 5, MinFaults: 1, Kinds: []string{"kill"}, Scenarios: 1, Channels: []string{"orders", "offsets"}, MinFinalRead: 2, Quiet: true},
		Emitters: []EmitterInfo{
			{Channel: "orders", Name: "hook", Kind: "webhook", Ordered: true}, {Channel: "orders", Name: "strict", Kind: "webhook"},
			{Channel: "orders", Name: "files", Kind: "file"},
		},
		Faults:       []history.Fault{{Phase: history.Confirmed, Kind: "kill"}},
		Observations: []history.Observation{{Node: "n1", State: "leader", Term: 2, Commit: 20, Hashes: map[string]string{"4@5": "aa"}}, {Node: "n2", State: "follower", Term: 2, Commit: 20, Hashes: map[string]string{"4@5": "aa"}}},
		Final: Final{
			Ledgers: map[string]map[string]client.Ledger{}, DeadLetters: map[string][]client.DeadLetter{},
			Liveness: []Liveness{{Name: "leader", OK: true}},
		},
		Logs: map[string]*oracle.Log{},
	}
	var seen []history.Seen
	entries := []oracle.Entry{{Index: 1}, {Index: 2, Commands: []oracle.Command{{Put: &oracle.Put{Name: "orders", Spec: "x", WindowNanos: 1e9}}, {}}}}
	entries[1].Commands = entries[1].Commands[:1]
	entries = append(entries, oracle.Entry{Index: 3, Commands: []oracle.Command{{Put: &oracle.Put{Name: "offsets", Spec: "x", WindowNanos: 1e9}}}})
	for i := 1; i <= 10; i++ {
		id, position := fmt.Sprintf("w1-%d", i), fmt.Sprintf("%d.0", i+3)
		in.add("w1", history.Op{F: history.Write, Channel: "orders", IDs: []string{id}, Sums: []string{"s"}}, history.OK, history.Op{Acks: []history.Ack{{ID: id, Position: position}}})
		seen = append(seen, history.Seen{Source: "/jepsen/w1", ID: id, Position: position, Sum: "s"})
		event := "/jepsen/w1 " + id
		in.Attempts = append(in.Attempts, destination.Attempt{Emitter: "hook", Compaction: "c" + id, WebhookID: "h" + id, Events: []string{event}, Kept: true, Status: 200})
		in.Attempts = append(in.Attempts, destination.Attempt{Emitter: "strict", Compaction: "d" + id, WebhookID: "g" + id, Events: []string{event}, Kept: i != 4, Status: 200})
		entries = append(entries, oracle.Entry{Index: uint64(i + 3), Commands: []oracle.Command{{Batch: &oracle.Batch{ChannelIndex: 2, SpecVersion: 1, Events: []oracle.Event{{Source: "/jepsen/w1", ID: id}}}}}})
	}
	in.Final.DeadLetters["orders"] = []client.DeadLetter{{ID: "dl", Channel: "orders", Emitter: "strict", Position: "7.0"}}
	in.Final.DeadRecords = []DeadRecord{{Node: "n1", ID: "dl", Event: "/jepsen/w1 w1-4", Emitter: "strict"}}
	for _, node := range []string{"n1", "n2"} {
		in.add("f"+node, history.Op{F: history.FinalTail, Node: node, Channel: "orders"}, history.OK, history.Op{Seen: seen})
		file := FileOut{Node: node, Emitter: "files", Name: "one.ndjson", Sum: "z"}
		for i := 1; i <= 10; i++ {
			file.Events = append(file.Events, fmt.Sprintf("/jepsen/w1 w1-%d", i))
		}
		in.Final.Files = append(in.Final.Files, file)
		in.Final.Ledgers[node] = map[string]client.Ledger{"orders": {Channel: "orders", Accepted: 10, Balanced: true, Emitters: []client.LedgerRow{
			{Emitter: "hook", Accepted: 10, Delivered: 10}, {Emitter: "strict", Accepted: 10, Delivered: 9, Dead: 1},
		}}}
	}
	in.addOffsets(&entries)
	for _, node := range []string{"n1", "n2"} {
		in.Logs[node] = &oracle.Log{Node: node, Entries: entries}
	}
	return in
}

func (in *Input) addOffsets(entries *[]oracle.Entry) {
	var seen []history.Seen
	for i := uint64(1); i <= 3; i++ {
		id, position := fmt.Sprintf("s1/p0/%d", i), fmt.Sprintf("%d.0", i+13)
		in.add("s1", history.Op{F: history.WriteOffset, Channel: "offsets", Source: "s1", Partition: "p0", IDs: []string{id}, Offset: &history.Offset{Position: i}}, history.OK, history.Op{Acks: []history.Ack{{ID: id, Position: position}}})
		in.add("r1", history.Op{F: history.ReadOffset, Channel: "offsets", Source: "s1", Partition: "p0"}, history.OK, history.Op{Offset: &history.Offset{Position: i}})
		seen = append(seen, history.Seen{Source: "/jepsen/s1", ID: id, Position: position})
		*entries = append(*entries, oracle.Entry{Index: i + 13, Commands: []oracle.Command{{Batch: &oracle.Batch{ChannelIndex: 3, SpecVersion: 1, Events: []oracle.Event{{Source: "/jepsen/s1", ID: id}}}}}})
	}
	for _, node := range []string{"n1", "n2"} {
		in.add("g"+node, history.Op{F: history.FinalTail, Node: node, Channel: "offsets"}, history.OK, history.Op{Seen: seen})
	}
}

// add records one operation from its invocation to its completion.
func (in *Input) add(who string, invoke history.Op, kind history.Type, complete history.Op) {
	seq := uint64(len(in.Ops) + 1)
	now := int64(len(in.Ops)) * 10
	invoke.Client, invoke.Seq, invoke.Type, invoke.T = who, seq, history.Invoke, now
	complete.Client, complete.Seq, complete.Type, complete.T = who, seq, kind, now+5
	complete.F, complete.Node, complete.Channel = invoke.F, invoke.Node, invoke.Channel
	complete.Source, complete.Partition = invoke.Source, invoke.Partition
	in.Ops = append(in.Ops, invoke, complete)
}

// final changes what node showed of a channel in the final read.
func (in *Input) final(node, channel string, change func([]history.Seen) []history.Seen) {
	for i, op := range in.Ops {
		if op.F == history.FinalTail && op.Type == history.OK && op.Channel == channel && (node == "" || op.Node == node) {
			in.Ops[i].Seen = change(append([]history.Seen(nil), op.Seen...))
		}
	}
}

func TestAGoodRunPasses(t *testing.T) {
	v := Judge(good())
	require.Equal(t, Pass, v.Verdict, "%v", v.Why)
}

func TestEachCheckerFindsItsPlantedViolation(t *testing.T) {
	without := func(i int) func([]history.Seen) []history.Seen {
		return func(s []history.Seen) []history.Seen { return append(s[:i], s[i+1:]...) }
	}
	cases := []struct {
		name, check, says string
		plant             func(*Input)
	}{
		{"lost prefix", "set", "lost (prefix)", func(in *Input) { in.final("n1", "orders", without(0)) }},
		{"lost middle", "set", "lost (middle)", func(in *Input) { in.final("n1", "orders", without(4)) }},
		{"lost postfix", "set", "lost (postfix)", func(in *Input) { in.final("n1", "orders", without(9)) }},
		{"never sent", "set", "never sent", func(in *Input) {
			in.final("", "orders", func(s []history.Seen) []history.Seen {
				return append(s, history.Seen{Source: "/x", ID: "y", Position: "90.0"})
			})
		}},
		{"denied but there", "set", "certainly not committed", func(in *Input) {
			in.add("w2", history.Op{F: history.Write, Channel: "orders", IDs: []string{"w2-1"}}, history.Fail, history.Op{})
			in.final("", "orders", func(s []history.Seen) []history.Seen {
				return append(s, history.Seen{Source: "/jepsen/w2", ID: "w2-1", Position: "90.0"})
			})
		}},
		{"duplicated", "set", "duplicated", func(in *Input) {
			in.final("n2", "orders", func(s []history.Seen) []history.Seen {
				again := s[3]
				again.Position = "91.0"
				return append(s, again)
			})
		}},
		{"changed bytes", "set", "is not what was sent", func(in *Input) {
			in.final("", "orders", func(s []history.Seen) []history.Seen { s[2].Sum = "other"; return s })
		}},
		{"position moved", "positions", "was at 4.0 and is at 4.7", func(in *Input) {
			in.final("", "orders", func(s []history.Seen) []history.Seen { s[0].Position = "4.7"; return s })
		}},
		{"out of order in one reader", "positions", "is shown after", func(in *Input) {
			in.final("n1", "orders", func(s []history.Seen) []history.Seen { s[0], s[1] = s[1], s[0]; return s })
		}},
		{"shown, then gone", "positions", "and is gone", func(in *Input) {
			in.add("t1", history.Op{F: history.Tail, Channel: "orders"}, history.OK, history.Op{Seen: []history.Seen{{Source: "/jepsen/w9", ID: "w9-1", Position: "8.1"}}})
		}},
		{"nodes differ", "divergence", "differ at event 5", func(in *Input) {
			in.final("n2", "orders", func(s []history.Seen) []history.Seen { s[5].ID = "w1-99"; return s })
		}},
		{"writer's order turned", "writer order", "stands after number", func(in *Input) {
			in.final("", "orders", func(s []history.Seen) []history.Seen { s[4].ID, s[5].ID = s[5].ID, s[4].ID; return s })
		}},
		{"offset gap", "source offsets", "gap or repeat", func(in *Input) { in.final("", "offsets", without(1)) }},
		{"offset beyond the records", "source offsets", "only 3 records", func(in *Input) {
			in.add("r1", history.Op{F: history.ReadOffset, Channel: "offsets", Source: "s1", Partition: "p0"}, history.OK, history.Op{Offset: &history.Offset{Position: 7}})
		}},
		{"stale offset read", "linearizable offsets", "not linearizable", func(in *Input) {
			in.add("r1", history.Op{F: history.ReadOffset, Channel: "offsets", Source: "s1", Partition: "p0"}, history.OK, history.Op{Offset: &history.Offset{Position: 1}})
		}},
		{"offset read as absent", "linearizable offsets", "not linearizable", func(in *Input) {
			in.add("r1", history.Op{F: history.ReadOffset, Channel: "offsets", Source: "s1", Partition: "p0"}, history.OK, history.Op{})
		}},
		{"not delivered", "deliveries", "neither at the destination", func(in *Input) { in.Attempts = in.Attempts[2:] }},
		{"delivered what is not stored", "deliveries", "which is not stored", func(in *Input) {
			in.Attempts = append(in.Attempts, destination.Attempt{Emitter: "hook", Compaction: "q", WebhookID: "q", Events: []string{"/x y"}, Kept: true})
		}},
		{"order of a key turned", "order per key", "first after number", func(in *Input) { in.Attempts[0], in.Attempts[4] = in.Attempts[4], in.Attempts[0] }},
		{"compaction id changed", "ids", "and then in", func(in *Input) {
			again := in.Attempts[0]
			again.Compaction = "other"
			in.Attempts = append(in.Attempts, again)
		}},
		{"compaction members changed", "ids", "had members", func(in *Input) {
			again := in.Attempts[0]
			again.Events = []string{"/jepsen/w1 w1-77"}
			in.Attempts = append(in.Attempts, again)
		}},
		{"webhook id changed", "ids", "and then", func(in *Input) {
			again := in.Attempts[0]
			again.WebhookID = "other"
			in.Attempts = append(in.Attempts, again)
		}},
		{"ledger out of balance", "ledger", "does not balance", func(in *Input) { in.Final.Ledgers["n1"]["orders"].Emitters[0].Delivered = 9 }},
		{"ledger counts another number", "ledger", "are stored", func(in *Input) {
			l := in.Final.Ledgers["n2"]["orders"]
			l.Accepted = 11
			in.Final.Ledgers["n2"]["orders"] = l
		}},
		{"still pending", "ledger", "still pending", func(in *Input) {
			row := &in.Final.Ledgers["n1"]["orders"].Emitters[0]
			row.Delivered, row.Pending = 9, 1
		}},
		{"lost on at-least-once", "ledger", "lost deliveries", func(in *Input) {
			row := &in.Final.Ledgers["n1"]["orders"].Emitters[0]
			row.Delivered, row.Lost = 9, 1
		}},
		{"dead letter in no file", "dead letters", "in no dead-letter file", func(in *Input) { in.Final.DeadRecords = nil }},
		{"dead letter record torn", "dead letters", "in no dead-letter file", func(in *Input) { in.Final.DeadRecords[0].Torn = true }},
		{"file differs between nodes", "files", "other bytes", func(in *Input) { in.Final.Files[1].Sum = "y" }},
		{"event in two files", "files", "and in file", func(in *Input) {
			two := in.Final.Files[0]
			two.Name = "two.ndjson"
			in.Final.Files = append(in.Final.Files, two)
		}},
		{"event in no file", "files", "is in no file", func(in *Input) {
			in.Final.Files[0].Events = in.Final.Files[0].Events[1:]
			in.Final.Files[1].Events = in.Final.Files[1].Events[1:]
		}},
		{"logs diverged", "logs", "diverged", func(in *Input) {
			entries := append([]oracle.Entry(nil), in.Logs["n2"].Entries...)
			entries[6].Sum = "other"
			in.Logs["n2"] = &oracle.Log{Node: "n2", Entries: entries}
		}},
		{"gap in a log", "logs", "gap", func(in *Input) {
			entries := in.Logs["n2"].Entries
			in.Logs["n2"] = &oracle.Log{Node: "n2", Entries: append(append([]oracle.Entry(nil), entries[:4]...), entries[5:]...)}
		}},
		{"counts by the log, not shown", "logs", "no node shows it", func(in *Input) { in.final("", "orders", without(4)) }},
		{"shown, does not count by the log", "logs", "does not count by the log", func(in *Input) {
			in.final("", "orders", func(s []history.Seen) []history.Seen { return append(s, history.Seen{ID: "y", Position: "13.9"}) })
		}},
		{"state hash differs", "state hashes", "state at 4@5", func(in *Input) { in.Observations[1].Hashes["4@5"] = "bb" }},
		{"two leaders of a term", "leaders and terms", "both call themselves leader", func(in *Input) { in.Observations[1].State = "leader" }},
		{"term forgotten", "leaders and terms", "was forgotten", func(in *Input) {
			in.Observations = append(in.Observations, history.Observation{Node: "n1", Term: 1})
		}},
		{"old owner goes on", "fencing", "went on for", func(in *Input) {
			for i := range 20 {
				in.Attempts = append(in.Attempts, destination.Attempt{Emitter: "hook", From: "n2", At: 50e9 + int64(i)*1e9, Compaction: "cw1-1", WebhookID: "hw1-1", Events: []string{"/jepsen/w1 w1-1"}, Kept: true, Status: 200})
			}
			own := func(node string, stamp int64, epoch uint64) oracle.Entry {
				return oracle.Entry{Index: uint64(17 + epoch), Stamp: stamp, Commands: []oracle.Command{{Assign: &oracle.Assign{ChannelIndex: 2, EmitterIndex: 3, Node: node, IfEpoch: epoch}}}}
			}
			entries := append(append([]oracle.Entry(nil), in.Logs["n1"].Entries...), own("n2", 1e9, 0), own("n1", 30e9, 1))
			put := *entries[1].Commands[0].Put
			put.Emitters = []string{"hook"}
			entries[1].Commands = []oracle.Command{{Put: &put}}
			in.Logs["n1"], in.Logs["n2"] = &oracle.Log{Node: "n1", Entries: entries}, &oracle.Log{Node: "n2", Entries: entries}
		}},
		{"restarted old owner sends", "fencing", "began to send", func(in *Input) {
			in.Attempts = append(in.Attempts, destination.Attempt{Emitter: "hook", From: "n2", At: 50e9, Compaction: "cw1-1", WebhookID: "hw1-1", Events: []string{"/jepsen/w1 w1-1"}, Kept: true, Status: 200})
			in.Faults = append(in.Faults, history.Fault{Phase: history.Started, Targets: []string{"n2"}, Wall: 40e9})
			entries := append([]oracle.Entry(nil), in.Logs["n1"].Entries...)
			for epoch, node := range []string{"n2", "n1"} {
				entries = append(entries, oracle.Entry{Index: uint64(17 + epoch), Stamp: int64(1+epoch) * 10e9, Commands: []oracle.Command{{Assign: &oracle.Assign{ChannelIndex: 2, EmitterIndex: 3, Node: node, IfEpoch: uint64(epoch)}}}})
			}
			put := *entries[1].Commands[0].Put
			put.Emitters = []string{"hook"}
			entries[1].Commands = []oracle.Command{{Put: &put}}
			in.Logs["n1"], in.Logs["n2"] = &oracle.Log{Node: "n1", Entries: entries}, &oracle.Log{Node: "n2", Entries: entries}
		}},
		{"ran on after a failed fsync", "reactions", "runs on", func(in *Input) {
			in.Faults = append(in.Faults, history.Fault{Phase: history.Violation, Kind: "fsync-fail", Detail: "n1 runs on"})
		}},
		{"no leader in time", "liveness", "not within", func(in *Input) { in.Final.Liveness[0].OK = false }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			in := good()
			c.plant(&in)
			v := Judge(in)
			require.Equal(t, Fail, v.Verdict)
			found := false
			for _, r := range v.Checks {
				if r.Name == c.check {
					found = true
					require.Equal(t, Fail, r.Status, "%+v", v.Why)
					require.Contains(t, fmt.Sprint(r.Violations), c.says)
				}
			}
			require.True(t, found, "no check is named %s", c.check)
		})
	}
}

func TestAnUnknownWriteMayBeThereOrNot(t *testing.T) {
	for _, there := range []bool{true, false} {
		in := good()
		in.add("w2", history.Op{F: history.Write, Channel: "orders", IDs: []string{"w2-1"}}, history.Info, history.Op{})
		if there {
			in.final("", "orders", func(s []history.Seen) []history.Seen {
				return append(s, history.Seen{Source: "/jepsen/w2", ID: "w2-1", Position: "90.0"})
			})
		}
		r := checkSet(in, gather(in.Ops))
		require.Equal(t, Pass, r.Status, r.Violations)
	}
}

func TestARunInWhichTooLittleHappenedIsInvalid(t *testing.T) {
	require.Equal(t, Pass, Judge(good()).Verdict)
	cases := []struct {
		name  string
		plant func(*Input)
		why   string
	}{
		{"too few acks", func(in *Input) { in.Expect.MinAcks = 1000 }, "13 events were acknowledged, want at least 1000"},
		{"no confirmed fault", func(in *Input) { in.Faults[0].Phase = history.Begin }, "0 faults were confirmed"},
		{"fewer faults than asked", func(in *Input) { in.Expect.MinFaults = 20 }, "1 faults were confirmed, want at least 20"},
		{"asked kind never seen", func(in *Input) { in.Expect.Kinds = append(in.Expect.Kinds, "bitflip") }, "bitflip was asked for and never confirmed"},
		{"empty scenario list", func(in *Input) { in.Expect.Scenarios = 0 }, "no fault was planned"},
		{"no fault kind asked for", func(in *Input) { in.Expect.Kinds = nil }, "no fault was planned"},
		{"no channel had any writer", func(in *Input) { in.Expect.Channels = nil }, "no channel had writers"},
		{"writers stopped after a moment", func(in *Input) {
			in.add("r9", history.Op{F: history.ReadOffset, Channel: "offsets", Source: "s1", Partition: "p9"}, history.OK, history.Op{})
			in.Ops[len(in.Ops)-1].T += 1000 * in.Ops[len(in.Ops)-1].T
		}, "the writers stood still"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			in := good()
			c.plant(&in)
			v := Judge(in)
			require.Equal(t, Invalid, v.Verdict)
			require.Contains(t, fmt.Sprint(v.Checks[len(v.Checks)-1].Violations), c.why)
		})
	}
}

func TestATrimmedRunWithNothingLeftToReadIsNotEmpty(t *testing.T) {
	in := good()
	in.Expect.Trimmed = true
	shown := gather(in.Ops).final["orders"]["n1"]
	in.add("t1", history.Op{F: history.Tail, Node: "n1", Channel: "orders"}, history.OK, history.Op{Seen: shown})
	for _, node := range []string{"n1", "n2"} {
		in.final(node, "orders", func([]history.Seen) []history.Seen { return nil })
	}
	r := checkVacuity(in, func() *facts { f := gather(in.Ops); f.trimmed = true; return f }())
	require.Equal(t, Pass, r.Status, r.Violations)
	r = checkVacuity(in, gather(in.Ops))
	require.Equal(t, Fail, r.Status)
}

func TestLogsThatCannotBeReadAreUnknownAndNoFinding(t *testing.T) {
	in := good()
	for _, l := range in.Logs {
		l.Problem, l.Entries = "decode: malformed", nil
	}
	r := checkLogs(in, gather(in.Ops))
	require.Equal(t, Unknown, r.Status, r.Violations)
	require.Equal(t, Unknown, Judge(in).Verdict)
}

func TestWhatIsOutOfReachIsLeftOutAndSaysSo(t *testing.T) {
	in := good()
	in.Expect.Reachable, in.Logs, in.Final.Files, in.Final.DeadRecords = true, nil, nil, nil
	v := Judge(in)
	require.Equal(t, Pass, v.Verdict, v.Why)
	left := map[string]Status{}
	for _, c := range v.Checks {
		left[c.Name] = c.Status
	}
	for _, name := range []string{"fencing", "dead letters", "files", "logs"} {
		require.Equal(t, LeftOut, left[name], name)
	}
}

func TestWhatIsGoneForLackOfSpaceMustHaveBeenDelivered(t *testing.T) {
	yielded := func(horizon uint64) Input {
		in := good()
		for _, node := range []string{"n1", "n2"} {
			in.final(node, "orders", func(s []history.Seen) []history.Seen { return s[2:] }) // 4.0 and 5.0 are not readable any more
			l := *in.Logs[node]
			l.Entries = append(slices.Clone(l.Entries), oracle.Entry{Index: 17, Commands: []oracle.Command{{Yield: horizon}}})
			in.Logs[node] = &l
		}
		return in
	}
	in := yielded(6)
	require.Equal(t, Pass, checkSetOf(in).Status, checkSetOf(in).Violations)
	require.Equal(t, Fail, checkSetOf(yielded(5)).Status, "5.0 is not below the horizon")

	in.Attempts = in.Attempts[2:] // the first event reached no destination
	require.Equal(t, Fail, checkSetOf(in).Status)
}

// checkSetOf is the set check as Judge does it.
func checkSetOf(in Input) Result {
	for _, c := range Judge(in).Checks {
		if c.Name == "set" {
			return c
		}
	}
	return Result{}
}

func TestAViolationOutweighsALackOfEvidence(t *testing.T) {
	in := good()
	in.Expect.MinAcks = 1000
	in.final("n1", "orders", func(s []history.Seen) []history.Seen { return s[1:] })
	require.Equal(t, Fail, Judge(in).Verdict)
}

func TestATimeoutOfTheCheckerIsUnknownNotPass(t *testing.T) {
	r := newResult("x")
	r.unknown("no answer")
	require.Equal(t, Unknown, worse(Pass, r))
	require.Equal(t, Fail, worse(Fail, r))
}

func TestAnUnfinishedDeliveryIsUnknownWhenTheRunDidNotWait(t *testing.T) {
	in := good()
	in.Expect.Quiet = false
	in.Attempts = in.Attempts[2:]
	require.Equal(t, Unknown, Judge(in).Verdict)
}
