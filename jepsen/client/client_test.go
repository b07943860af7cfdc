package client

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOnlyAWholeGoodAnswerIsDone(t *testing.T) {
	cases := map[string]struct {
		handler func(http.ResponseWriter)
		want    Outcome
		problem string
	}{
		"200": {func(w http.ResponseWriter) { w.Write([]byte(`{}`)) }, Done, ""},
		"cut": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			w.Write([]byte(`{`))
			panic(http.ErrAbortHandler)
		}, Unknown, ""},
		"reset":        {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, Unknown, ""},
		"no leader":    {problem(503, "no-leader"), NotDone, "no-leader"},
		"overloaded":   {problem(429, "overloaded"), NotDone, "overloaded"},
		"unknown":      {problem(504, "unknown-outcome"), Unknown, "unknown-outcome"},
		"bare 503":     {func(w http.ResponseWriter) { w.WriteHeader(503) }, Unknown, ""},
		"500":          {problem(500, "internal"), Unknown, "internal"},
		"storage full": {problem(507, "storage-full"), NotDone, "storage-full"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { c.handler(w) }))
			defer server.Close()
			a := New("n1", server.URL, time.Second).Do(context.Background(), "POST", "/x", nil, "", nil)
			require.Equal(t, c.want, a.Outcome)
			require.Equal(t, c.problem, a.Problem)
		})
	}
}

func TestARefusedConnectionHasCertainlyDoneNothing(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	a := New("n1", server.URL, time.Second).Do(context.Background(), "POST", "/x", nil, "", nil)
	require.Equal(t, NotDone, a.Outcome)
}

func problem(status int, kind string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		w.Write([]byte(`{"type":"urn:penstock:problem:` + kind + `"}`))
	}
}
