package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"penstock/internal/client"
)

// healthEvery is the pause between two looks of --wait.
const healthEvery = 200 * time.Millisecond

// healthCommand is for health checks that can run nothing but this binary: the container image holds no shell.
func (a *app) healthCommand() *cobra.Command {
	var ready bool
	var wait time.Duration
	c := &cobra.Command{
		Use:   "health",
		Short: "Tell whether every node of --addr is alive, or ready",
		Long: "Asks every node of --addr for /healthz, with --ready for /readyz: caught up, able to answer, a leader known.\n" +
			"Exit code 1 when one is not. With --wait it asks again until all are, for at most so long.",
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			states, err := a.untilHealthy(cmd.Context(), ready, wait)
			if err != nil {
				return err
			}
			return a.printHealth(states)
		},
	}
	c.Flags().BoolVar(&ready, "ready", false, "ask for readiness, not only for life")
	c.Flags().DurationVar(&wait, "wait", 0, "ask again until all are, for at most so long")
	return c
}

// nodeHealth is what one address answered.
type nodeHealth struct {
	Addr   string `json:"addr"`
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
}

func (a *app) untilHealthy(ctx context.Context, ready bool, wait time.Duration) ([]nodeHealth, error) {
	deadline := time.Now().Add(wait)
	for {
		states, all, err := a.look(ctx, ready)
		if err != nil || all || ctx.Err() != nil || time.Now().After(deadline) {
			return states, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(healthEvery):
		}
	}
}

// look asks each address by itself: the client of several would be content with the first that answers.
func (a *app) look(ctx context.Context, ready bool) (states []nodeHealth, all bool, err error) {
	all = true
	for _, addr := range client.SplitAddresses(a.addr) {
		c, err := client.New(client.Config{Addresses: []string{addr}, Timeout: a.timeout})
		if err != nil {
			return nil, false, usageError{fmt.Errorf("--addr: %w", err)}
		}
		ask := c.Alive
		if ready {
			ask = c.Ready
		}
		state := nodeHealth{Addr: addr, OK: true}
		if err := ask(ctx); err != nil {
			state.OK, state.Reason, all = false, err.Error(), false
		}
		states = append(states, state)
		c.Close()
	}
	if len(states) == 0 {
		return nil, false, usageError{fmt.Errorf("--addr %q: names no node", a.addr)}
	}
	return states, all, nil
}

func (a *app) printHealth(states []nodeHealth) error {
	all := true
	err := a.print(map[string]any{"nodes": states}, func(w io.Writer) {
		for _, s := range states {
			word := "ok"
			if !s.OK {
				word = "failed"
			}
			row(w, s.Addr, word, s.Reason)
		}
	})
	for _, s := range states {
		all = all && s.OK
	}
	if err == nil && !all {
		return errReported
	}
	return err
}
