package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"penstock/internal/chaos"
	"penstock/node"
	"penstock/node/config"
)

// serverFlags are the settings with a flag of their own; any other goes by --set KEY=VALUE.
var serverFlags = []struct{ flag, key, usage string }{
	{"id", "node.id", "id of the node, unique in the cluster"},
	{"data-dir", "node.data_dir", "directory of all its state"},
	{"http", "node.http", "address of ingest and administration"},
	{"raft", "node.raft", "address of the log between nodes"},
	{"gossip", "node.gossip", "address by which nodes find one another"},
	{"advertise", "node.advertise", "Raft address as the others dial it"},
	{"seeds", "cluster.seeds", "gossip addresses of the first nodes, comma-separated"},
}

func (a *app) serverCommand() *cobra.Command {
	var file string
	var set []string
	values := make([]string, len(serverFlags))
	c := &cobra.Command{
		Use:   "server --config FILE",
		Short: "Run one node",
		Long: "Runs one node until SIGTERM or SIGINT, then drains it: every accepted request is answered, everything known is\n" +
			"committed and synced, leadership is handed over. A second signal hurries. SIGHUP reads file and variables anew and says\n" +
			"what of it a running node takes over. Flags win over PENSTOCK_SECTION_KEY\n" +
			"variables, and those over the file (penstock config example).",
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			overrides := map[string]string{}
			for i, f := range serverFlags {
				if cmd.Flags().Changed(f.flag) {
					overrides[f.key] = values[i]
				}
			}
			for _, kv := range set {
				k, v, ok := strings.Cut(kv, "=")
				if !ok {
					return usageError{fmt.Errorf("--set %q: want KEY=VALUE", kv)}
				}
				overrides[k] = v
			}
			for flag, key := range map[string]string{"log-format": "log.format", "log-level": "log.level"} {
				if cmd.Flags().Changed(flag) {
					overrides[key] = cmd.Flags().Lookup(flag).Value.String()
				}
			}
			return a.serve(cmd.Context(), file, overrides)
		},
	}
	f := c.Flags()
	f.StringVar(&file, "config", a.getenv("PENSTOCK_CONFIG"), "YAML file (or $PENSTOCK_CONFIG)")
	f.String("log-format", "json", "json | text (log.format)")
	f.String("log-level", "info", "debug | info | warn | error (log.level)")
	f.StringArrayVar(&set, "set", nil, "KEY=VALUE, any setting of the file, as --set drain=10s")
	for i, s := range serverFlags {
		f.StringVar(&values[i], s.flag, "", s.usage+" ("+s.key+")")
	}
	return c
}

func (a *app) serve(ctx context.Context, file string, overrides map[string]string) error {
	cfg, err := config.Load(file, a.environ, overrides)
	if err != nil {
		return err
	}
	var level slog.LevelVar
	logger, err := newLogger(a.stderr, cfg.Log.Format, cfg.Log.Level, &level)
	if err != nil {
		return err
	}
	warn(logger, cfg)
	settings, err := chaos.FromEnv(a.getenv)
	if err != nil {
		return usageError{err}
	}
	defer chaos.Start(settings, logger)()
	ctx, hurry, stop := untilSignalled(ctx)
	defer stop()
	manager := notifier{socket: a.getenv("NOTIFY_SOCKET"), log: logger}
	defer context.AfterFunc(ctx, manager.stopping)()
	return node.Run(ctx, cfg, node.Options{
		Logger: logger, Level: &level, Stdout: a.stdout, Hurry: hurry, Version: version,
		Ready:  func(node.Info) { manager.ready() },
		Reload: reloads(ctx, manager, logger, func() (config.Config, error) { return config.Load(file, a.environ, overrides) }),
	})
}

func warn(logger *slog.Logger, cfg config.Config) {
	for _, w := range cfg.Warnings() {
		logger.Warn("configuration", "warning", w)
	}
}

// reloads reads the configuration anew at each SIGHUP, while ctx lasts. One that is wrong changes nothing.
func reloads(ctx context.Context, manager notifier, logger *slog.Logger, load func() (config.Config, error)) <-chan config.Config {
	out, signals := make(chan config.Config), make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	go func() {
		defer signal.Stop(signals)
		for {
			select {
			case <-signals:
			case <-ctx.Done():
				return
			}
			manager.reloading()
			cfg, err := load()
			if err != nil {
				logger.Error("configuration not taken over: nothing was changed", "error", err)
				manager.ready()
				continue
			}
			warn(logger, cfg)
			select {
			case out <- cfg:
			case <-ctx.Done():
				return
			}
			manager.ready()
		}
	}()
	return out
}

// untilSignalled ends with the first SIGTERM or SIGINT, and closes hurry at the second.
func untilSignalled(parent context.Context) (ctx context.Context, hurry <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	hurried, signals := make(chan struct{}), make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	done := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case <-signals:
			case <-done:
				return
			}
			switch n {
			case 0:
				cancel()
			case 1:
				close(hurried)
			}
		}
	}()
	return ctx, hurried, func() { signal.Stop(signals); close(done); cancel() }
}

// newLogger makes the process's logger; its level may be changed later.
func newLogger(w io.Writer, format, level string, l *slog.LevelVar) (*slog.Logger, error) {
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usageError{fmt.Errorf("--log-level %q: want debug, info, warn or error", level)}
	}
	o := &slog.HandlerOptions{Level: l}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	}
	return nil, usageError{errors.New("--log-format: want json or text")}
}
