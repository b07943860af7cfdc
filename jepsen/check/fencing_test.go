package check

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/jepsen/destination"
	"penstock/jepsen/oracle"
)

// moved is a run in which n1 has three emitters and n2 none, until "hook", or all three, go to n2 at 60 s; n2 sends from
// 60.06 s on.
func moved(all bool) Input {
	in := good()
	assign := func(index uint64, stamp int64, node string, epoch uint64, emitters ...uint64) oracle.Entry {
		e := oracle.Entry{Index: index, Stamp: stamp}
		for _, emitter := range emitters {
			e.Commands = append(e.Commands, oracle.Command{Assign: &oracle.Assign{ChannelIndex: 2, EmitterIndex: emitter, Node: node, IfEpoch: epoch}})
		}
		return e
	}
	moves := []uint64{3}
	if all {
		moves = []uint64{3, 4, 5}
	}
	entries := append([]oracle.Entry(nil), in.Logs["n1"].Entries...)
	put := *entries[1].Commands[0].Put
	put.Emitters = []string{"hook", "strict", "files"}
	entries[1].Commands = []oracle.Command{{Put: &put}}
	entries = append(entries, assign(17, 1e9, "n1", 0, 3, 4, 5), assign(18, 60e9, "n2", 1, moves...))
	in.Logs["n1"], in.Logs["n2"] = &oracle.Log{Node: "n1", Entries: entries}, &oracle.Log{Node: "n2", Entries: entries}
	in.sends("n2", 60.06e9, 1)
	return in
}

// sends adds attempts for "hook", one each half millisecond.
func (in *Input) sends(from string, at int64, n int) {
	for i := range n {
		in.Attempts = append(in.Attempts, destination.Attempt{Emitter: "hook", From: from, At: at + int64(i)*5e5, Compaction: "cw1-1", WebhookID: "hw1-1", Events: []string{"/jepsen/w1 w1-1"}, Kept: true, Status: 200})
	}
}

// An owner that lives holds its lease when one of its emitters moves to even out the load, and sends a backlog on at the pace of
// its destination until it has applied the move: that is no old owner's burst. Seen with seed 64843: 81 attempts in 39 ms.
func TestALiveOwnerMaySendUntilItKnowsThatTheLoadIsEvenedOut(t *testing.T) {
	in := moved(false)
	in.sends("n1", 60e9, 81)
	r := checkFencing(in, nil)
	require.Equal(t, Pass, r.Status, r.Violations)
	require.EqualValues(t, 81, r.Numbers["by an old owner"])
}

func TestAnOldOwnerIsGivenNoMoreThanItNeeds(t *testing.T) {
	cases := []struct {
		name string
		in   func() Input
		says string
	}{
		{"it had lost all, so its lease was out", func() Input {
			in := moved(true)
			in.sends("n1", 60e9, 81)
			return in
		}, fmt.Sprintf("more than %d times", burst)},
		{"it lives and sends on once the new one has begun", func() Input {
			in := moved(false)
			in.sends("n1", 60.51e9, 81)
			return in
		}, fmt.Sprintf("more than %d times", burst)},
		{"it lives and never ends, and the new one does not begin", func() Input {
			in := moved(false)
			in.Attempts = in.Attempts[:len(in.Attempts)-1]
			for i := range int64(8) {
				in.sends("n1", 60e9+i*1e9, 1)
			}
			return in
		}, "went on for"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := checkFencing(c.in(), nil)
			require.Equal(t, Fail, r.Status)
			require.Contains(t, fmt.Sprint(r.Violations), c.says)
		})
	}
}
