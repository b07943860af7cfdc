package main

import (
	"fmt"
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
			m, err := runner.Failover(cmd.Context(), o, kills, handovers, steady)
			if err != nil {
				return err
			}
			fmt.Fprint(cmd.OutOrStdout(), m)
			if !m.Good() {
				return verdictError{check.Fail}
			}
			return nil
		},
	}
	runFlags(cmd, &o)
	cmd.Flags().IntVar(&kills, "kills", kills, "leaders killed")
	cmd.Flags().IntVar(&handovers, "handovers", handovers, "leaders stopped with SIGTERM")
	cmd.Flags().DurationVar(&steady, "steady", steady, "full load without faults, to count elections")
	return cmd
}
