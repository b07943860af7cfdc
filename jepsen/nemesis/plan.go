package nemesis

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Step is one planned activation.
type Step struct {
	Window int           `json:"window"`
	At     time.Duration `json:"at"`
	Kind   string        `json:"kind"`
	Hold   time.Duration `json:"hold"`
	Salt   uint64        `json:"salt"`
}

// Window is a span of the run with its own mix of kinds.
type Window struct {
	Start, End time.Duration
	Steps      []Step
}

// Plan lays windows over the run: each draws its own mix, about a quarter stay without faults, every kind comes once before
// any comes at random, and the last tenth of a window is left for undoing. It follows from its arguments alone.
func Plan(kinds []string, total time.Duration, seed uint64) []Window {
	if len(kinds) == 0 || total <= 0 {
		return nil
	}
	r := rand.New(rand.NewPCG(seed, 0x6e656d65736973))
	length := windowLength(kinds, total)
	queue := shuffled(r, kinds)
	var windows []Window
	for start := time.Duration(0); start+length <= total+time.Second; start += length {
		w := Window{Start: start, End: start + length}
		quiet := r.IntN(4) == 0 && len(windows) > 0
		left := int((total - start) / length)
		if quiet && left <= len(queue) {
			quiet = false // no kind may go unseen for the sake of a quiet window
		}
		if !quiet {
			mix := draw(r, kinds, &queue, left)
			for _, kind := range mix {
				w.Steps = append(w.Steps, steps(r, kind, w, len(windows))...)
			}
			slices.SortFunc(w.Steps, func(a, b Step) int { return int(a.At - b.At) })
		}
		windows = append(windows, w)
	}
	return windows
}

// windowLength: 20 seconds, or less when the run is too short for every kind to have its window.
func windowLength(kinds []string, total time.Duration) time.Duration {
	length := 20 * time.Second
	for _, k := range kinds {
		if k == "pause-kill" || k == "lost-disk" || k == "stale" {
			length = 30 * time.Second
		}
	}
	return max(min(length, total/time.Duration(len(kinds)+1)), min(total, 8*time.Second))
}

func shuffled(r *rand.Rand, kinds []string) []string {
	s := slices.Clone(kinds)
	r.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
	return s
}

// draw takes one to three kinds: first those that were not seen yet, then any. A kind that acts alone comes alone.
func draw(r *rand.Rand, kinds []string, queue *[]string, left int) []string {
	want := 1 + r.IntN(3)
	if len(*queue) > left {
		want = 3
	}
	var mix []string
	for len(mix) < want {
		var kind string
		fresh := len(*queue) > 0
		if fresh {
			kind = (*queue)[0]
		} else {
			kind = kinds[r.IntN(len(kinds))]
		}
		fault, _ := Find(kind)
		if fault.Alone && len(mix) > 0 || slices.Contains(mix, kind) {
			break
		}
		if fresh {
			*queue = (*queue)[1:]
		}
		mix = append(mix, kind)
		if fault.Alone {
			break
		}
	}
	return mix
}

func steps(r *rand.Rand, kind string, w Window, number int) []Step {
	fault, _ := Find(kind)
	usable := (w.End - w.Start) * 9 / 10
	one := func(from, to time.Duration) Step {
		span := to - from
		at := from + time.Duration(r.Int64N(int64(span/4)+1))
		hold := (to - at) / 2
		if fault.Long {
			hold = (to - at) * 9 / 10
		}
		hold = hold/2 + time.Duration(r.Int64N(int64(hold/2)+1))
		return Step{Window: number, At: w.Start + at, Kind: kind, Hold: hold, Salt: r.Uint64()}
	}
	if !fault.Repeat {
		return []Step{one(0, usable)}
	}
	n := 1 + r.IntN(3)
	var all []Step
	for i := range n {
		all = append(all, one(usable*time.Duration(i)/time.Duration(n), usable*time.Duration(i+1)/time.Duration(n)))
	}
	return all
}
