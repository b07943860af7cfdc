package runner

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"penstock/jepsen/check"
	"penstock/jepsen/history"
)

// Targets of failover (issue: settled by measurement).
const (
	targetMedian   = time.Second
	targetP99      = 3 * time.Second
	targetHandover = 300 * time.Millisecond
	targetEqual    = 30 * time.Second
	// steadyFloor is what counts as load at all, in events per second: a cluster that does nothing elects nobody.
	steadyFloor = 200
)

// Sample is one leader that was ended.
type Sample struct {
	Node string        `json:"node"`
	Exit string        `json:"exit"`
	Took time.Duration `json:"took"`  // from the signal to the first acknowledgement of a write sent after it
	Rise uint64        `json:"rise"`  // of the term; 0: another node led already, so nothing was measured
	Back time.Duration `json:"equal"` // from its new start until all nodes were equal
}

// Measured is the outcome of Failover, as it is stored.
type Measured struct {
	Seed           uint64        `json:"seed"`
	AskedKills     int           `json:"asked_kills"`
	AskedHandovers int           `json:"asked_handovers"`
	AskedSteady    time.Duration `json:"asked_steady"`
	Kills          []Sample      `json:"kills"`
	Handovers      []Sample      `json:"handovers"`
	Steady         *Steady       `json:"steady,omitempty"`
}

// Steady is the time of full load without faults.
type Steady struct {
	From, To            int64  // history.Clock
	TermFrom, TermTo    uint64 // the highest any node told, asked anew at both ends
	Acks                int64  // events acknowledged
	LongestGapWithoutOK time.Duration
}

func (s Steady) took() time.Duration { return time.Duration(s.To - s.From) }

// Judge gives the verdict with its reasons: FAIL when a target was missed, INVALID when less was measured than was asked for.
func (m Measured) Judge() (check.Status, []string) {
	var fails, short []string
	fail := func(format string, args ...any) { fails = append(fails, fmt.Sprintf(format, args...)) }
	miss := func(format string, args ...any) { short = append(short, fmt.Sprintf(format, args...)) }
	if m.AskedKills+m.AskedHandovers == 0 && m.AskedSteady == 0 {
		miss("nothing was asked for")
	}
	kills, handovers := took(m.Kills), took(m.Handovers)
	for _, part := range []struct {
		name  string
		asked int
		have  []Sample
		exit  string
	}{{"kills", m.AskedKills, m.Kills, "signal killed"}, {"hand-overs", m.AskedHandovers, m.Handovers, "exit code 0"}} {
		if len(part.have) < part.asked {
			miss("%d %s of %d", len(part.have), part.name, part.asked)
		}
		for i, s := range part.have {
			switch {
			case s.Exit != part.exit && part.exit == "exit code 0":
				fail("hand-over %d: %s ended with %s", i+1, s.Node, s.Exit)
			case s.Exit != part.exit:
				miss("kill %d: %s ended with %s", i+1, s.Node, s.Exit)
			case s.Rise == 0:
				miss("%s %d: the term did not rise, so %s did not lead", part.name, i+1, s.Node)
			case s.Took <= 0:
				fail("%s %d: no write was acknowledged after the end of %s", part.name, i+1, s.Node)
			}
			if s.Back > targetEqual {
				fail("%s %d: all nodes equal after %v, want %v", part.name, i+1, s.Back, targetEqual)
			}
		}
	}
	if len(kills) > 0 && (quantile(kills, .5) > targetMedian || quantile(kills, .99) > targetP99) {
		fail("kills: median %v, p99 %v; want %v and %v", quantile(kills, .5), quantile(kills, .99), targetMedian, targetP99)
	}
	if len(handovers) > 0 && quantile(handovers, .5) > targetHandover {
		fail("hand-overs: median %v, want %v", quantile(handovers, .5), targetHandover)
	}
	m.judgeSteady(fail, miss)
	switch {
	case len(fails) > 0:
		return check.Fail, append(fails, short...)
	case len(short) > 0:
		return check.Invalid, short
	}
	return check.Pass, nil
}

func (m Measured) judgeSteady(fail, miss func(string, ...any)) {
	if m.AskedSteady == 0 {
		return
	}
	if m.Steady == nil || m.Steady.took() < m.AskedSteady {
		miss("steady load did not last %v", m.AskedSteady)
		return
	}
	if rate := float64(m.Steady.Acks) / m.Steady.took().Seconds(); rate < steadyFloor {
		miss("steady load: %.0f events/s, less than %d is no load", rate, steadyFloor)
	}
	if m.Steady.TermFrom == 0 || m.Steady.TermTo == 0 {
		miss("steady load: no node told its term")
	}
	if m.Steady.TermTo > m.Steady.TermFrom {
		fail("steady load: %d elections without a fault, want none", m.Steady.TermTo-m.Steady.TermFrom)
	}
}

func took(samples []Sample) (d []time.Duration) {
	for _, s := range samples {
		d = append(d, s.Took)
	}
	return d
}

// String is the table that is printed.
func (m Measured) String() string {
	var b strings.Builder
	row := func(name string, d []time.Duration, target string) {
		if len(d) > 0 {
			fmt.Fprintf(&b, "%-28s n=%d  median %v  p99 %v  worst %v  (target: %s)\n", name, len(d), quantile(d, .5), quantile(d, .99), quantile(d, 1), target)
		}
	}
	row("SIGKILL of the leader", took(m.Kills), "median 1s, p99 3s")
	row("SIGTERM of the leader", took(m.Handovers), "median 300ms")
	var back []time.Duration
	for _, s := range slices.Concat(m.Kills, m.Handovers) {
		back = append(back, s.Back)
	}
	row("started until all are equal", back, "worst 30s")
	if s := m.Steady; s != nil {
		fmt.Fprintf(&b, "%-28s %v  %.0f events/s  longest gap between acks %v  %d elections  (target: 0)\n", "full load without faults",
			s.took().Round(time.Second), float64(s.Acks)/s.took().Seconds(), s.LongestGapWithoutOK.Round(time.Millisecond), s.TermTo-s.TermFrom)
	}
	return b.String()
}

// quantile is the nearest rank: the smallest sample that at least a part p of all is not above.
func quantile(d []time.Duration, p float64) time.Duration {
	s := slices.Clone(d)
	slices.Sort(s)
	return s[max(0, min(len(s)-1, int(math.Ceil(p*float64(len(s))))-1))].Round(time.Millisecond)
}

const measuredFile = "failover.json"

// RecheckFailover judges a stored measurement again; ok is false when dir holds none. Elections under steady load are counted
// anew from what the nodes told all the time.
func RecheckFailover(dir string) (m Measured, ok bool, err error) {
	if err := readJSON(filepath.Join(dir, measuredFile), &m); err != nil {
		return m, false, nil
	}
	if m.Steady == nil {
		return m, true, nil
	}
	observed, err := history.Read[history.Observation](filepath.Join(dir, "observations.jsonl"))
	for _, o := range observed {
		if o.T >= m.Steady.From && o.T <= m.Steady.To {
			m.Steady.TermTo = max(m.Steady.TermTo, o.Term)
		}
	}
	return m, true, err
}
