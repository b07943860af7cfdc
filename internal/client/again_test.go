package client

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// settled are the changes that say what shall be.
var settled = map[string]func(*Client) error{
	"PutChannel": func(c *Client) error {
		_, err := c.PutChannel(ctx, "c", json.RawMessage(`{"name":"c"}`), PutOptions{})
		return err
	},
	"DeleteChannel": func(c *Client) error { return c.DeleteChannel(ctx, "c", PutOptions{}) },
	"SetMember":     func(c *Client) error { return c.SetMember(ctx, "n4", "nonvoter") },
}

// noOutcome are ways in which a node leaves it open whether a change was made.
var noOutcome = map[string]http.HandlerFunc{
	"connection lost": cut,
	"504":             func(w http.ResponseWriter, _ *http.Request) { problem(w, 504, "unknown-outcome", "x") },
	"a proxy's 502":   func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "bad gateway", http.StatusBadGateway) },
	"answer cut": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte(`{"name":`))
	},
}

func TestAChangeThatMayBeMadeAgainIsMadeAtTheNextNode(t *testing.T) {
	ok := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"name":"c","index":4,"version":2}`) })
	for what, change := range settled {
		for how, h := range noOutcome {
			t.Run(what+" "+how, func(t *testing.T) {
				bad, before := serve(t, h), ok.hits.Load()
				require.NoError(t, change(connect(t, bad.URL, ok.URL)))
				require.EqualValues(t, 1, bad.hits.Load())
				require.Equal(t, before+1, ok.hits.Load())
			})
		}
	}
}

func TestAnUnknownOutcomeStaysUnknownWhateverALaterNodeRefuses(t *testing.T) {
	lost := serve(t, cut)
	electing := serve(t, func(w http.ResponseWriter, _ *http.Request) { problem(w, 503, "no-leader", "electing") })
	refuses := serve(t, func(w http.ResponseWriter, _ *http.Request) { problem(w, 409, "conflict", "no") })
	for what, change := range settled {
		for _, nodes := range [][]string{
			{lost.URL, refuses.URL}, {lost.URL, electing.URL}, {electing.URL, lost.URL}, {lost.URL, dead(t)}, {dead(t), lost.URL},
		} {
			err := change(connect(t, nodes...))
			require.True(t, Unknown(err), "%s: %v", what, err)
			require.True(t, Retryable(err), "%s: %v", what, err)
		}
		err := change(connect(t, refuses.URL, lost.URL))
		require.False(t, Unknown(err), "a refusal is final: %s: %v", what, err)
	}
}

func TestAChannelThatIsGoneAfterAnUnknownOutcomeIsDeleted(t *testing.T) {
	none := serve(t, func(w http.ResponseWriter, _ *http.Request) { problem(w, 404, "no-such-channel", "none") })
	lost := serve(t, cut)
	require.NoError(t, connect(t, lost.URL, none.URL).DeleteChannel(ctx, "c", PutOptions{}))
	require.True(t, NotFound(connect(t, none.URL).DeleteChannel(ctx, "c", PutOptions{})), "with nothing sent before it is an error")
}
