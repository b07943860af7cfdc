package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"penstock/node/config"
)

// Options are what a process gives a node beside its configuration.
type Options struct {
	Logger *slog.Logger
	// Stdout is where stdout emitters write.
	Stdout io.Writer
	// Ready is called once, when the node is ready for the first time.
	Ready func(Info)
	// Reload brings configurations to take over what can change in a running node; nil: none come.
	Reload <-chan config.Config
	// Level is that of Logger, so that a reload can change it; nil: it cannot.
	Level *slog.LevelVar
	// Hurry, when closed, cuts short what a drain waits for: uploads at once, everything else within hurryLimit.
	Hurry <-chan struct{}
	// Version of the program, shown to the other nodes.
	Version string
	// Fatal ends the process on a fault after which nothing may be answered (I11). nil: os.Exit.
	Fatal func(code int, err error)
}

// Info says where a ready node answers.
type Info struct {
	NodeID string
	HTTP   string
}

// Run runs one node until ctx ends, then drains it. nil means a clean stop; ExitCode gives the code of anything else.
func Run(ctx context.Context, cfg config.Config, opts Options) error {
	opts = opts.withDefaults(cfg)
	n, err := open(cfg, opts)
	if err != nil {
		return err
	}
	return n.run(ctx)
}

func (o Options) withDefaults(cfg config.Config) Options {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Logger = o.Logger.With("node", cfg.Node.ID)
	if o.Stdout == nil {
		o.Stdout = os.Stdout
	}
	if o.Ready == nil {
		o.Ready = func(Info) {}
	}
	if o.Fatal == nil {
		logger := o.Logger
		o.Fatal = func(code int, err error) {
			logger.Error("the process ends: nothing may be answered after this", "error", err, "exit_code", code)
			os.Exit(code)
		}
	}
	return o
}

// run listens and serves.
func (n *Node) run(ctx context.Context) error {
	listener, err := net.Listen("tcp", n.cfg.Node.HTTP)
	if err != nil {
		return errors.Join(fmt.Errorf("node.http: %w", err), n.close())
	}
	stopDebug, err := n.startDebug()
	if err != nil {
		return errors.Join(err, listener.Close(), n.close())
	}
	defer stopDebug()
	return n.serve(ctx, listener)
}

// serve serves until ctx ends or the listener fails. Either way what was accepted is drained.
func (n *Node) serve(ctx context.Context, listener net.Listener) error {
	server := n.server()
	served := make(chan error, 1)
	n.listener = limitConnections(listener, connectionLimits(n.cfg.Limits))
	go func() { served <- server.Serve(n.listener) }()
	background, stop := context.WithCancel(context.Background())
	defer stop()
	done := n.startLoops(background)
	go n.announce(background, listener.Addr().String())
	n.log.Info("node started", append([]any{"http", listener.Addr().String()}, n.origin()...)...)

	select {
	case <-ctx.Done():
	case err := <-served:
		return errors.Join(fmt.Errorf("serve HTTP: %w", err), n.drain(server, stop, done))
	case err := <-n.removed:
		n.log.Warn("drained and stopped: this node was removed", "error", err)
		if err := n.drain(server, stop, done); err != nil {
			n.log.Warn("the drain of a removed node", "error", err)
		}
		return exitWith(ExitRemoved, "run", err)
	}
	return n.drain(server, stop, done)
}

// origin says for the log what this start follows.
func (n *Node) origin() []any {
	if n.fresh {
		return []any{"fresh", true}
	}
	return []any{"unclean", !n.cleanStart}
}

func (n *Node) server() *http.Server {
	return &http.Server{
		Handler:           refuseCrowded(n.api),
		ConnContext:       connContext,
		ReadHeaderTimeout: time.Duration(n.cfg.Limits.Header),
		// Bodies have their own, nearer deadlines. These two are for what has none: a client that does not read its answer.
		ReadTimeout:    n.api.Longest(),
		WriteTimeout:   n.api.Longest(),
		IdleTimeout:    time.Duration(n.cfg.Limits.Idle),
		MaxHeaderBytes: int(n.cfg.Limits.HeaderBytes),
		ErrorLog:       slog.NewLogLogger(n.log.Handler(), slog.LevelDebug),
	}
}

// announce tells Options.Ready the first time the node is ready.
func (n *Node) announce(ctx context.Context, addr string) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if n.ready() == nil {
			n.log.Info("node ready", "http", addr)
			n.opts.Ready(Info{NodeID: n.cfg.Node.ID, HTTP: addr})
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
