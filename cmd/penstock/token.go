package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"penstock/node/access"
)

// token is what the verbs show to the nodes: $PENSTOCK_TOKEN, else what --token-file holds, else none. It is no flag: every user of a
// machine sees the flags of every process.
func (a *app) token() (string, error) {
	if t := a.getenv("PENSTOCK_TOKEN"); t != "" {
		return t, nil
	}
	if a.tokenFile == "" {
		return "", nil
	}
	b, err := os.ReadFile(a.tokenFile)
	if err != nil {
		return "", usageError{fmt.Errorf("--token-file: %w", err)}
	}
	t := strings.TrimSpace(string(b))
	if strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' }) || t == "" {
		return "", usageError{fmt.Errorf("--token-file %s: want one token", a.tokenFile)}
	}
	return t, nil
}

func (a *app) tokenCommand() *cobra.Command {
	c := group(&cobra.Command{Use: "token", Short: "Make a token, or the hash of one, for a node's file of tokens"})
	c.AddCommand(a.tokenNew(), a.tokenHash())
	return c
}

func (a *app) tokenNew() *cobra.Command {
	var e access.Entry
	var write string
	c := &cobra.Command{
		Use:   "new NAME --allow ROLE[:CHANNEL]...",
		Short: "Make a token, and the entry for the file that auth.tokens names",
		Long: "Makes a random token. The entry, with its hash, goes under tokens: in the file that auth.tokens names, on every node; the token\n" +
			"goes to whoever is to use it, and is kept nowhere else. Roles: producer:CHANNEL, consumer:CHANNEL (a * at the end stands for any\n" +
			"rest), viewer, operator, admin. A deny wins over every allow.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, list []string) error {
			e.Name = list[0]
			token := access.NewToken()
			hash, err := access.Hash(token)
			if err != nil {
				return err
			}
			e.Hash = hash
			text, err := yaml.MarshalWithOptions(map[string]any{"tokens": []access.Entry{e}}, yaml.IndentSequence(true))
			if err != nil {
				return err
			}
			if _, err := access.ParseTable(text); err != nil {
				return usageError{err}
			}
			if write != "" {
				if err := writeSecret(write, token); err != nil {
					return err
				}
				token = ""
			}
			return a.printToken(token, e, string(text))
		},
	}
	c.Flags().StringArrayVar(&e.Allow, "allow", nil, "a role, as producer:orders or viewer; may be repeated")
	c.Flags().StringArrayVar(&e.Deny, "deny", nil, "a role it shall not hold, whatever is allowed; may be repeated")
	c.Flags().StringVar(&write, "write", "", "write the token into this new file, for its owner alone, instead of showing it")
	return c
}

func (a *app) printToken(token string, e access.Entry, text string) error {
	v := map[string]any{"name": e.Name, "hash": e.Hash, "allow": e.Allow, "deny": append([]string{}, e.Deny...)}
	if token != "" {
		v["token"] = token
	}
	return a.print(v, func(w io.Writer) {
		if token != "" {
			fmt.Fprintf(w, "# The token. It is shown this once and kept nowhere.\n%s\n\n", token)
		}
		fmt.Fprintf(w, "# For the file that auth.tokens names, on every node.\n%s", text)
	})
}

// writeSecret makes a file that only its owner reads, and never writes over one.
func writeSecret(path, secret string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("--write: %w", err)
	}
	_, err = io.WriteString(f, secret+"\n")
	return errors.Join(err, f.Close())
}

func (a *app) tokenHash() *cobra.Command {
	return &cobra.Command{
		Use: "hash", Short: "Print the hash of the token on standard input", Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			b, err := io.ReadAll(io.LimitReader(a.stdin, 4096))
			if err != nil {
				return fmt.Errorf("read token: %w", err)
			}
			hash, err := access.Hash(strings.TrimRight(string(b), "\r\n"))
			if err != nil {
				return usageError{err}
			}
			return a.print(map[string]string{"hash": hash}, func(w io.Writer) { fmt.Fprintln(w, hash) })
		},
	}
}
