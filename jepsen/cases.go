package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"penstock/jepsen/check"
	"penstock/jepsen/runner"
)

func casesCommand() *cobra.Command {
	o := runner.Defaults()
	rounds, hold := 20, 5*time.Minute
	cmd := &cobra.Command{
		Use: "case [NAME...]", Short: "reports from users of similar systems, as scenarios: B10, B45, S15",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := ensureBinary(cmd, &o); err != nil {
				return err
			}
			failed := 0
			for _, c := range runner.Cases() {
				if len(args) > 0 && !inList(args, c.Name) {
					continue
				}
				verdict := "PASS"
				if err := c.Run(cmd.Context(), o, rounds, hold); err != nil {
					verdict = "FAIL " + err.Error()
					failed++
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%-4s %s\n     %s\n", c.Name, c.What, verdict)
			}
			if failed > 0 {
				return verdictError{check.Fail}
			}
			return nil
		},
	}
	runFlags(cmd, &o)
	cmd.Flags().IntVar(&rounds, "rounds", rounds, "of B45")
	cmd.Flags().DurationVar(&hold, "hold", hold, "isolation of S15")
	return cmd
}
