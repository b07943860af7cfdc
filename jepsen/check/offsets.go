package check

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"penstock/jepsen/history"
)

// linearizableBound limits the search for one partition; past it the answer is UNKNOWN.
const linearizableBound = 5 * time.Second

// checkOffsets: per (source, partition) the records are 1, 2, 3, … without gap or repeat, and reach at least as far as the
// highest acknowledged or read offset.
func checkOffsets(in Input, f *facts) *Result {
	r := newResult("source offsets")
	reached := map[string]uint64{} // source/partition -> highest certain offset
	for _, p := range f.pairs {
		if p.invoke == nil || p.complete == nil || p.complete.Type != history.OK {
			continue
		}
		o := p.invoke.Offset
		if p.invoke.F == history.ReadOffset {
			o = p.complete.Offset
		}
		if o != nil && (p.invoke.F == history.WriteOffset || p.invoke.F == history.ReadOffset) {
			name := p.invoke.Source + "/" + p.invoke.Partition
			reached[name] = max(reached[name], o.Position)
		}
	}
	if len(reached) == 0 {
		return r
	}
	channel := offsetsChannel(f)
	stored := map[string][]uint64{}
	for _, s := range f.stored(channel) {
		if n, ok := number(s.ID); ok {
			name := s.ID[:strings.LastIndexByte(s.ID, '/')]
			stored[name] = append(stored[name], n)
		}
	}
	if len(f.final[channel]) == 0 {
		r.unknown("channel %s was not read whole", channel)
		return r
	}
	for _, name := range sortedKeys(reached) {
		r.Numbers["partitions"]++
		numbers := slices.Clone(stored[name])
		slices.Sort(numbers)
		for i, n := range numbers {
			if n != uint64(i)+1 && !f.trimmed {
				r.fail("%s: record %d where %d is due (gap or repeat)", name, n, i+1)
				break
			}
		}
		if uint64(len(numbers)) < reached[name] && !f.trimmed {
			r.fail("%s: offset %d was committed, but only %d records are stored", name, reached[name], len(numbers))
		}
	}
	return r
}

func offsetsChannel(f *facts) string {
	for _, p := range f.pairs {
		if p.invoke != nil && p.invoke.F == history.WriteOffset {
			return p.invoke.Channel
		}
	}
	return ""
}

// register is the model of one (source, partition): a number that only rises; -1 is absent.
type registerInput struct {
	write bool
	value int64
}

var register = porcupine.Model{
	Init: func() any { return int64(-1) },
	Step: func(state, input, output any) (bool, any) {
		at, in := state.(int64), input.(registerInput)
		if in.write {
			return true, max(at, in.value) // merge by maximum (I7)
		}
		return output.(int64) == at, at
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %v", in, out) },
}

// checkLinearizable: each partition's commits and linearizable reads behave as one register. A commit whose outcome is
// unknown may take effect at any later time, or never.
func checkLinearizable(_ Input, f *facts) *Result {
	r := newResult("linearizable offsets")
	partitions := map[string][]porcupine.Operation{}
	clients := map[string]int{}
	for _, k := range sortedOps(f) {
		p := f.pairs[k]
		op, ok := operation(p)
		if !ok {
			continue
		}
		if _, known := clients[p.invoke.Client]; !known {
			clients[p.invoke.Client] = len(clients)
		}
		op.ClientId = clients[p.invoke.Client]
		name := p.invoke.Source + "/" + p.invoke.Partition
		partitions[name] = append(partitions[name], op)
	}
	for _, name := range sortedKeys(partitions) {
		r.Numbers["partitions"]++
		r.Numbers["operations"] += int64(len(partitions[name]))
		switch porcupine.CheckOperationsTimeout(register, partitions[name], linearizableBound) {
		case porcupine.Illegal:
			r.fail("%s: %d operations are not linearizable", name, len(partitions[name]))
		case porcupine.Unknown:
			r.unknown("%s: no answer for %d operations within %v", name, len(partitions[name]), linearizableBound)
		}
	}
	return r
}

func sortedOps(f *facts) []opKey {
	keys := make([]opKey, 0, len(f.pairs))
	for k, p := range f.pairs {
		if p.invoke != nil && (p.invoke.F == history.WriteOffset || p.invoke.F == history.ReadOffset) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b opKey) int { return int(f.pairs[a].invoke.T - f.pairs[b].invoke.T) })
	return keys
}

func operation(p pair) (porcupine.Operation, bool) {
	op := porcupine.Operation{Call: p.invoke.T, Return: math.MaxInt64}
	if p.invoke.F == history.WriteOffset {
		if p.complete != nil && p.complete.Type == history.Fail {
			return op, false // certainly not done
		}
		op.Input = registerInput{write: true, value: int64(p.invoke.Offset.Position)}
		op.Output = int64(0)
		if p.complete != nil && p.complete.Type == history.OK {
			op.Return = p.complete.T
		}
		return op, true
	}
	if p.complete == nil || p.complete.Type != history.OK {
		return op, false // a read that told nothing
	}
	op.Input, op.Return = registerInput{}, p.complete.T
	op.Output = int64(-1)
	if p.complete.Offset != nil {
		op.Output = int64(p.complete.Offset.Position)
	}
	return op, true
}
