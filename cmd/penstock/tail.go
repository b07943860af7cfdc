package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"penstock/event"
	"penstock/internal/client"
)

func (a *app) tailCommand() *cobra.Command {
	var from string
	var follow bool
	var limit int
	c := &cobra.Command{
		Use:   "tail CHANNEL",
		Short: "Print the committed events of a channel, in order",
		Long: "Prints committed events in order from the first readable one, or --from; with -f it goes on as events are committed.\n" +
			"With --output json each line is the structured CloudEvent with the extensions penstockindex and penstockordinal.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, list []string) error {
			if limit < 0 {
				return usageError{fmt.Errorf("--limit %d: want a count, 0 is no limit", limit)}
			}
			var o client.TailOptions
			if from != "" {
				p, err := event.ParsePosition(from)
				if err != nil {
					return usageError{fmt.Errorf("--from: %w", err)}
				}
				o.From = p
			}
			return a.tail(cmd.Context(), list[0], o, follow, limit)
		},
	}
	c.Flags().StringVar(&from, "from", "", "first position, INDEX or INDEX.ORD")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more")
	c.Flags().IntVarP(&limit, "limit", "n", 0, "stop after so many events; 0 is no limit")
	return c
}

// errEnough ends a tail at its limit.
var errEnough = errors.New("enough")

func (a *app) tail(ctx context.Context, channel string, o client.TailOptions, follow bool, limit int) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := interruptible(ctx)
	defer cancel()
	out := bufio.NewWriterSize(a.stdout, 64<<10)
	shown := 0
	show := func(e client.TailEvent) error {
		if err := a.printEvent(out, e); err != nil {
			return err
		}
		if shown++; shown == limit {
			return errEnough
		}
		if follow {
			return out.Flush() // whoever watches sees it now
		}
		return nil
	}
	if follow {
		err = c.Follow(ctx, channel, o, show)
	} else {
		err = readToEnd(ctx, c, channel, o, show)
	}
	err = errors.Join(ignoreEnd(err), ignoreEnd(out.Flush()))
	if first, gone := client.Gone(err); gone {
		return fmt.Errorf("%w (go on with --from %d)", err, first)
	}
	return err
}

// readToEnd reads pages up to what the answering node had applied.
func readToEnd(ctx context.Context, c *client.Client, channel string, o client.TailOptions, show func(client.TailEvent) error) error {
	broken := 0
	for {
		end, err := c.Tail(ctx, channel, o, show)
		if err != nil && end.Events > 0 && broken < 5 && !errors.Is(err, errEnough) && ctx.Err() == nil {
			broken++ // a page that broke off goes on behind its last event
			o.From = end.Next
			continue
		}
		if err != nil || end.Events == 0 && end.Next.Index > end.Applied || end.Next == o.From {
			return err
		}
		o.From = end.Next
	}
}

// ignoreEnd makes an interrupt, a reached limit and a reader that went away a normal end.
func ignoreEnd(err error) error {
	if errors.Is(err, errEnough) || errors.Is(err, context.Canceled) || errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

// shownData bounds the data of one line of the table.
const shownData = 100

func (a *app) printEvent(w io.Writer, e client.TailEvent) error {
	if a.output == "json" {
		_, err := fmt.Fprintf(w, "%s\n", e.Raw)
		return err
	}
	ev, err := event.ParseStructured(e.Raw)
	if err != nil {
		return fmt.Errorf("event at %s: %w", e.Position, err)
	}
	data := fmt.Sprintf("(%d bytes)", len(ev.Data))
	if utf8.Valid(ev.Data) {
		data = strings.Join(strings.Fields(string(ev.Data[:min(len(ev.Data), 4*shownData)])), " ")
		if r := []rune(data); len(r) > shownData {
			data = string(r[:shownData]) + "…"
		}
	}
	_, err = fmt.Fprintf(w, "%-10s  %s  %s  %s  %s\n", e.Position, ev.Type, ev.Source, ev.ID, data)
	return err
}
