package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/node/access"
)

func TestATokenIsMadeWithItsEntryAndKeptNowhere(t *testing.T) {
	code, out, errs := cli(t, nil, "", "token", "new", "shop", "--allow", "producer:orders", "--allow", "viewer", "--deny", "producer:secret", "-o", "json")
	require.Zero(t, code, errs)
	var made struct{ Name, Token, Hash string }
	require.NoError(t, json.Unmarshal([]byte(out), &made))
	want, err := access.Hash(made.Token)
	require.NoError(t, err)
	require.Equal(t, want, made.Hash)

	code, out, _ = cli(t, nil, made.Token+"\n", "token", "hash")
	require.Zero(t, code)
	require.Equal(t, want+"\n", out)

	// What it prints is what a node takes.
	file := filepath.Join(t.TempDir(), "shop.token")
	code, out, errs = cli(t, nil, "", "token", "new", "shop", "--allow", "producer:*", "--write", file)
	require.Zero(t, code, errs)
	table, err := access.ParseTable([]byte(out))
	require.NoError(t, err, out)
	require.NotNil(t, table)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NotContains(t, out, strings.TrimSpace(string(b)))
	code, _, _ = cli(t, nil, "", "token", "new", "shop", "--allow", "producer:*", "--write", file)
	require.NotZero(t, code, "a token is never written over")

	for _, bad := range [][]string{{"new", "shop"}, {"new", "a b", "--allow", "viewer"}, {"new", "x", "--allow", "king"}, {"new", "x", "--allow", "producer"}} {
		code, _, errs = cli(t, nil, "", append([]string{"token"}, bad...)...)
		require.Equal(t, exitUsage, code, "%v: %s", bad, errs)
	}
	code, _, errs = cli(t, nil, "short", "token", "hash")
	require.Equal(t, exitUsage, code)
	require.NotContains(t, errs, "short\n")
}

func TestTheTokenIsShownToTheNode(t *testing.T) {
	f := newFake(t, map[string]string{"GET /v1/channels": `{"channels":[]}`})
	var shown []string
	handler := f.Config.Handler
	f.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown = append(shown, r.Header.Get("Authorization"))
		handler.ServeHTTP(w, r)
	})
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("from-a-file\n"), 0o600))
	run := func(environ []string, args ...string) int {
		var out, errs strings.Builder
		a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, environ: append(environ, "PENSTOCK_ADDR="+f.URL)}
		return a.run(t.Context(), append([]string{"channel", "list"}, args...))
	}
	require.Zero(t, run(nil))
	require.Zero(t, run(nil, "--token-file", file))
	require.Zero(t, run([]string{"PENSTOCK_TOKEN_FILE=" + file}))
	require.Zero(t, run([]string{"PENSTOCK_TOKEN=from-the-environment"}, "--token-file", file))
	require.Equal(t, []string{"", "Bearer from-a-file", "Bearer from-a-file", "Bearer from-the-environment"}, shown)
	require.Equal(t, exitUsage, run(nil, "--token-file", file+".none"))
	require.NoError(t, os.WriteFile(file, []byte("two tokens\n"), 0o600))
	require.Equal(t, exitUsage, run(nil, "--token-file", file))
}

func TestTheServiceManagerIsTold(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	require.NoError(t, err)
	defer l.Close()
	n := notifier{socket: socket}
	n.ready()
	n.reloading()
	n.stopping()
	notifier{}.ready() // nobody is there to be told
	var got []string
	b := make([]byte, 256)
	require.NoError(t, l.SetReadDeadline(time.Now().Add(10*time.Second)))
	for range 3 {
		k, err := l.Read(b)
		require.NoError(t, err)
		got = append(got, string(b[:k]))
	}
	require.Equal(t, "READY=1", got[0])
	require.True(t, strings.HasPrefix(got[1], "RELOADING=1\nMONOTONIC_USEC="), got[1])
	require.Equal(t, "STOPPING=1", got[2])
}
