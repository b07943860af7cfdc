package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"penstock/internal/client"
)

func (a *app) dlqCommand() *cobra.Command {
	c := group(&cobra.Command{Use: "dlq", Short: "Look at dead letters, replay and discard them"})
	c.AddCommand(a.dlqList(), a.dlqShow(), a.dlqReplay(), a.dlqDiscard(), a.dlqExport())
	return c
}

func (a *app) dlqList() *cobra.Command {
	var f client.DeadLetterFilter
	c := &cobra.Command{
		Use: "list", Short: "List dead letters and poison", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.State != "" && f.State != "dead" && f.State != "poison" {
				return usageError{fmt.Errorf("--state %q: want dead or poison", f.State)}
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			letters, err := c.DeadLetters(cmd.Context(), f)
			if err != nil {
				return err
			}
			return a.print(map[string]any{"dead_letters": letters}, func(w io.Writer) {
				row(w, "ID", "CHANNEL", "EMITTER", "POSITION", "STATE", "CLASS", "STATUS", "ATTEMPTS", "DEAD LETTERED AT", "OWNER", "REASON")
				for _, d := range letters {
					row(w, d.ID, d.Channel, d.Emitter, d.Position, d.State, d.Class, d.Status, d.Attempts, d.DeadLetteredAt, d.Owner, d.Reason)
				}
			})
		},
	}
	c.Flags().StringVar(&f.Channel, "channel", "", "only of this channel")
	c.Flags().StringVar(&f.Emitter, "emitter", "", "only of this emitter")
	c.Flags().StringVar(&f.State, "state", "", "dead | poison")
	return c
}

func (a *app) dlqShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show one dead letter", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, list []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			d, err := c.DeadLetter(cmd.Context(), list[0])
			if err != nil {
				return err
			}
			return a.print(d, func(w io.Writer) {
				b, _ := json.MarshalIndent(d, "", "  ")
				fmt.Fprintln(w, string(b))
			})
		},
	}
}
