package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"penstock/internal/client"
)

func (a *app) dlqReplay() *cobra.Command {
	var r client.ActRequest
	c := &cobra.Command{
		Use:   "replay ID...",
		Short: "Replay 1 to 50 dead letters by id",
		Long: "Makes one attempt at each dead letter, on the node that owns its emitter. See first that the destination works. A status is\n" +
			"one of delivered, failed, not_found, resolved, in_progress, forbidden, unknown; look an unknown one up with dlq show.",
		Args: args(cobra.RangeArgs(1, 50)),
		RunE: func(cmd *cobra.Command, list []string) error {
			return a.act(cmd, list, r, (*client.Client).Replay, "delivered", "would_replay")
		},
	}
	c.Flags().StringVar(&r.Reason, "reason", "", "for the audit trail")
	c.Flags().BoolVar(&r.Force, "force", false, "poison too")
	c.Flags().BoolVar(&r.DryRun, "dry-run", false, "say what would be attempted, and attempt nothing")
	c.Flags().StringVar(&r.To, "to", "", "send to this emitter of the channel instead")
	return c
}

func (a *app) dlqDiscard() *cobra.Command {
	var r client.ActRequest
	c := &cobra.Command{
		Use: "discard ID... --reason TEXT", Short: "Give up 1 to 50 dead letters by id", Args: args(cobra.RangeArgs(1, 50)),
		RunE: func(cmd *cobra.Command, list []string) error {
			if r.Reason == "" {
				return usageError{fmt.Errorf("--reason is required: it stands in the audit trail")}
			}
			return a.act(cmd, list, r, (*client.Client).Discard, "discarded")
		},
	}
	c.Flags().StringVar(&r.Reason, "reason", "", "for the audit trail (required)")
	return c
}

// act fails when an id did not come to one of the good ends, with the code of an unknown outcome when one is unknown.
func (a *app) act(cmd *cobra.Command, ids []string, r client.ActRequest,
	do func(*client.Client, context.Context, client.ActRequest) (client.ActResult, error), good ...string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	r.IDs = ids
	res, err := do(c, cmd.Context(), r)
	if err != nil {
		return err
	}
	err = a.print(res, func(w io.Writer) {
		row(w, "ID", "STATUS", "DETAIL")
		for _, s := range res.Results {
			row(w, s.ID, s.Status, s.Detail)
		}
	})
	if err != nil {
		return err
	}
	ended := 0
	for _, g := range good {
		ended += res.Counts[g]
	}
	switch {
	case res.Counts["unknown"] > 0:
		return errActUnknown
	case ended < len(ids):
		return errReported
	}
	return nil
}

func (a *app) dlqExport() *cobra.Command {
	var f client.DeadLetterFilter
	var file string
	c := &cobra.Command{
		Use: "export", Short: "Copy one node's dead-letter records, byte for byte", Args: args(cobra.NoArgs),
		Long: "Copies the records in the volume of the node that answers (--addr), payloads included, as JSON lines.",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			if file == "" {
				return c.Export(cmd.Context(), f, a.stdout)
			}
			to, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			w := bufio.NewWriter(to)
			err = c.Export(cmd.Context(), f, w)
			if err == nil {
				err = w.Flush()
			}
			if err == nil {
				err = to.Sync()
			}
			if cerr := to.Close(); err == nil {
				err = cerr
			}
			return err
		},
	}
	c.Flags().StringVar(&f.Channel, "channel", "", "only of this channel")
	c.Flags().StringVar(&f.Emitter, "emitter", "", "only of this emitter")
	c.Flags().StringVar(&f.State, "state", "", "dead | poison")
	c.Flags().StringVar(&file, "file", "", "write to this new file, mode 0600, and not to standard output")
	return c
}

func (a *app) auditCommand() *cobra.Command {
	var limit int
	var open bool
	c := &cobra.Command{
		Use: "audit", Short: "List operators' acts, the newest first", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			records, err := c.Audit(cmd.Context(), limit, open)
			if err != nil {
				return err
			}
			return a.print(map[string]any{"records": records}, func(w io.Writer) {
				row(w, "SEQ", "AT", "ACTOR", "ACTION", "IDS", "RESULT", "DETAIL", "REASON", "REQUEST")
				for _, r := range records {
					result := r.Result
					if r.Open {
						result = "open"
					}
					row(w, r.Seq, r.At, r.Actor, r.Action, len(r.IDs), result, r.Detail, r.Reason, r.RequestID)
				}
			})
		},
	}
	c.Flags().IntVarP(&limit, "limit", "n", 50, "at most so many, up to 1000")
	c.Flags().BoolVar(&open, "open", false, "only those without an outcome")
	return c
}

func (a *app) emitterCommand() *cobra.Command {
	c := group(&cobra.Command{Use: "emitter", Short: "Pause and resume emitters"})
	for _, verb := range []struct {
		use, short string
		paused     bool
	}{
		{"pause", "Stop the attempts of an emitter; its deliveries stay pending", true},
		{"resume", "Go on with a paused emitter", false},
	} {
		var reason string
		sub := &cobra.Command{
			Use: verb.use + " CHANNEL/EMITTER", Short: verb.short, Args: args(cobra.ExactArgs(1)),
			RunE: func(cmd *cobra.Command, list []string) error {
				channel, emitter, ok := strings.Cut(list[0], "/")
				if !ok || channel == "" || emitter == "" {
					return usageError{fmt.Errorf("%q: want CHANNEL/EMITTER", list[0])}
				}
				c, err := a.connect()
				if err != nil {
					return err
				}
				defer c.Close()
				return c.PauseEmitter(cmd.Context(), channel, emitter, verb.paused, reason)
			},
		}
		sub.Flags().StringVar(&reason, "reason", "", "for the audit trail")
		c.AddCommand(sub)
	}
	return c
}
