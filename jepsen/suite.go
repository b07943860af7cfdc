package main

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock/jepsen/check"
	"penstock/jepsen/nemesis"
	"penstock/jepsen/runner"
)

// scenario is one run of a suite.
type scenario struct {
	name    string
	nemesis []string
	time    time.Duration
	nodes   int
	fs      string
	tune    func(*runner.Options)
	report  string // name of a case instead: rounds and hold scaled down
}

// Scaled form of the cases in the suite; `jepsen case` plays them whole.
const (
	caseRounds = 6
	caseHold   = 30 * time.Second
)

// scenarios: long is each kind alone, then mixes on both file systems; short is one run per group.
func scenarios(short bool, each, mixed time.Duration) []scenario {
	if short {
		return []scenario{
			{"crash", []string{"kill", "kill-all", "pause", "restart", "power", "power-all", "power-fresh"}, 60 * time.Second, 3, "ext4", slow, ""},
			{"network", []string{"partition", "partition-oneway", "loss", "delay", "reset"}, 50 * time.Second, 3, "ext4", slow, ""},
			{"disk", []string{"fsync-slow", "fsync-fail", "dest-fail"}, 40 * time.Second, 3, "xfs", slow, ""},
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
	list = append(list,
		scenario{name: "mixed on ext4", nemesis: []string{"mixed"}, time: mixed, nodes: 3, fs: "ext4"},
		scenario{name: "mixed on xfs, 5 nodes", nemesis: []string{"mixed"}, time: mixed, nodes: 5, fs: "xfs"})
	for _, c := range runner.Cases() {
		list = append(list, scenario{name: "case " + c.Name, time: each, nodes: 3, fs: "ext4", report: c.Name})
	}
	return list
}

// slow fits the machines of continuous integration: what must not be seen stays the same, what must come back may take twice
// as long, and as little as ten events a second say something.
func slow(o *runner.Options) {
	if o.Patience == 0 {
		o.Patience = 2
	}
	o.MinAcks = 10 * int(o.Time.Seconds())
}

func suiteCommand() *cobra.Command {
	o := runner.Defaults()
	var short bool
	var each, mixed time.Duration
	var open, only []string
	var again bool
	cmd := &cobra.Command{
		Use: "suite", Short: "each nemesis alone, then mixed, then the cases: about 20 minutes; --short: about 5", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := ensureBinary(cmd, &o); err != nil {
				return err
			}
			known, err := parseOpen(open)
			if err != nil {
				return usageError{err}
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
				out := s.play(cmd, one)
				if again && out.Verdict == check.Invalid {
					tell(cmd, out)
					one.Seed, one.Out = one.Seed+1000, one.Out+"-again"
					out = s.play(cmd, one)
					out.Again = true
				}
				out.Open = known.covers(s.name, out)
				done = append(done, out)
				tell(cmd, out)
			}
			return summarize(cmd, filepath.Join(root, "summary.json"), done)
		},
	}
	runFlags(cmd, &o)
	cmd.Flags().BoolVar(&short, "short", false, "the five-minute form")
	cmd.Flags().DurationVar(&each, "each", 16*time.Second, "time with faults of each nemesis alone")
	cmd.Flags().DurationVar(&mixed, "mixed", 100*time.Second, "time with faults of each mix")
	cmd.Flags().StringSliceVar(&open, "open", nil, "scenarios that are known to be open, with the checks that may fail: bitflip=liveness+logs; listed, but not counted")
	cmd.Flags().BoolVar(&again, "again", true, "play a scenario that was INVALID once more, with another seed; a FAIL is never played again")
	cmd.Flags().StringSliceVar(&only, "only", nil, "only these scenarios")
	return cmd
}
