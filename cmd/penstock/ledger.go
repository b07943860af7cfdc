package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"penstock/internal/client"
)

func (a *app) ledgerCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ledger [CHANNEL]",
		Short: "Show that every accepted event is in exactly one state at every emitter",
		Long: "Shows per channel and emitter: accepted = delivered + dead + poison + discarded + lost + pending. Exit code 1 when a\n" +
			"balance does not hold.",
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, list []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			if len(list) == 0 {
				channels, err := c.Channels(cmd.Context())
				if err != nil {
					return err
				}
				for _, ch := range channels {
					list = append(list, ch.Name)
				}
			}
			ledgers := []client.Ledger{}
			for _, name := range list {
				l, err := c.Ledger(cmd.Context(), name)
				if err != nil {
					return err
				}
				ledgers = append(ledgers, l)
			}
			return a.printLedgers(ledgers)
		},
	}
}

func (a *app) printLedgers(ledgers []client.Ledger) error {
	balanced := true
	err := a.print(map[string]any{"ledgers": ledgers}, func(w io.Writer) {
		row(w, "CHANNEL", "EMITTER", "OWNER", "ACCEPTED", "DELIVERED", "DEAD", "POISON", "DISCARDED", "LOST", "PENDING", "BALANCED")
		for _, l := range ledgers {
			if len(l.Emitters) == 0 {
				row(w, l.Channel, "", "", l.Accepted, "", "", "", "", "", "", yesNo(l.Balanced))
			}
			for _, e := range l.Emitters {
				row(w, l.Channel, e.Emitter, e.Owner, e.Accepted, e.Delivered, e.Dead, e.Poison, e.Discarded, e.Lost, e.Pending, yesNo(holds(e)))
			}
		}
	})
	if err != nil {
		return err
	}
	for _, l := range ledgers {
		balanced = balanced && l.Balanced
		for _, e := range l.Emitters {
			balanced = balanced && holds(e)
		}
	}
	if !balanced {
		a.talk("penstock: a ledger does not balance")
		return errReported
	}
	return nil
}

// holds checks the sum itself: the node's own word is not enough for the one number that matters.
func holds(e client.LedgerRow) bool { return e.Balanced && e.Accepted == e.Sum() }

func (a *app) explainCommand() *cobra.Command {
	var source string
	c := &cobra.Command{
		Use:   "explain EVENT_ID",
		Short: "Show where one event is: position, attempts, and what happens next",
		Args:  args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, list []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			x, err := c.Explain(cmd.Context(), list[0], source)
			if err != nil {
				return err
			}
			return a.print(x, func(w io.Writer) {
				for _, e := range x.Events {
					explainEvent(w, e)
				}
			})
		},
	}
	c.Flags().StringVar(&source, "source", "", "only the event of this source")
	return c
}

func explainEvent(w io.Writer, e client.ExplainedEvent) {
	row(w, "event:", e.ID)
	row(w, "source:", e.Source)
	row(w, "channel:", e.Channel)
	row(w, "position:", e.Position)
	row(w, "accepted at:", e.AcceptedAt)
	for _, d := range e.Deliveries {
		row(w)
		row(w, "emitter:", d.Emitter)
		row(w, "  state:", d.State)
		row(w, "  next:", d.Next)
		if d.NextAttempt != "" {
			row(w, "  next attempt:", d.NextAttempt+in(d.NextAttempt))
		}
		row(w, "  attempts:", d.Attempts)
		if d.LastAttempt != "" {
			row(w, "  last attempt:", d.LastAttempt)
		}
		if d.LastClass != "" {
			row(w, "  last failure:", lastFailure(d))
		}
		row(w, "  compaction:", d.CompactionID)
		if d.DeadLetterID != "" {
			row(w, "  dead letter:", d.DeadLetterID)
		}
		row(w, "  owner:", fmt.Sprintf("%s, epoch %d", d.Owner, d.Epoch))
	}
}

func lastFailure(d client.Delivery) string {
	s := d.LastClass
	if d.LastStatus != 0 {
		s += fmt.Sprintf(", status %d", d.LastStatus)
	}
	if d.LastReason != "" {
		s += ", " + d.LastReason
	}
	return s
}

// in says how far off a time is, for people.
func in(stamp string) string {
	t, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil || time.Until(t) <= 0 {
		return ""
	}
	return " (in " + time.Until(t).Round(time.Second).String() + ")"
}
