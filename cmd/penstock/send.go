package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"penstock/internal/client/feed"
	"penstock/internal/spec"
)

func (a *app) sendCommand() *cobra.Command {
	var cfg feed.Config
	maxBytes := "1MiB"
	c := &cobra.Command{
		Use:   "send CHANNEL [FILE...]",
		Short: "Send events from files or standard input",
		Long: "Sends each .ndjson or .jsonl file line by line, each other file as one JSON event, and standard input (no file, or -)\n" +
			"as NDJSON. CloudEvents pass through as they are. What is refused for the moment, and what has an unknown outcome, is\n" +
			"sent again under the same ids: a file sent twice within the dedup window is accepted once (--fresh: twice).\n\n" +
			"With --source one input is resumable: each request commits the offset behind its last event in the same entry, and the\n" +
			"next run goes on from there.",
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, list []string) error {
			var size spec.Size
			if err := size.UnmarshalText([]byte(maxBytes)); err != nil || size <= 0 || size > 1<<30 {
				return usageError{fmt.Errorf("--batch-bytes %q: want a size with a unit, as 1MiB", maxBytes)}
			}
			if cfg.Source == "" && (cfg.Partition != "" || cfg.Close) {
				return usageError{errors.New("--partition and --close go with --source")}
			}
			if cfg.Source != "" && len(list) > 2 {
				return usageError{errors.New("--source names one input; send several files with a source or partition each")}
			}
			cfg.Channel, cfg.MaxBytes = list[0], int(size)
			return a.send(cmd.Context(), cfg, list[1:])
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Source, "source", "", "name of the source, to resume by")
	f.StringVar(&cfg.Partition, "partition", "", "partition of the source (default 0)")
	f.BoolVar(&cfg.Close, "close", false, "with the last event say that the source has ended")
	f.BoolVar(&cfg.Fresh, "fresh", false, "new ids on this run: what was sent before is sent as new events")
	f.StringVar(&cfg.EventSource, "event-source", "", "source attribute of plain JSON (default: the channel's)")
	f.StringVar(&cfg.EventType, "event-type", "", "type attribute of plain JSON (default: the channel's)")
	f.StringVar(&maxBytes, "batch-bytes", maxBytes, "bytes of one request")
	f.IntVar(&cfg.MaxEvents, "batch-events", 1000, "events of one request")
	f.DurationVar(&cfg.RetryFor, "retry-for", 2*time.Minute, "how long one request is repeated before giving up")
	return c
}

func (a *app) send(ctx context.Context, cfg feed.Config, files []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := interruptible(ctx)
	defer cancel()
	progress := a.progress()
	cfg.Progress, cfg.Waiting = progress.show, progress.waiting(cfg.RetryFor)
	f := feed.New(cfg, c)
	if len(files) == 0 {
		files = []string{"-"}
	}
	var failed error
	for _, file := range files {
		if file == "-" {
			failed = f.Stream(ctx, "standard input", a.stdin)
		} else {
			failed = f.File(ctx, file)
		}
		if failed != nil {
			break
		}
	}
	progress.end()
	s := f.Summary()
	return errors.Join(failed, a.print(s, func(w io.Writer) {
		row(w, "SENT", "ACCEPTED", "DUPLICATES", "POISONED", "RETRIES", "UNKNOWN", "LAST INDEX")
		row(w, s.Sent, s.Accepted, s.Duplicates, s.Poisoned, s.Retries, s.Unknown, s.LastIndex)
	}))
}

// progress is one line on a terminal's standard error, rewritten at most ten times a second.
type progress struct {
	app   *app
	w     io.Writer // nil: no terminal
	start time.Time
	last  time.Time
	shown bool
}

func (a *app) progress() *progress {
	p := &progress{app: a, start: time.Now()}
	if f, ok := a.stderr.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			p.w = f
		}
	}
	return p
}

func (p *progress) show(s feed.Summary) {
	if p.w == nil || time.Since(p.last) < 100*time.Millisecond {
		return
	}
	p.last, p.shown = time.Now(), true
	rate := float64(s.Sent) / max(time.Since(p.start).Seconds(), 1e-3)
	fmt.Fprintf(p.w, "\r\033[Ksent %d events, %.1f MiB, %.0f/s, %d retries", s.Sent, float64(s.Bytes)/(1<<20), rate, s.Retries)
}

// waiting says, once in a while, why nothing moves. A single failed try is no news.
func (p *progress) waiting(limit time.Duration) func(error) {
	var tries int
	var said time.Time
	return func(err error) {
		if tries++; tries < 3 || time.Since(said) < 10*time.Second {
			return
		}
		said = time.Now()
		p.end()
		p.app.talk("penstock: repeating for up to %s: %v", limit, err)
	}
}

func (p *progress) end() {
	if p.shown {
		fmt.Fprint(p.w, "\r\033[K")
	}
}
