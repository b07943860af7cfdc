package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"penstock/internal/client"
	"penstock/node"
	"penstock/wal"
)

// The exit codes of verbs; a server's further ones come from node.ExitCode.
const (
	exitOK      = 0
	exitFailed  = 1
	exitUsage   = 2
	exitDamage  = 3
	exitUnknown = 4
)

// app is one run of the command line, with everything it touches passed in.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	environ        []string

	addr      string
	output    string
	timeout   time.Duration
	tokenFile string
}

// usageError is a command line that cannot be meant.
type usageError struct{ error }

// errReported fails a verb that has already said why, in its data; errActUnknown likewise, with the code of an unknown outcome.
var (
	errReported   = errors.New("")
	errActUnknown = fmt.Errorf("%w", errReported)
)

// run parses and executes; it returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	addCompletion(root)
	err := root.ExecuteContext(ctx)
	if err != nil && !errors.Is(err, errReported) {
		fmt.Fprintln(a.stderr, "penstock: "+err.Error())
	}
	return exitCode(err)
}

func exitCode(err error) int {
	var usage usageError
	var damage *wal.DamageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errActUnknown):
		return exitUnknown
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &damage):
		return exitDamage
	case client.Unknown(err):
		return exitUnknown
	}
	return node.ExitCode(err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "penstock",
		Short: "Takes events over HTTP, keeps them on a majority of disks, delivers them",
		Long: "Penstock takes events over HTTP, commits each batch through Raft with an fsync on a majority before it answers,\n" +
			"and then delivers every event to the emitters of its channel, with retry and a dead letter queue.",
		SilenceErrors: true, SilenceUsage: true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := root.PersistentFlags()
	f.StringVar(&a.addr, "addr", a.defaultAddr(), "nodes to talk to, comma-separated host:port (or $PENSTOCK_ADDR)")
	f.StringVarP(&a.output, "output", "o", "table", "table | json")
	f.StringVar(&a.tokenFile, "token-file", a.getenv("PENSTOCK_TOKEN_FILE"), "file with the token to show (or $PENSTOCK_TOKEN_FILE; $PENSTOCK_TOKEN is the token itself)")
	f.DurationVar(&a.timeout, "timeout", 15*time.Second, "bound on one attempt at one node")
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if a.output != "table" && a.output != "json" {
			return usageError{fmt.Errorf("--output %q: want table or json", a.output)}
		}
		return nil
	}
	group(root)
	root.AddCommand(a.devCommand(), a.serverCommand(), a.channelCommand(), a.sendCommand(), a.tailCommand(), a.ledgerCommand(),
		a.explainCommand(), a.dlqCommand(), a.auditCommand(), a.emitterCommand(), a.clusterCommand(), a.healthCommand(), a.configCommand(), a.tokenCommand(), a.walCommand(),
		a.benchCommand(), a.versionCommand())
	return root
}

// addCompletion adds cobra's verb, once the output it is to write to is set. Cobra's own shows its help for a shell it does
// not know, and calls that a success.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			group(c)
			for _, shell := range c.Commands() {
				shell.Args = args(cobra.NoArgs)
			}
		}
	}
}

func (a *app) getenv(name string) string {
	for _, kv := range a.environ {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

func (a *app) defaultAddr() string {
	if v := a.getenv("PENSTOCK_ADDR"); v != "" {
		return v
	}
	return "127.0.0.1:7070"
}

// group makes c a command that only holds others: alone it prints its help, a word it does not know is a usage error.
func group(c *cobra.Command) *cobra.Command {
	c.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usageError{fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())}
		}
		return nil
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return c
}

// args makes a count that does not fit a usage error.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, list []string) error {
		if err := check(cmd, list); err != nil {
			return usageError{fmt.Errorf("%s: %w (usage: %s)", cmd.CommandPath(), err, cmd.UseLine())}
		}
		return nil
	}
}

// connect makes the client of --addr.
func (a *app) connect() (*client.Client, error) {
	token, err := a.token()
	if err != nil {
		return nil, err
	}
	c, err := client.New(client.Config{Addresses: client.SplitAddresses(a.addr), Timeout: a.timeout, Token: token})
	if err != nil {
		return nil, usageError{fmt.Errorf("--addr: %w", err)}
	}
	return c, nil
}

// interruptible ends with the first SIGINT or SIGTERM, so that a verb can still say how far it got.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
}

// patience bounds how long a verb waits for a cluster without a leader.
const patience = 20 * time.Second

// patiently repeats an idempotent change while the cluster cannot take it, for at most patience.
func patiently(ctx context.Context, change func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := change()
		if err == nil || !client.Retryable(err) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(300 * time.Millisecond):
		}
	}
}
