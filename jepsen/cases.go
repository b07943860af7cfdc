package main

import (
	"fmt"
	"slices"
	"strings"
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
			if rounds < 1 || hold < 10*time.Second {
				return usageError{fmt.Errorf("%d rounds, %v hold: want at least 1 and 10s", rounds, hold)}
			}
			for _, name := range args {
				if !slices.ContainsFunc(runner.Cases(), func(c runner.Case) bool { return c.Name == name }) {
					return usageError{fmt.Errorf("no case is named %q", name)}
				}
			}
			worst := check.Pass
			for _, c := range runner.Cases() {
				if len(args) > 0 && !inList(args, c.Name) {
					continue
				}
				verdict, why := playCase(cmd, c.Name, o, rounds, hold)
				if worst != check.Fail && verdict != check.Pass {
					worst = verdict
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%-4s %s\n     %s %s\n", c.Name, c.What, verdict, strings.Join(why, ""))
			}
			if worst != check.Pass {
				return verdictError{worst}
			}
			return nil
		},
	}
	runFlags(cmd, &o)
	cmd.Flags().IntVar(&rounds, "rounds", rounds, "of B45")
	cmd.Flags().DurationVar(&hold, "hold", hold, "isolation of S15")
	return cmd
}
