package e2e

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/event"
	"penstock/internal/client"
)

// TestCloudEventsHTTPScenarios sends each request of the published HTTP scenarios to a node and reads the event back.
func TestCloudEventsHTTPScenarios(t *testing.T) {
	t.Parallel()
	dir := corpus(t, "cloudevents-conformance")
	feature, err := os.ReadFile(filepath.Join(dir, "http-protocol-binding.feature"))
	require.NoError(t, err)
	g := startGroup(t, options{nodes: 1, single: true})
	ran := 0
	for _, s := range scenariosOf(string(feature)) {
		for _, contentType := range s.examples {
			ran++
			name := "ce" + string(rune('a'+ran))
			_, err := g.client().PutChannel(context.Background(), name, channelSpec(name, ""), client.PutOptions{})
			require.NoError(t, err)
			fill := func(v string) string { return strings.ReplaceAll(v, "<contentType>", contentType) }
			raw := strings.ReplaceAll(fill(s.request), "\n", "\r\n")
			req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
			require.NoError(t, err)
			// The scenario's Content-Length counts another white space than its text has: the body is what follows the head.
			_, body, _ := strings.Cut(fill(s.request), "\n\n")
			out, err := http.NewRequest("POST", "http://"+g.nodes[0].http+"/v1/channels/"+name+"/events", strings.NewReader(body))
			require.NoError(t, err)
			out.Header = req.Header
			resp, err := http.DefaultClient.Do(out)
			require.NoError(t, err)
			answer, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			require.Equal(t, 200, resp.StatusCode, "%s: %s", s.name, answer)
			got := tailAll(t, g.nodes[0], name)
			require.Len(t, got, 1)
			e, err := event.ParseStructured([]byte(got[0].raw))
			require.NoError(t, err)
			for key, want := range s.attributes {
				require.Equal(t, fill(want), attribute(e, key), "%s: %s", s.name, key)
			}
			require.JSONEq(t, s.data, string(e.Data), s.name)
		}
	}
	require.GreaterOrEqual(t, ran, 4, "the scenarios were read")
}

func attribute(e event.Event, key string) string {
	switch key {
	case "id":
		return e.ID
	case "source":
		return e.Source
	case "type":
		return e.Type
	case "time":
		return e.Time
	case "datacontenttype":
		return e.DataContentType
	case "specversion":
		return "1.0"
	}
	v, _ := e.Extension(key)
	return v
}

type scenario struct {
	name, request, data string
	attributes          map[string]string
	examples            []string
}

// scenariosOf reads the part of Gherkin that the file uses: two blocks in triple quotes, a table of attributes, examples.
func scenariosOf(feature string) []scenario {
	var out []scenario
	for _, part := range strings.Split(feature, "Scenario Outline:")[1:] {
		name, rest, _ := strings.Cut(part, "\n")
		blocks := strings.Split(rest, `"""`)
		s := scenario{name: strings.TrimSpace(name), request: dedent(blocks[1]), data: dedent(blocks[3]), attributes: map[string]string{}}
		for _, row := range tableRows(blocks[2]) {
			if row[0] != "key" {
				s.attributes[row[0]] = row[1]
			}
		}
		for _, row := range tableRows(blocks[4]) {
			if row[0] != "contentType" {
				s.examples = append(s.examples, row[0])
			}
		}
		out = append(out, s)
	}
	return out
}

func tableRows(text string) [][]string {
	var rows [][]string
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows
}

// dedent removes the indent of the first line from each.
func dedent(block string) string {
	lines := bytes.Split([]byte(strings.Trim(block, "\n")), []byte("\n"))
	indent := len(lines[0]) - len(bytes.TrimLeft(lines[0], " "))
	var out []string
	for _, l := range lines {
		out = append(out, string(l[min(indent, len(l)-len(bytes.TrimLeft(l, " "))):]))
	}
	return strings.TrimRight(strings.Join(out, "\n"), " \n") + "\n"
}
