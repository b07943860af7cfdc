package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"penstock/node/access"
	"penstock/node/config"
)

func (a *app) configCommand() *cobra.Command {
	c := group(&cobra.Command{Use: "config", Short: "Check a node's configuration, or print an example"})
	check := &cobra.Command{
		Use: "check FILE", Short: "Check a configuration file, with the PENSTOCK_ variables over it, and the file of tokens it names", Args: args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, list []string) error {
			cfg, err := config.Load(list[0], a.environ, nil)
			if err != nil {
				return err
			}
			if _, err := access.Open(cfg.Auth.Tokens, a.getenv); err != nil {
				return err
			}
			warnings := cfg.Warnings()
			for _, w := range warnings {
				a.talk("warning: %s", w)
			}
			return a.print(map[string]any{"ok": true, "warnings": append([]string{}, warnings...)}, func(w io.Writer) { row(w, "ok") })
		},
	}
	example := &cobra.Command{
		Use: "example", Short: "Print a commented configuration", Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			_, err := io.WriteString(a.stdout, config.Example())
			return err
		},
	}
	c.AddCommand(check, example)
	return c
}

// version is set by the linker (see Makefile).
var version = "dev"

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			revision := ""
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						revision = s.Value
					}
				}
			}
			v := map[string]string{"version": version, "revision": revision, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH}
			return a.print(v, func(w io.Writer) {
				fmt.Fprintf(w, "penstock %s (%s, %s)\n", version, v["go"], v["platform"])
			})
		},
	}
}
