package main

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHealthAsksEveryAddress(t *testing.T) {
	alive := newFake(t, map[string]string{"GET /healthz": "{}", "GET /readyz": "503 not-ready x"})
	ready := newFake(t, map[string]string{"GET /healthz": "{}", "GET /readyz": "{}"})

	code, out, _ := cli(t, alive, "", "health")
	require.Equal(t, exitOK, code, out)
	code, out, _ = cli(t, alive, "", "health", "--ready")
	require.Equal(t, exitFailed, code)
	require.Contains(t, out, "told so", "the reason of the node")

	both := ready.URL + "," + alive.URL
	code, out, _ = cli(t, nil, "", "health", "--addr", both)
	require.Equal(t, exitOK, code, out)
	code, out, _ = cli(t, nil, "", "health", "--ready", "--output", "json", "--addr", both)
	require.Equal(t, exitFailed, code, "one that is ready does not stand in for the other: %s", out)
	require.Contains(t, out, `"ok": true`)
	require.Contains(t, out, `"ok": false`)

	code, _, _ = cli(t, nil, "", "health", "--addr", "127.0.0.1:1", "--timeout", "1s")
	require.Equal(t, exitFailed, code)
	code, _, _ = cli(t, nil, "", "health", "--addr", ",")
	require.Equal(t, exitUsage, code)
	code, _, _ = cli(t, nil, "", "health", "now")
	require.Equal(t, exitUsage, code)
}

func TestHealthWaitsUntilAllAreReady(t *testing.T) {
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(s.Close)
	code, out, _ := cli(t, nil, "", "health", "--ready", "--wait", "1m", "--addr", s.URL)
	require.Equal(t, exitOK, code, out)
	require.EqualValues(t, 3, asked.Load(), "it asked again until it was told yes, and no longer")

	code, _, _ = cli(t, nil, "", "health", "--ready", "--wait", "300ms", "--timeout", "1s", "--addr", "127.0.0.1:1")
	require.Equal(t, exitFailed, code, "the wait has an end")
}
