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
	"penstock/jepsen/nemesis"
	"penstock/jepsen/runner"
)

// outcome is one line of a suite's summary.
type outcome struct {
	Scenario string       `json:"scenario"`
	Verdict  check.Status `json:"verdict"`
	Why      []string     `json:"why,omitempty"`
	Seed     uint64       `json:"seed"`
	Took     string       `json:"took"`
	Dir      string       `json:"dir"`
	Open     bool         `json:"open,omitempty"` // known to be open; listed, not counted
}

// scenario is one run of a suite.
type scenario struct {
	name    string
	nemesis []string
	time    time.Duration
	nodes   int
	fs      string
	tune    func(*runner.Options)
}

// scenarios: long is each kind alone, then mixes on both file systems; short is one run per group.
func scenarios(short bool, each, mixed time.Duration) []scenario {
	if short {
		return []scenario{
			{"crash", []string{"kill", "kill-all", "pause", "restart", "power", "power-all"}, 60 * time.Second, 3, "ext4", nil},
			{"network", []string{"partition", "partition-oneway", "loss", "delay", "reset"}, 50 * time.Second, 3, "ext4", nil},
			{"disk", []string{"fsync-slow", "fsync-fail", "dest-fail"}, 40 * time.Second, 3, "xfs", nil},
		}
	}
	var list []scenario
	for _, f := range nemesis.Kinds() {
		s := scenario{name: f.Name, nemesis: []string{f.Name}, time: each, nodes: 3, fs: "ext4"}
		if f.Name == "partition-bridge" {
			s.nodes = 5
		}
		if f.Damage || f.Alone {
			s.time = max(each, 30*time.Second)
		}
		if f.Name == "replace-all" {
			s.tune = trimmed
		}
		list = append(list, s)
	}
	return append(list,
		scenario{"mixed on ext4", []string{"mixed"}, mixed, 3, "ext4", nil},
		scenario{"mixed on xfs, 5 nodes", []string{"mixed"}, mixed, 5, "xfs", nil})
}

func suiteCommand() *cobra.Command {
	o := runner.Defaults()
	var short bool
	var each, mixed time.Duration
	var open, only []string
	cmd := &cobra.Command{
		Use: "suite", Short: "each nemesis alone, then mixed: about 20 minutes; --short: about 5", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := ensureBinary(cmd, &o); err != nil {
				return err
			}
			root := o.Out
			if root == "" {
				root = filepath.Join(runner.RunsDir(), "suite-"+time.Now().UTC().Format("20060102-150405"))
			}
			var done []outcome
			for i, s := range scenarios(short, each, mixed) {
				if cmd.Context().Err() != nil {
					return cmd.Context().Err()
				}
				if len(only) > 0 && !slices.Contains(only, s.name) {
					continue
				}
				one := o
				one.Name, one.Nemesis, one.Time, one.Nodes, one.FS, one.Seed = s.name, s.nemesis, s.time, s.nodes, s.fs, o.Seed+uint64(i)
				one.Out = filepath.Join(root, strings.NewReplacer(" ", "-", ",", "").Replace(s.name))
				if s.tune != nil {
					s.tune(&one)
				}
				out := play(cmd, one)
				out.Open = slices.Contains(open, s.name)
				done = append(done, out)
				fmt.Fprintf(cmd.OutOrStdout(), "%-24s %-8s %6s  seed %d  %s\n", out.Scenario, out.Verdict, out.Took, out.Seed, strings.Join(out.Why[:min(1, len(out.Why))], ""))
			}
			return summarize(cmd, filepath.Join(root, "summary.json"), done)
		},
	}
	runFlags(cmd, &o)
	cmd.Flags().BoolVar(&short, "short", false, "the five-minute form")
	cmd.Flags().DurationVar(&each, "each", 16*time.Second, "time with faults of each nemesis alone")
	cmd.Flags().DurationVar(&mixed, "mixed", 150*time.Second, "time with faults of each mix")
	cmd.Flags().StringSliceVar(&open, "open", nil, "scenarios that are known to be open: listed, but not counted")
	cmd.Flags().StringSliceVar(&only, "only", nil, "only these scenarios")
	return cmd
}

// play carries out one run of a suite; a failure of the harness itself counts as INVALID.
func play(cmd *cobra.Command, o runner.Options) outcome {
	start := time.Now()
	dir, v, err := runner.Run(cmd.Context(), o)
	out := outcome{Scenario: o.Name, Verdict: v.Verdict, Why: v.Why, Seed: o.Seed, Dir: dir, Took: time.Since(start).Round(time.Second).String()}
	if err != nil {
		out.Verdict, out.Why = check.Invalid, []string{"harness: " + err.Error()}
	}
	return out
}

// summarize writes the summary; the worst verdict that is not known to be open is the suite's.
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
	worst := check.Pass
	if len(done) == 0 {
		worst = check.Invalid
	}
	passed, open := 0, 0
	for _, d := range done {
		switch {
		case d.Verdict == check.Pass:
			passed++
		case d.Open:
			open++
		case d.Verdict == check.Fail || worst == check.Pass:
			worst = d.Verdict
		}
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %d of %d scenarios passed, %d open; %s\n", worst, passed, len(done), open, path)
	if worst != check.Pass {
		return verdictError{worst}
	}
	return nil
}
