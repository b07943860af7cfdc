package destination

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/jepsen/history"
)

func TestEachAttemptIsLoggedBeforeItsAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.jsonl")
	s, err := New(path, nil)
	require.NoError(t, err)
	server := httptest.NewServer(s)
	defer server.Close()

	require.Equal(t, 200, post(server.URL, "hook", "1"))
	attempts, err := history.Read[Attempt](path)
	require.NoError(t, err)
	require.Len(t, attempts, 1)
	require.Equal(t, []string{"/s 1"}, attempts[0].Events)
	require.True(t, attempts[0].Kept)

	for mode, want := range map[Mode]struct {
		status int
		kept   bool
	}{Refuse: {503, false}, Permanent: {400, false}, Throttle: {429, false}, Reset: {0, false}, Ambiguous: {0, true}} {
		resp, err := http.Get(server.URL + "/control?mode=" + string(mode))
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, want.status, post(server.URL, "hook", string(mode)))
		attempts, err = history.Read[Attempt](path)
		require.NoError(t, err)
		require.Equal(t, want.kept, attempts[len(attempts)-1].Kept, mode)
	}
}

func TestConcurrentAppendsAllStandInTheLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.jsonl")
	s, err := New(path, nil)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { require.NoError(t, s.log.append(Attempt{Emitter: "x"})) })
	}
	wg.Wait()
	require.NoError(t, s.Close())
	attempts, err := history.Read[Attempt](path)
	require.NoError(t, err)
	require.Len(t, attempts, 50)
}

func TestABatchNamesItsEventsInOrder(t *testing.T) {
	h := http.Header{"Content-Type": {"application/cloudevents-batch+json; charset=UTF-8"}}
	ids, _, err := eventsOf(h, []byte(`[{"id":"2","source":"/a","data":1},{"id":"1","source":"/a"}]`))
	require.NoError(t, err)
	require.Equal(t, []string{"/a 2", "/a 1"}, ids)
}

func post(base, emitter, id string) int {
	req, _ := http.NewRequest("POST", base+"/d/"+emitter, strings.NewReader("{}"))
	req.Header.Set("Ce-Id", id)
	req.Header.Set("Ce-Source", "/s")
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}
