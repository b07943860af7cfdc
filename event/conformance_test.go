package event

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// scenario is one example of a scenario outline of http-protocol-binding.feature.
type scenario struct {
	name       string
	request    string
	attributes map[string]string
	data       string
}

// readFeature reads the part of Gherkin that the file uses: Scenario Outline, Given with a doc string, a table of
// attributes, a doc string of data, and Examples with one column.
func readFeature(t *testing.T, path string) []scenario {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	var out []scenario
	var name, request, data, column string
	var doc *string // where the next doc string goes
	inDoc := false
	attributes := map[string]string{}
	inExamples := false
	indent := 0
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		raw := lines.Text()
		line := strings.TrimSpace(raw)
		switch {
		case line == `"""`:
			indent, inDoc = len(raw)-len(strings.TrimLeft(raw, " ")), !inDoc
		case inDoc:
			*doc += strings.TrimPrefix(raw, strings.Repeat(" ", indent)) + "\n"
		case strings.HasPrefix(line, "Scenario Outline:"):
			name, request, data, attributes, inExamples = strings.TrimPrefix(line, "Scenario Outline: "), "", "", map[string]string{}, false
		case strings.HasPrefix(line, "Given an HTTP request"):
			doc = &request
		case strings.HasPrefix(line, "And the data is equal to the following JSON"):
			doc = &data
		case line == "Examples:":
			inExamples, column = true, ""
		case strings.HasPrefix(line, "|"):
			cells := strings.Split(strings.Trim(line, "| "), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			switch {
			case inExamples && column == "":
				column = cells[0]
			case inExamples:
				fill := func(s string) string { return strings.ReplaceAll(s, "<"+column+">", cells[0]) }
				s := scenario{name: fill(name), request: fill(request), data: data, attributes: map[string]string{}}
				for k, v := range attributes {
					s.attributes[k] = fill(v)
				}
				out = append(out, s)
			case cells[0] != "key":
				attributes[cells[0]] = cells[1]
			}
		}
	}
	require.NoError(t, lines.Err())
	return out
}

// The HTTP scenarios of the CloudEvents conformance suite, read from its file.
func TestCloudEventsConformance(t *testing.T) {
	scenarios := readFeature(t, filepath.Join(corpus(t, "cloudevents-conformance"), "http-protocol-binding.feature"))
	require.Len(t, scenarios, 4, "binary and structured, two content types each")
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			head, body, ok := strings.Cut(s.request, "\n\n")
			require.True(t, ok)
			// The length in the file counts other line ends than ours; the transport checks it before we see the body.
			var kept []string
			for _, line := range strings.Split(head, "\n") {
				if !strings.HasPrefix(line, "Content-Length") {
					kept = append(kept, line)
				}
			}
			r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(strings.Join(kept, "\r\n") + "\r\n\r\n")))
			require.NoError(t, err)
			events, err := ParseHTTP(r.Header, io.NopCloser(strings.NewReader(body)), Limits{}, Defaults{}, nil)
			require.NoError(t, err)
			require.Len(t, events, 1)
			e := events[0]
			require.Equal(t, s.attributes, map[string]string{
				"id": e.ID, "specversion": "1.0", "type": e.Type, "source": e.Source, "time": e.Time, "datacontenttype": e.DataContentType,
			})
			require.Equal(t, DataJSON, e.DataKind)
			require.JSONEq(t, s.data, string(e.Data))

			// What we write says the same again, in both modes.
			again, err := ParseHTTP(e.BinaryHeaders(), bytes.NewReader(e.Data), Limits{}, Defaults{}, nil)
			require.NoError(t, err)
			require.Equal(t, events, again)
			back, err := ParseStructured(e.AppendStructured(nil))
			require.NoError(t, err)
			require.JSONEq(t, string(e.Data), string(back.Data))
		})
	}
}

// Real payloads come out of each mode as they went in.
func TestGitHubPayloadsSurviveEachMode(t *testing.T) {
	payloads := files(t, corpus(t, "github-webhooks"), "*.json")
	require.Len(t, payloads, 180)
	var all []Event
	for name, b := range payloads {
		events, err := parse(t, header("Content-Type", "application/json"), b)
		require.NoError(t, err, name)
		require.Equal(t, string(b), string(events[0].Data), name)
		line := events[0].AppendStructured(nil)
		require.NotContains(t, string(line), "\n", name)
		back, err := ParseStructured(line)
		require.NoError(t, err, name)
		require.Equal(t, compact(t, b), compact(t, back.Data), name)
		all = append(all, events...)
	}
	encoded, err := EncodeBatch(nil, BatchHeader{ChannelIndex: 3}, HashKey{}, all, nil)
	require.NoError(t, err)
	require.Less(t, len(encoded), 1<<20, "compressed")
	b, err := DecodeBatch(encoded)
	require.NoError(t, err)
	back, err := b.Events()
	require.NoError(t, err)
	require.Equal(t, all, back)
}

func compact(t *testing.T, b []byte) string {
	var out bytes.Buffer
	require.NoError(t, json.Compact(&out, b))
	return out.String()
}
