package oracle

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func created(index uint64, name string, window int64) Entry {
	return Entry{Index: index, Term: 1, Commands: []Command{{Put: &Put{Name: name, Spec: "a", WindowNanos: window}}}}
}

func wrote(index uint64, stamp int64, channel, version uint64, ids ...string) Entry {
	b := &Batch{ChannelIndex: channel, SpecVersion: version}
	for _, id := range ids {
		b.Events = append(b.Events, Event{Source: "/s", ID: id})
	}
	return Entry{Index: index, Term: 1, Stamp: stamp, Commands: []Command{{Batch: b}}}
}

func TestTheFirstWinsWithinTheWindow(t *testing.T) {
	s := Apply([]Entry{created(2, "c", 100), wrote(3, 10, 2, 1, "a", "b", "a"), wrote(4, 110, 2, 1, "a"), wrote(5, 111, 2, 1, "b")})
	require.Equal(t, []Accepted{{"3.0", "/s", "a"}, {"3.1", "/s", "b"}, {"5.0", "/s", "b"}}, s.Accepted["c"])
	require.EqualValues(t, 2, s.Duplicates["c"])
}

func TestAStaleBatchCountsNothing(t *testing.T) {
	changed := Entry{Index: 3, Commands: []Command{{Put: &Put{Name: "c", Spec: "b", WindowNanos: 100}}}}
	again := Entry{Index: 4, Commands: []Command{{Put: &Put{Name: "c", Spec: "b", WindowNanos: 100}}}}
	s := Apply([]Entry{created(2, "c", 100), changed, again, wrote(5, 1, 2, 1, "old"), wrote(6, 1, 2, 2, "new"), wrote(7, 1, 9, 1, "none")})
	require.Equal(t, []Accepted{{"6.0", "/s", "new"}}, s.Accepted["c"])
	require.Equal(t, 2, s.Refused)
}

func TestOrdinalsCountThroughAllBatchesOfAnEntry(t *testing.T) {
	two := wrote(3, 1, 2, 9, "refused")
	two.Commands = append(two.Commands, wrote(3, 1, 2, 1, "kept").Commands...)
	s := Apply([]Entry{created(2, "c", 100), two})
	require.Equal(t, []Accepted{{"3.1", "/s", "kept"}}, s.Accepted["c"])
}

func TestEmittersTakeCreationIndexesToo(t *testing.T) {
	first := created(2, "c", 100)
	first.Commands[0].Put.Emitters = []string{"a", "b"} // 3 and 4
	s := Apply([]Entry{first, created(3, "d", 100), wrote(4, 1, 5, 1, "x")})
	require.Equal(t, []Accepted{{"4.0", "/s", "x"}}, s.Accepted["d"])
}

func TestDifferencesNameTheIndex(t *testing.T) {
	a := &Log{Node: "n1", Entries: []Entry{{Index: 1, Term: 1, Sum: "x"}, {Index: 2, Term: 1, Sum: "y"}}}
	b := &Log{Node: "n2", Entries: []Entry{{Index: 1, Term: 1, Sum: "x"}, {Index: 2, Term: 2, Sum: "y"}, {Index: 4, Term: 2}}}
	logs := map[string]*Log{"n1": a, "n2": b}
	require.Len(t, Differences(logs, 4), 1)
	require.Empty(t, Differences(logs, 1), "beyond the committed index nodes may differ")
	require.Len(t, Gaps(b), 1)
	require.Len(t, Union(logs, 4), 3)
}
