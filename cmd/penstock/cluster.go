package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"penstock/internal/client"
)

func (a *app) clusterCommand() *cobra.Command {
	c := group(&cobra.Command{Use: "cluster", Short: "Look at the cluster and change its members"})
	c.AddCommand(a.clusterStatus(), a.clusterMembers(),
		a.clusterChange("join NODE", "Take a running node in, as a nonvoter", func(ctx context.Context, c *client.Client, id string) error {
			return c.SetMember(ctx, id, "nonvoter")
		}),
		a.clusterChange("promote NODE", "Make a nonvoter that has caught up a voter", func(ctx context.Context, c *client.Client, id string) error {
			return c.SetMember(ctx, id, "voter")
		}),
		a.clusterChange("remove NODE", "Take a node out; join takes it in again, unless its directory was lost: that needs a new id", func(ctx context.Context, c *client.Client, id string) error {
			return c.RemoveMember(ctx, id)
		}),
		a.clusterTransfer())
	return c
}

func (a *app) clusterStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show one node's view of the cluster", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			s, err := c.Cluster(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(s, func(w io.Writer) {
				row(w, "cluster:", s.Cluster+" "+s.ClusterID)
				row(w, "node:", s.NodeID+" ("+s.State+")")
				if s.WaitingFor != "" {
					row(w, "waiting for:", s.WaitingFor)
				}
				row(w, "leader:", fmt.Sprintf("%s, term %d", s.Leader, s.Term))
				row(w, "log:", fmt.Sprintf("%d to %d, committed %d, applied %d, floor %d", s.FirstIndex, s.LastIndex, s.CommitIndex, s.AppliedIndex, s.Floor))
				row(w, "state hash:", fmt.Sprintf("%s at %d", s.StateHash.Hash, s.StateHash.Index))
				row(w)
				printMembers(w, s.Members)
			})
		},
	}
}

func (a *app) clusterMembers() *cobra.Command {
	return &cobra.Command{
		Use: "members", Short: "List the members", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			s, err := c.Cluster(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(map[string]any{"members": s.Members}, func(w io.Writer) { printMembers(w, s.Members) })
		},
	}
}

func printMembers(w io.Writer, members []client.Member) {
	row(w, "NODE", "SUFFRAGE", "LEADER", "REACHABLE", "HTTP", "RAFT", "LAST", "APPLIED", "LAG", "INCARNATION")
	for _, m := range members {
		row(w, m.ID, m.Suffrage, yesNo(m.Leader), yesNo(m.Reachable), m.HTTP, m.Raft, m.LastIndex, m.AppliedIndex, m.Lag, m.Incarnation)
	}
}

func (a *app) clusterChange(use, short string, change func(ctx context.Context, c *client.Client, id string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, list []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			if err := change(cmd.Context(), c, list[0]); err != nil {
				return err
			}
			return a.print(map[string]string{"node": list[0], "done": cmd.Name()}, func(w io.Writer) { row(w, cmd.Name(), list[0], "done") })
		},
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
