package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock/jepsen/check"
	"penstock/jepsen/control"
	"penstock/jepsen/destination"
	"penstock/jepsen/nemesis"
	"penstock/jepsen/runner"
)

// runFlags binds the options that run, suite and mutants share.
func runFlags(cmd *cobra.Command, o *runner.Options) {
	f := cmd.Flags()
	f.IntVar(&o.Nodes, "nodes", o.Nodes, "nodes of the cluster, 3 to 7")
	f.StringVar(&o.Workload, "workload", o.Workload, "see `jepsen list`")
	f.StringSliceVar(&o.Nemesis, "nemesis", o.Nemesis, "kinds or groups, comma-separated; see `jepsen list`")
	f.DurationVar(&o.Time, "time", o.Time, "length of the phase with faults")
	f.Uint64Var(&o.Seed, "seed", uint64(time.Now().UnixNano()%1_000_000), "of plan and clients; printed with the verdict")
	f.StringVar(&o.Binary, "binary", "", "penstock binary; default: built from ./cmd/penstock")
	f.StringVar(&o.FS, "fs", o.FS, "of the volumes: ext4, xfs or mixed")
	f.StringVar(&o.Out, "out", "", "directory of the run; default: a new one below "+runner.RunsDir())
	f.StringVar(&o.Images, "images", "", "directory of the volume images, e.g. /dev/shm for speed; default: with the run's work files")
	f.IntVar(&o.Writers, "writers", o.Writers, "writers per channel")
	f.DurationVar(&o.Think, "think", o.Think, "mean pause of a writer between two requests")
	f.IntVar(&o.MinAcks, "min-acks", 0, "fewer acknowledged events make the run INVALID; default: 20 per second")
	f.IntVar(&o.MinFault, "min-faults", 0, "fewer confirmed faults make the run INVALID; default: one of each kind, and one in every second window with faults")
	f.Float64Var(&o.Patience, "patience", 0, "factor on the bounds of the liveness phase, 1 to 10, for slow machines")
	f.StringVar(&o.Segment, "segment", o.Segment, "wal.segment_bytes of the nodes")
	f.StringVar(&o.Snapshot, "snapshot", o.Snapshot, "cluster.snapshot_bytes of the nodes")
	f.IntVar(&o.Trailing, "trailing", 0, "cluster.trailing_entries of the nodes; default: the product's")
	f.StringVar(&o.Keep, "keep", o.Keep, "retention of the channels; 0s lets the log go as early as it may")
	f.BoolVar(&o.Chaos, "chaos", false, "PENSTOCK_CHAOS_MODE in all nodes; killed nodes are started again")
	f.StringSliceVar(&o.Env, "env", nil, "further environment of the nodes, NAME=VALUE")
}

func runCommand() *cobra.Command {
	o := runner.Defaults()
	cmd := &cobra.Command{
		Use: "run", Short: "one run: faults, heal, verdict", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := ensureBinary(cmd, &o); err != nil {
				return err
			}
			dir, v, err := runner.Run(cmd.Context(), o)
			if err != nil {
				return fmt.Errorf("%w (seed %d, evidence in %s)", err, o.Seed, dir)
			}
			return show(cmd.OutOrStdout(), dir, o.Seed, v)
		},
	}
	runFlags(cmd, &o)
	cmd.Flags().BoolVar(&o.KeepData, "keep-data", false, "keep the nodes' directories also when the run passed")
	cmd.Flags().StringSliceVar(&o.Endpoints, "endpoints", nil, "base URLs of a cluster of your own; nothing is laid or broken by the harness")
	cmd.Flags().StringVar(&o.FaultCommand, "fault-command", "", "with --endpoints: a shell command run with `begin` and `end` in turns")
	cmd.Flags().StringVar(&o.Listen, "listen", "", "with --endpoints: HOST:PORT of the webhook receiver, as the cluster reaches it; with --compose a port of the network's gateway is taken")
	cmd.Flags().StringVar(&o.Compose, "compose", "", "a running Compose project instead: kill, pause and disconnect of its containers")
	cmd.Flags().StringVar(&o.TokenFile, "token-file", "", "with --endpoints and --compose: a file with a token that holds every role")
	return cmd
}

// ensureBinary builds the product when no binary was named.
func ensureBinary(cmd *cobra.Command, o *runner.Options) error {
	if o.Binary != "" || len(o.Endpoints) > 0 || o.Compose != "" {
		return nil
	}
	path, err := build(cmd, "")
	o.Binary = path
	return err
}

func build(cmd *cobra.Command, tags string) (string, error) {
	path := filepath.Join(os.TempDir(), "penstock-jepsen-bin", "penstock"+tags)
	c := exec.CommandContext(cmd.Context(), "go", "build", "-tags", tags, "-o", path, "./cmd/penstock")
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("build ./cmd/penstock (name one with --binary instead): %w", err)
	}
	return path, nil
}

// show prints the verdict and hands it to the exit code.
func show(w io.Writer, dir string, seed uint64, v check.Verdict) error {
	for _, c := range v.Checks {
		fmt.Fprintf(w, "%-22s %-8s %s\n", c.Name, c.Status, numbers(c))
		for _, violation := range c.Violations[:min(3, len(c.Violations))] {
			fmt.Fprintf(w, "    %s\n", violation)
		}
		if c.Why != "" {
			fmt.Fprintf(w, "    %s\n", c.Why)
		}
	}
	fmt.Fprintf(w, "%s  seed %d  %s\n", v.Verdict, seed, filepath.Join(dir, "report.html"))
	if v.Verdict != check.Pass {
		return verdictError{v.Verdict}
	}
	return nil
}

func numbers(c check.Result) string {
	var parts []string
	for k, n := range c.Numbers {
		parts = append(parts, fmt.Sprintf("%s=%d", strings.ReplaceAll(k, " ", "-"), n))
	}
	sort.Strings(parts)
	return strings.Join(parts, " ")
}

func recheckCommand() *cobra.Command {
	return &cobra.Command{
		Use: "recheck DIR", Short: "judge a stored run again", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if m, ok, err := runner.RecheckFailover(args[0]); ok || err != nil {
				if err != nil {
					return err
				}
				return showMeasured(cmd.OutOrStdout(), args[0], m)
			}
			v, err := runner.Recheck(args[0])
			if err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), args[0], 0, v)
		},
	}
}

func listCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "workloads, nemeses and groups", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			w := cmd.OutOrStdout()
			fmt.Fprintln(w, "workloads:")
			for _, name := range sorted(runner.Workloads()) {
				fmt.Fprintf(w, "  %-17s %s\n", name, runner.Workloads()[name])
			}
			fmt.Fprintln(w, "nemeses:")
			for _, f := range nemesis.Kinds() {
				fmt.Fprintf(w, "  %-17s %s\n  %-17s confirmed: %s\n", f.Name, f.What, "", f.Confirmed)
			}
			fmt.Fprintln(w, "nemeses of a Compose project:")
			for _, f := range nemesis.ContainerFaults() {
				fmt.Fprintf(w, "  %-17s %s\n  %-17s confirmed: %s\n", f.Name, f.What, "", f.Confirmed)
			}
			fmt.Fprintln(w, "groups:")
			for _, name := range sorted(nemesis.Groups()) {
				fmt.Fprintf(w, "  %-17s %s\n", name, strings.Join(nemesis.Groups()[name], ", "))
			}
		},
	}
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "try every fault tool once and say what works on this machine", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			unlock, err := control.Lock()
			if err != nil {
				return err
			}
			defer unlock()
			missing := 0
			for _, c := range control.Doctor(cmd.Context(), "doc") {
				state := "ok"
				if !c.OK {
					state = "MISSING"
					missing++
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%-28s %-8s %s\n", c.Name, state, c.Detail)
				if !c.OK {
					fmt.Fprintf(cmd.OutOrStdout(), "%-28s          needed by: %s\n", "", c.Needed)
				}
			}
			if missing > 0 {
				return fmt.Errorf("%d of what the harness needs does not work here", missing)
			}
			return nil
		},
	}
}

func cleanCommand() *cobra.Command {
	return &cobra.Command{
		Use: "clean", Short: "remove what earlier runs left: processes, mounts, loop devices, namespaces, images", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			unlock, err := control.Lock()
			if err != nil {
				return err
			}
			defer unlock()
			removed, err := control.Clean(cmd.Context())
			for _, r := range removed {
				fmt.Fprintln(cmd.OutOrStdout(), "removed", r)
			}
			return err
		},
	}
}

func destinationCommand() *cobra.Command {
	var listen, log string
	var hosts map[string]string
	cmd := &cobra.Command{
		Use: "destination", Short: "a webhook receiver with a log of its own (started by run)", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return destination.Serve(cmd.Context(), listen, log, hosts)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "HOST:PORT")
	cmd.Flags().StringVar(&log, "log", "", "file")
	cmd.Flags().StringToStringVar(&hosts, "host", nil, "ADDRESS=NAME of the nodes")
	return cmd
}
