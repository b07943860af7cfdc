package emit

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func live(ids ...string) (nodes []Node) {
	for _, id := range ids {
		nodes = append(nodes, Node{ID: id, Live: true, Eligible: true})
	}
	return nodes
}

// settle applies assignments until there are none.
func settle(t require.TestingT, emitters []Placement, nodes []Node) (moves int) {
	for range 1000 {
		as := Place(emitters, nodes)
		if len(as) == 0 {
			return moves
		}
		for _, a := range as {
			for i := range emitters {
				if e := &emitters[i]; e.ChannelIndex == a.ChannelIndex && e.EmitterIndex == a.EmitterIndex {
					require.Equal(t, e.Epoch, a.IfEpoch)
					e.Owner, e.Epoch = a.Node, e.Epoch+1
					moves++
				}
			}
		}
	}
	require.Fail(t, "placement does not settle")
	return 0
}

func loads(emitters []Placement) map[string]int {
	m := map[string]int{}
	for _, e := range emitters {
		m[e.Owner]++
	}
	return m
}

func emitters(n int) (out []Placement) {
	for i := range n {
		out = append(out, Placement{ChannelIndex: uint64(i/3 + 1), EmitterIndex: uint64(i%3 + 1)})
	}
	return out
}

func TestEmittersAreSpreadEvenlyAndStay(t *testing.T) {
	es := emitters(10)
	settle(t, es, live("a", "b", "c"))
	require.Equal(t, map[string]int{"a": 4, "b": 3, "c": 3}, loads(es))
	require.Empty(t, Place(es, live("a", "b", "c")))
}

func TestEmittersOfASilentOwnerMoveAndOnlyThose(t *testing.T) {
	es := emitters(9)
	settle(t, es, live("a", "b", "c"))
	before := append([]Placement(nil), es...)
	nodes := live("b", "c")
	require.Empty(t, Place(es, append(nodes, Node{ID: "a", Silent: MoveAfter - 1})), "not before it was silent long enough")
	settle(t, es, append(nodes, Node{ID: "a", Silent: MoveAfter}))
	for i := range es {
		if before[i].Owner != "a" {
			require.Equal(t, before[i], es[i])
		}
	}
	require.Zero(t, loads(es)["a"])
}

func TestReturningNodeGetsItsShareOneMoveAtATime(t *testing.T) {
	es := emitters(9)
	settle(t, es, live("a", "b"))
	require.Len(t, Place(es, live("a", "b", "c")), 1)
	moves := settle(t, es, live("a", "b", "c"))
	require.Equal(t, 3, moves)
	require.Equal(t, map[string]int{"a": 3, "b": 3, "c": 3}, loads(es))
}

func TestNodeThatGaveUpKeepsItsEmittersWhenNobodyElseMay(t *testing.T) {
	es := emitters(3)
	settle(t, es, live("a"))
	require.Empty(t, Place(es, []Node{{ID: "a", Live: true}, {ID: "b", Live: true}}), "held")
	settle(t, es, []Node{{ID: "a", Live: true}, {ID: "b", Live: true, Eligible: true}})
	require.Equal(t, map[string]int{"b": 3}, loads(es))
}

func TestPlacementSettlesAndIsEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var nodes []Node
		eligible := 0
		for i := range rapid.IntRange(1, 6).Draw(t, "nodes") {
			n := Node{ID: fmt.Sprintf("n%d", i), Live: rapid.Bool().Draw(t, "live"), Eligible: rapid.Bool().Draw(t, "eligible"),
				Silent: time.Duration(rapid.IntRange(0, 10).Draw(t, "silent")) * time.Second}
			if n.Live && n.Eligible {
				eligible++
			}
			nodes = append(nodes, n)
		}
		es := emitters(rapid.IntRange(0, 20).Draw(t, "emitters"))
		for i := range es {
			es[i].Owner = rapid.SampledFrom([]string{"", "n0", "n1", "n2", "gone"}).Draw(t, "owner")
		}
		settle(t, es, nodes)
		if eligible == 0 {
			return
		}
		lowest, highest := 1<<30, 0
		l := loads(es)
		for _, n := range nodes {
			if n.Live && n.Eligible {
				lowest, highest = min(lowest, l[n.ID]), max(highest, l[n.ID])
			}
		}
		require.LessOrEqual(t, highest-lowest, 1)
	})
}
