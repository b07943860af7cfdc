package destination

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestItDoesWhatTheStepSays(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var s Server
	address, done, err := s.Listen(ctx, "127.0.0.1:0")
	require.NoError(t, err)
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	call := func(method, path, body string) (*http.Response, error) {
		req, err := http.NewRequest(method, "http://"+address+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("ce-id", "e1")
		resp, err := client.Do(req)
		if err == nil {
			require.NoError(t, resp.Body.Close())
		}
		return resp, err
	}
	resp, err := call(http.MethodPut, "/control/x", `[{"status":503,"retry_after":"date:5s","times":2},{"fault":"reset"},{"status":201}]`)
	require.NoError(t, err)
	require.Equal(t, 204, resp.StatusCode)
	for range 2 {
		resp, err = call(http.MethodPost, "/hook/x", "abc")
		require.NoError(t, err)
		require.Equal(t, 503, resp.StatusCode)
		at, err := http.ParseTime(resp.Header.Get("Retry-After"))
		require.NoError(t, err)
		require.InDelta(t, 5, time.Until(at).Seconds(), 2)
	}
	_, err = call(http.MethodPost, "/hook/x", "")
	require.Error(t, err)
	for range 2 {
		resp, err = call(http.MethodPost, "/hook/x", "")
		require.NoError(t, err)
		require.Equal(t, 201, resp.StatusCode, "the last step holds")
	}
	got := s.Received("x")
	require.Len(t, got, 5)
	require.Equal(t, "e1", got[0].ID)
	require.Equal(t, 3, got[0].Bytes)
	b, err := json.Marshal(got[0])
	require.NoError(t, err)
	require.Contains(t, string(b), `"id":"e1"`)
	resp, err = call(http.MethodPut, "/control/x", `{`)
	require.NoError(t, err)
	require.Equal(t, 400, resp.StatusCode)
	cancel()
	require.NoError(t, <-done)
}
