package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"penstock/internal/client"
)

func (a *app) clusterCommand() *cobra.Command {
	c := group(&cobra.Command{Use: "cluster", Short: "Look at the cluster and change its members"})
	c.AddCommand(a.clusterStatus(), a.clusterMembers(),
		a.clusterJoin(), a.clusterPromote(), a.clusterDemote(), a.clusterRemove(), a.clusterReplace(), a.clusterTransfer(), a.clusterRecover())
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
				if len(s.Known) == 0 {
					return
				}
				row(w)
				row(w, "NO MEMBER", "HEALTH", "HTTP", "RAFT", "VERSION", "ZONE", "WAS MEMBER")
				for _, o := range s.Known {
					row(w, o.ID, o.Health, o.HTTP, o.Raft, o.Version, o.Zone, yesNo(o.WasMember))
				}
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
	row(w, "NODE", "SUFFRAGE", "LEADER", "HEALTH", "HTTP", "RAFT", "LAST", "APPLIED", "LAG", "INCARNATION", "VERSION", "ZONE")
	for _, m := range members {
		row(w, m.ID, m.Suffrage, yesNo(m.Leader), m.Health, m.HTTP, m.Raft, m.LastIndex, m.AppliedIndex, m.Lag, m.Incarnation, m.Version, m.Zone)
	}
}
