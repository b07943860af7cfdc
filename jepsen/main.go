// Command jepsen is Penstock's black-box fault harness: it runs a cluster of real processes, breaks it in every way that
// README.md lists, and judges what clients, destinations and disks say afterwards.
//
// It uses the public API and, for the logs, a read-only decoder; it holds no code of the product's state machine.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"penstock/jepsen/check"
)

// Exit codes: 0 PASS, 1 the harness failed, 2 usage, 3 FAIL, 4 INVALID or UNKNOWN.
const (
	exitHarness = 1
	exitUsage   = 2
	exitFail    = 3
	exitInvalid = 4
)

// verdictError carries a verdict that is not PASS to the exit code.
type verdictError struct{ verdict check.Status }

func (e verdictError) Error() string { return "verdict " + string(e.verdict) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use: "jepsen", Short: "Penstock's black-box fault harness", SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(runCommand(), recheckCommand(), suiteCommand(), failoverCommand(), mutantsCommand(), casesCommand(), listCommand(), doctorCommand(), cleanCommand(), destinationCommand())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	if err := root.ExecuteContext(ctx); err != nil {
		os.Exit(report(err))
	}
}

type usageError struct{ error }

func report(err error) int {
	var v verdictError
	var u usageError
	switch {
	case errors.As(err, &v) && v.verdict == check.Fail:
		return exitFail
	case errors.As(err, &v):
		return exitInvalid
	case errors.As(err, &u):
		fmt.Fprintln(os.Stderr, "jepsen:", err)
		return exitUsage
	}
	fmt.Fprintln(os.Stderr, "jepsen:", err)
	return exitHarness
}
