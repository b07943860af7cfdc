package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"penstock/internal/client"
	"penstock/internal/spec"
)

func (a *app) channelCommand() *cobra.Command {
	c := group(&cobra.Command{Use: "channel", Short: "Create, change, show and delete channels"})
	c.AddCommand(a.channelApply(), a.channelExample(), a.channelList(), a.channelShow(), a.channelDelete())
	return c
}

func (a *app) channelApply() *cobra.Command {
	var file string
	var o client.PutOptions
	c := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create or change the channels of a YAML file (- is standard input)",
		Long: "Creates or changes each channel of a YAML file (- is standard input), and says back its semantics. The whole file is\n" +
			"checked before anything of it is applied; channels it does not name are left alone; the same file again changes\n" +
			"nothing. `penstock channel example` prints a commented file; docs/channels.md explains every field.",
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usageError{errors.New("channel apply: want -f FILE")}
			}
			channels, err := a.readChannels(file)
			if err != nil {
				return err
			}
			if o.DryRun {
				return a.dryRunChannels(cmd.Context(), channels, o)
			}
			return a.applyChannels(cmd.Context(), channels, o)
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "YAML file with channels:")
	c.Flags().BoolVar(&o.Discard, "discard", false, "drop the pending and dead deliveries of emitters that go away")
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "show what would change, and change nothing; fails when it would be refused")
	return c
}

// readChannels checks a whole file before anything of it is applied.
func (a *app) readChannels(file string) ([]spec.Channel, error) {
	var b []byte
	var err error
	if file == "-" {
		b, err = io.ReadAll(a.stdin)
	} else {
		b, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, err
	}
	channels, err := spec.ParseYAML(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var errs []error
	for i := range channels {
		channels[i].ApplyDefaults()
		if err := channels[i].Validate(); err != nil {
			errs = append(errs, fmt.Errorf("%s: channel %q: %w", file, channels[i].Name, err))
		}
	}
	return channels, errors.Join(errs...)
}

func (a *app) applyChannels(ctx context.Context, channels []spec.Channel, o client.PutOptions) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	applied := []client.Applied{}
	var failed error
	for _, ch := range channels {
		var one client.Applied
		failed = patiently(ctx, func() (err error) { one, err = c.PutChannel(ctx, ch.Name, ch.Canonical(), o); return err })
		if failed != nil {
			failed = fmt.Errorf("channel %q: %w", ch.Name, mentionDiscard(failed, o))
			break
		}
		applied = append(applied, one)
	}
	err = a.print(map[string]any{"channels": applied}, func(w io.Writer) {
		row(w, "CHANNEL", "SEMANTICS", "VERSION", "RESULT")
		for _, c := range applied {
			result := "unchanged"
			if c.Changed {
				result = "changed"
			}
			row(w, c.Name, c.Semantics, c.Version, result)
		}
	})
	return errors.Join(failed, err)
}

// dryRunChannels shows what applying the channels would change, field by field.
func (a *app) dryRunChannels(ctx context.Context, channels []spec.Channel, o client.PutOptions) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	would := []client.Applied{}
	var refused error
	for _, ch := range channels {
		one, err := c.PutChannel(ctx, ch.Name, ch.Canonical(), o)
		if err != nil {
			return fmt.Errorf("channel %q: %w", ch.Name, err)
		}
		if one.Refused != "" {
			refused = errors.Join(refused, fmt.Errorf("channel %q would be refused: %s (--discard drops them)", ch.Name, one.Refused))
		}
		would = append(would, one)
	}
	err = a.print(map[string]any{"channels": would}, func(w io.Writer) {
		for _, c := range would {
			switch {
			case !c.Changed:
				fmt.Fprintf(w, "channel %s (%s): unchanged\n", c.Name, c.Semantics)
			case c.Version == 0:
				fmt.Fprintf(w, "channel %s (%s): new\n", c.Name, c.Semantics)
			default:
				fmt.Fprintf(w, "channel %s (%s): changes version %d\n", c.Name, c.Semantics, c.Version)
			}
			for _, change := range c.Changes {
				fmt.Fprintf(w, "  %s\n", change)
			}
		}
	})
	return errors.Join(err, refused)
}

// mentionDiscard adds the way out to a refusal to drop deliveries.
func mentionDiscard(err error, o client.PutOptions) error {
	p, ok := client.AsProblem(err)
	if !ok || p.Status != http.StatusConflict || o.Discard || !strings.Contains(p.Detail, " deliveries") {
		return err
	}
	return fmt.Errorf("%w (--discard drops them)", err)
}

//go:embed channel_example.yaml
var channelExample string

func (a *app) channelExample() *cobra.Command {
	return &cobra.Command{
		Use: "example", Short: "Print a commented file for apply", Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			_, err := io.WriteString(a.stdout, channelExample)
			return err
		},
	}
}

func (a *app) channelList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the channels", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			channels, err := c.Channels(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(map[string]any{"channels": channels}, func(w io.Writer) {
				row(w, "CHANNEL", "SEMANTICS", "ORDER", "VERSION", "ACCEPTED", "EMITTERS")
				for _, ch := range channels {
					s, err := spec.ParseJSON(ch.Spec)
					if err != nil { // a newer node's spec
						row(w, ch.Name, "?", "?", ch.Version, ch.Accepted, "?")
						continue
					}
					row(w, ch.Name, s.Semantics, s.Order, ch.Version, ch.Accepted, len(s.Emitters))
				}
			})
		},
	}
}

func (a *app) channelShow() *cobra.Command {
	return &cobra.Command{
		Use: "show CHANNEL", Short: "Show one channel and its whole spec", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, list []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			ch, err := c.Channel(cmd.Context(), list[0])
			if err != nil {
				return err
			}
			return a.print(ch, func(w io.Writer) {
				row(w, "CHANNEL", "INDEX", "VERSION", "ACCEPTED")
				row(w, ch.Name, ch.Index, ch.Version, ch.Accepted)
				fmt.Fprintln(w)
				indented, _ := json.MarshalIndent(ch.Spec, "", "  ")
				fmt.Fprintln(w, string(indented))
			})
		},
	}
}

func (a *app) channelDelete() *cobra.Command {
	var discard bool
	c := &cobra.Command{
		Use: "delete CHANNEL", Short: "Delete a channel; one with pending or dead deliveries only with --discard", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, list []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			o := client.PutOptions{Discard: discard}
			if err := c.DeleteChannel(cmd.Context(), list[0], o); err != nil {
				return mentionDiscard(err, o)
			}
			return a.print(map[string]any{"deleted": list[0]}, func(w io.Writer) { row(w, "deleted", list[0]) })
		},
	}
	c.Flags().BoolVar(&discard, "discard", false, "drop its pending and dead deliveries")
	return c
}
