package emit

import (
	"cmp"
	"slices"
	"time"
)

// MoveAfter is how long an owner must have been silent, with its lease out, before its emitters move.
const MoveAfter = 5 * time.Second

// Placement is an emitter and who has it now; Owner "" is nobody.
type Placement struct {
	ChannelIndex, EmitterIndex uint64
	Owner                      string
	Epoch                      uint64
}

// Node is a node as the leader sees it.
type Node struct {
	ID string
	// Live: its lease is not out.
	Live bool
	// Silent is how long nothing was heard of it.
	Silent time.Duration
	// Eligible: it may be given emitters (payload-complete voter, volume works, not draining). A node that is live and not
	// eligible has given up what it had.
	Eligible bool
}

// Assignment gives an emitter to a node, if its epoch is still IfEpoch.
type Assignment struct {
	ChannelIndex, EmitterIndex uint64
	Node                       string
	IfEpoch                    uint64
}

// Place says which emitters should change hands. It is pure, and sticky: an owner that lives keeps what it has, but that one
// emitter a call goes from the fullest to the emptiest node when they differ by two or more, so that a cluster whose nodes
// came up one by one ends up even. An emitter that nobody may take stays where it is: it is held.
func Place(emitters []Placement, nodes []Node) []Assignment {
	byID := map[string]Node{}
	load := map[string]int{}
	for _, n := range nodes {
		byID[n.ID] = n
		if n.Live && n.Eligible {
			load[n.ID] = 0
		}
	}
	if len(load) == 0 {
		return nil
	}
	sorted := slices.Clone(emitters)
	slices.SortFunc(sorted, func(a, b Placement) int {
		return cmp.Or(cmp.Compare(a.ChannelIndex, b.ChannelIndex), cmp.Compare(a.EmitterIndex, b.EmitterIndex))
	})
	var homeless []Placement
	for _, p := range sorted {
		owner, known := byID[p.Owner]
		switch {
		case p.Owner == "" || !known:
			homeless = append(homeless, p)
		case owner.Live && owner.Eligible:
			load[p.Owner]++
		case owner.Live, owner.Silent >= MoveAfter:
			homeless = append(homeless, p)
		}
	}
	var moves []Assignment
	for _, p := range homeless {
		to, _ := extremes(load)
		load[to]++
		moves = append(moves, Assignment{p.ChannelIndex, p.EmitterIndex, to, p.Epoch})
	}
	if len(moves) > 0 {
		return moves
	}
	return rebalance(sorted, load)
}

// rebalance moves the last emitter of the fullest node to the emptiest, when that makes the cluster more even.
func rebalance(sorted []Placement, load map[string]int) []Assignment {
	emptiest, fullest := extremes(load)
	if load[fullest]-load[emptiest] < 2 {
		return nil
	}
	for _, p := range slices.Backward(sorted) {
		if p.Owner == fullest {
			return []Assignment{{p.ChannelIndex, p.EmitterIndex, emptiest, p.Epoch}}
		}
	}
	return nil
}

// extremes gives the emptiest and the fullest node, the smaller id on a tie.
func extremes(load map[string]int) (emptiest, fullest string) {
	ids := make([]string, 0, len(load))
	for id := range load {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	emptiest, fullest = ids[0], ids[0]
	for _, id := range ids {
		if load[id] < load[emptiest] {
			emptiest = id
		}
		if load[id] > load[fullest] {
			fullest = id
		}
	}
	return emptiest, fullest
}
