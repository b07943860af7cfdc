// Command compare measures Penstock beside NATS JetStream and hashicorp/raft with its usual log stores, on this machine, in one go:
// three processes of each on loopback, one system at a time, in rounds, and the median of the rounds. It writes its tables into
// docs/benchmarks.md, between the marks it finds there. `make bench` runs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options of a run.
type options struct {
	binary, dir, doc string
	seconds          float64
	rounds           int
	parts            []string
	only             string
}

func (o *options) duration() time.Duration { return time.Duration(o.seconds * float64(time.Second)) }

func main() {
	if len(os.Args) > 1 && os.Args[1] == "peer" {
		if err := peer(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "compare peer:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	parts := ""
	flag.StringVar(&o.binary, "binary", "bin/penstock", "the penstock under test")
	flag.StringVar(&o.dir, "dir", os.TempDir(), "a directory on the disk to measure")
	flag.StringVar(&o.doc, "doc", "", "document to write the tables into (default: standard output)")
	flag.Float64Var(&o.seconds, "seconds", 3, "of one measurement")
	flag.IntVar(&o.rounds, "rounds", 3, "of the comparison; each number is the median")
	flag.StringVar(&parts, "parts", "ingest,emit", "ingest | emit | both")
	flag.StringVar(&o.only, "only", "", "systems whose name holds this, for a look at one")
	flag.Parse()
	o.parts = strings.Split(parts, ",")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	dir, err := os.MkdirTemp(o.dir, "penstock-compare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	o.dir = dir
	if slices.Contains(o.parts, "ingest") {
		rows, disk, err := compareIngest(ctx, o)
		if err != nil {
			return err
		}
		if err := publish(o.doc, "ingest", ingestTables(o, rows, disk)); err != nil {
			return err
		}
	}
	if slices.Contains(o.parts, "emit") {
		text, err := compareEmit(ctx, o)
		if err != nil {
			return err
		}
		return publish(o.doc, "emit", text)
	}
	return nil
}

// publish puts text between the marks of a part in the document, or prints it.
func publish(doc, part, text string) error {
	if doc == "" {
		_, err := fmt.Println(text)
		return err
	}
	b, err := os.ReadFile(doc)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+part+": written by make bench -->\n", "<!-- end of "+part+" -->"
	before, rest, found := strings.Cut(string(b), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return fmt.Errorf("%s has no place for %s between %q and %q", doc, part, begin, end)
	}
	return os.WriteFile(doc, []byte(before+begin+"\n"+text+"\n"+end+after), 0o644)
}
