package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	"penstock/node"
	"penstock/node/config"
)

func (a *app) clusterRecover() *cobra.Command {
	var file, reason string
	var yes bool
	c := &cobra.Command{
		Use:   "recover --config FILE",
		Short: "Offline, when a majority is lost for good: make this node the only voter, with all it has",
		Long: "Works on the data directory of a node that does not run. Without --yes it only says what it would do and what may be lost.\n" +
			"Use it when a majority of the voters' disks is gone for good, on the survivor whose log goes furthest (compare LAST of each).\n" +
			"The cluster gets a new id: nodes of before are refused and come back empty, under new ids, by join. Afterwards set cluster.seeds\n" +
			"to this node (and the new ones), start it, and join the others.",
		Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			cfg, err := config.Load(file, a.environ, nil)
			if err != nil {
				return err
			}
			logger := slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
			report, err := node.Recover(cfg, node.RecoverOptions{Do: yes, Actor: localActor(), Reason: reason, Logger: logger})
			if err != nil {
				return err
			}
			if err := a.print(report, func(w io.Writer) { printRecovery(w, report) }); err != nil {
				return err
			}
			if !yes {
				return errors.New("nothing was changed: --yes does it")
			}
			return nil
		},
	}
	c.Flags().StringVar(&file, "config", a.getenv("PENSTOCK_CONFIG"), "YAML file of the node (or $PENSTOCK_CONFIG)")
	c.Flags().BoolVar(&yes, "yes", false, "do it")
	c.Flags().StringVar(&reason, "reason", "", "for the report and the audit trail")
	return c
}

// localActor is who does something on this machine without a cluster to ask.
func localActor() string {
	name := "uid " + fmt.Sprint(os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, _ := os.Hostname()
	return name + "@" + host + " (offline)"
}

func printRecovery(w io.Writer, r *node.RecoverReport) {
	row(w, "node:", fmt.Sprintf("%s of cluster %s %s", r.Node, r.Cluster, r.OldClusterID))
	row(w, "log LAST:", fmt.Sprintf("%d (from %d, term %d)", r.LastIndex, r.FirstIndex, r.Term))
	row(w, "state:", fmt.Sprintf("%d, needed from %d on", r.State, r.Floor))
	row(w, "voters:", strings.Join(r.Voters, ", ")+" -> "+r.Node+" alone")
	for _, p := range r.Others {
		row(w, "node "+p.ID+":", fmt.Sprintf("its log ended at %d when this one last heard of it", p.LastIndex))
	}
	for _, line := range r.MayLose {
		row(w, "may be lost:", line)
	}
	if r.NewClusterID != "" {
		row(w, "done:", "the cluster is now "+r.NewClusterID)
		row(w, "report:", r.Path)
	}
}
