package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"penstock/jepsen/check"
	"penstock/jepsen/runner"
)

func failoverCommand() *cobra.Command {
	o := runner.Defaults()
	kills, handovers, steady := 50, 10, time.Duration(0)
	cmd := &cobra.Command{
		Use: "failover", Short: "how long writes stop after a leader's death and after its clean shutdown; false elections under full load", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := ensureBinary(cmd, &o); err != nil {
				return err
			}
			m, dir, err := runner.Failover(cmd.Context(), o, kills, handovers, steady)
			if err != nil {
				return fmt.Errorf("%w (measured so far: %s)", err, dir)
			}
			return showMeasured(cmd.OutOrStdout(), dir, m)
		},
	}
	runFlags(cmd, &o)
	cmd.Flags().IntVar(&kills, "kills", kills, "leaders killed")
	cmd.Flags().IntVar(&handovers, "handovers", handovers, "leaders stopped with SIGTERM")
	cmd.Flags().DurationVar(&steady, "steady", steady, "full load without faults, to count elections")
	return cmd
}

// showMeasured prints a measurement and hands its verdict to the exit code.
func showMeasured(w io.Writer, dir string, m runner.Measured) error {
	fmt.Fprint(w, m)
	verdict, why := m.Judge()
	for _, line := range why {
		fmt.Fprintf(w, "    %s\n", line)
	}
	fmt.Fprintf(w, "%s  seed %d  %s\n", verdict, m.Seed, dir)
	if verdict != check.Pass {
		return verdictError{verdict}
	}
	return nil
}
