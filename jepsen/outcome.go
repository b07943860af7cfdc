package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock/jepsen/check"
	"penstock/jepsen/runner"
)

// outcome is one line of a suite's summary.
type outcome struct {
	Scenario string       `json:"scenario"`
	Verdict  check.Status `json:"verdict"`
	Why      []string     `json:"why,omitempty"`
	Failed   []string     `json:"failed,omitempty"` // names of the checks that failed
	Seed     uint64       `json:"seed"`
	Took     string       `json:"took"`
	Dir      string       `json:"dir"`
	Open     bool         `json:"open,omitempty"`  // failed in the way that is known to be open; listed, not counted
	Again    bool         `json:"again,omitempty"` // the second try, after an INVALID one
}

// openList says which scenarios are known to fail, and in which checks. Whatever else fails in them counts.
type openList map[string][]string

func parseOpen(list []string) (openList, error) {
	open := openList{}
	for _, item := range list {
		name, checks, ok := strings.Cut(item, "=")
		if !ok || name == "" || checks == "" {
			return nil, fmt.Errorf("open %q: want SCENARIO=CHECK+CHECK, so that nothing else is excused", item)
		}
		open[name] = strings.Split(checks, "+")
	}
	return open, nil
}

// covers tells whether an outcome is a failure that is known, and nothing more than that.
func (l openList) covers(scenario string, out outcome) bool {
	allowed, ok := l[scenario]
	if !ok || out.Verdict != check.Fail || len(out.Failed) == 0 {
		return false
	}
	for _, name := range out.Failed {
		if !slices.Contains(allowed, name) {
			return false
		}
	}
	return true
}

// play carries out one scenario; a failure of the harness itself counts as INVALID.
func (s scenario) play(cmd *cobra.Command, o runner.Options) outcome {
	start := time.Now()
	if s.report != "" {
		verdict, why := playCase(cmd, s.report, o, caseRounds, caseHold)
		return outcome{Scenario: s.name, Verdict: verdict, Why: why, Failed: []string{s.name}, Seed: o.Seed, Took: time.Since(start).Round(time.Second).String()}
	}
	dir, v, err := runner.Run(cmd.Context(), o)
	out := outcome{Scenario: o.Name, Verdict: v.Verdict, Why: v.Why, Failed: failed(v), Seed: o.Seed, Dir: dir, Took: time.Since(start).Round(time.Second).String()}
	if err != nil {
		out.Verdict, out.Why = check.Invalid, []string{"harness: " + err.Error()}
	}
	return out
}

// playCase carries out one case. One that did too little is INVALID.
func playCase(cmd *cobra.Command, name string, o runner.Options, rounds int, hold time.Duration) (check.Status, []string) {
	for _, c := range runner.Cases() {
		if c.Name != name {
			continue
		}
		switch err := c.Run(cmd.Context(), o, rounds, hold); {
		case runner.Vacuous(err):
			return check.Invalid, []string{err.Error()}
		case err != nil:
			return check.Fail, []string{err.Error()}
		}
		return check.Pass, nil
	}
	return check.Invalid, []string{"no such case"}
}

// failed names the checks that failed.
func failed(v check.Verdict) (names []string) {
	for _, r := range v.Checks {
		if r.Status == check.Fail {
			names = append(names, r.Name)
		}
	}
	return names
}

func tell(cmd *cobra.Command, out outcome) {
	fmt.Fprintf(cmd.OutOrStdout(), "%-24s %-8s %6s  seed %d  %s\n", out.Scenario, out.Verdict, out.Took, out.Seed, strings.Join(out.Why[:min(1, len(out.Why))], ""))
}

// summarize writes the summary and hands the suite's verdict to the exit code.
func summarize(cmd *cobra.Command, path string, done []outcome) error {
	b, err := json.MarshalIndent(done, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		return err
	}
	worst, passed, open := overall(done)
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %d of %d scenarios passed, %d open; %s\n", worst, passed, len(done), open, path)
	if worst != check.Pass {
		return verdictError{worst}
	}
	return nil
}

// overall is the worst verdict that is not known to be open: FAIL over INVALID over UNKNOWN. Nothing played is INVALID.
func overall(done []outcome) (worst check.Status, passed, open int) {
	rank := []check.Status{check.Pass, check.Unknown, check.Invalid, check.Fail}
	worst = check.Pass
	if len(done) == 0 {
		worst = check.Invalid
	}
	for _, d := range done {
		switch {
		case d.Verdict == check.Pass:
			passed++
		case d.Open:
			open++
		case slices.Index(rank, d.Verdict) > slices.Index(rank, worst):
			worst = d.Verdict
		}
	}
	return worst, passed, open
}
