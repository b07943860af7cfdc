package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"penstock/internal/client"
)

// memberVerb is a verb that changes the members through any node.
func (a *app) memberVerb(use, short, long string, nodes int, change func(ctx context.Context, c *client.Client, ids []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long, Args: args(cobra.ExactArgs(nodes)),
		RunE: func(cmd *cobra.Command, list []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			if err := change(cmd.Context(), c, list); err != nil {
				return err
			}
			return a.print(map[string]any{"node": list[0], "nodes": list, "done": cmd.Name()}, func(w io.Writer) {
				row(w, append([]any{cmd.Name()}, append(anys(list), "done")...)...)
			})
		},
	}
}

func anys(list []string) []any {
	out := make([]any, len(list))
	for i, s := range list {
		out[i] = s
	}
	return out
}

func (a *app) clusterJoin() *cobra.Command {
	var voter bool
	var wait time.Duration
	c := a.memberVerb("join NODE", "Take a running node in, as a nonvoter",
		"Takes a node in that runs with this cluster's seeds. It gets state and log, and no vote. With --voter it gets its vote as soon as it\n"+
			"holds every needed payload; a node that is a member already is only waited for.",
		1, func(ctx context.Context, c *client.Client, ids []string) error {
			if !voter {
				return c.SetMember(ctx, ids[0], "nonvoter")
			}
			return a.makeVoter(ctx, c, ids[0], wait)
		})
	c.Flags().BoolVar(&voter, "voter", false, "wait until it has caught up, and give it its vote")
	c.Flags().DurationVar(&wait, "wait", 10*time.Minute, "with --voter: for how long at most")
	return c
}

func (a *app) clusterPromote() *cobra.Command {
	var wait time.Duration
	c := a.memberVerb("promote NODE", "Give a nonvoter that has caught up its vote",
		"Refused until the node holds every needed payload and is close to the leader. --wait asks again until then.",
		1, func(ctx context.Context, c *client.Client, ids []string) error {
			return a.promote(ctx, c, ids[0], wait)
		})
	c.Flags().DurationVar(&wait, "wait", 0, "how long to wait until it has caught up")
	return c
}

func memberFlags(c *cobra.Command, o *client.MemberOptions) *cobra.Command {
	c.Flags().BoolVar(&o.Force, "force", false, "although no voter is left to spare; it is in the audit trail")
	c.Flags().StringVar(&o.Reason, "reason", "", "for the audit trail")
	return c
}

func (a *app) clusterDemote() *cobra.Command {
	var o client.MemberOptions
	return memberFlags(a.memberVerb("demote NODE", "Take a member's vote",
		"A leader hands over first. Refused when nothing could be committed afterwards, and without --force when no voter would be left to spare.",
		1, func(ctx context.Context, c *client.Client, ids []string) error { return c.DemoteMember(ctx, ids[0], o) }), &o)
}

func (a *app) clusterRemove() *cobra.Command {
	var o client.MemberOptions
	return memberFlags(a.memberVerb("remove NODE", "Take a node out, also a dead one, also the leader",
		"A leader hands over first. The node drains and exits 15 when it learns of it; join takes it in again, unless its directory was lost:\n"+
			"then it needs a new id. Refused when nothing could be committed afterwards, and without --force when no voter would be left to spare.",
		1, func(ctx context.Context, c *client.Client, ids []string) error { return c.RemoveMember(ctx, ids[0], o) }), &o)
}

func (a *app) clusterReplace() *cobra.Command {
	var o client.MemberOptions
	var wait time.Duration
	c := memberFlags(a.memberVerb("replace OLD NEW", "Put a running new node in the place of one, which may be dead",
		"Joins NEW, waits until it holds every needed payload, gives it its vote, then removes OLD. Repeated after it was interrupted it goes on.",
		2, func(ctx context.Context, c *client.Client, ids []string) error {
			if err := a.makeVoter(ctx, c, ids[1], wait); err != nil {
				return err
			}
			s, err := c.Cluster(ctx)
			if err != nil {
				return err
			}
			if memberOf(s, ids[0]) == nil {
				return nil // an earlier run removed it
			}
			return patiently(ctx, func() error { return c.RemoveMember(ctx, ids[0], o) })
		}), &o)
	c.Flags().DurationVar(&wait, "wait", 10*time.Minute, "how long NEW may take to catch up")
	return c
}

func memberOf(s client.Cluster, id string) *client.Member {
	for _, m := range s.Members {
		if m.ID == id {
			return &m
		}
	}
	return nil
}

// makeVoter joins a node unless it is a member, and promotes it once it has caught up.
func (a *app) makeVoter(ctx context.Context, c *client.Client, id string, wait time.Duration) error {
	s, err := c.Cluster(ctx)
	if err != nil {
		return err
	}
	m := memberOf(s, id)
	if m == nil {
		if err := patiently(ctx, func() error { return c.SetMember(ctx, id, "nonvoter") }); err != nil {
			return err
		}
		a.talk("%s is a member without a vote; it gets state and log", id)
	} else if m.Suffrage == "voter" {
		return nil
	}
	return a.promote(ctx, c, id, wait)
}

// promote asks until the node may have its vote: the refusal says what is missing.
func (a *app) promote(ctx context.Context, c *client.Client, id string, wait time.Duration) error {
	deadline, said := time.Now().Add(wait), ""
	for {
		err := c.SetMember(ctx, id, "voter")
		var p *client.Problem
		if err == nil || !errors.As(err, &p) || p.Kind() != "conflict" && !client.Retryable(err) || time.Now().After(deadline) {
			return err
		}
		if s, err := c.Cluster(ctx); err == nil {
			if m := memberOf(s, id); m != nil && m.Suffrage == "voter" {
				return nil // an earlier request, whose answer was lost
			}
		}
		if p.Detail != said {
			said = p.Detail
			a.talk("waiting: %s", said)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return fmt.Errorf("%w (last: %w)", ctx.Err(), err)
		}
	}
}

func (a *app) clusterTransfer() *cobra.Command {
	return &cobra.Command{
		Use: "transfer [NODE]", Short: "Hand leadership to a node, or to the best one", Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, list []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			to := ""
			if len(list) == 1 {
				to = list[0]
			}
			if err := c.Transfer(cmd.Context(), to); err != nil {
				return err
			}
			return a.print(map[string]string{"done": "transfer", "to": to}, func(w io.Writer) { row(w, "transfer", "done") })
		},
	}
}
