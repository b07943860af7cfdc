package node

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	metrics "github.com/hashicorp/go-metrics/compat"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

// described is a metric as the document has it.
type described struct{ name, kind, labels, help string }

var descriptor = regexp.MustCompile(`fqName: "([^"]+)", help: "([^"]*)", .*variableLabels: \{([^}]*)\}`)

// metricsOf are all that an open node's registry may show, with series or without.
func metricsOf(t *testing.T) []described {
	t.Helper()
	cfg := single(t)
	n, err := open(cfg, Options{Logger: slog.New(slog.DiscardHandler), Stdout: io.Discard}.withDefaults(cfg))
	require.NoError(t, err)
	descs := make(chan *prometheus.Desc)
	go func() { n.registry.Describe(descs); close(descs) }()
	byName := map[string]described{}
	for d := range descs {
		m := descriptor.FindStringSubmatch(d.String())
		require.NotNil(t, m, d.String())
		if strings.HasPrefix(m[1], "penstock_") {
			byName[m[1]] = described{name: m[1], labels: strings.ReplaceAll(m[3], ",", ", "), help: m[2]}
		}
	}
	families, err := n.registry.Gather()
	require.NoError(t, err)
	kinds := map[string]string{}
	for _, f := range families {
		kinds[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	require.NoError(t, n.close())
	var out []described
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		m := byName[name]
		switch m.kind = kinds[name]; { // one without a series yet does not say; a real Prometheus checks it (test/e2e)
		case m.kind != "":
		case strings.HasSuffix(name, "_total"):
			m.kind = "counter"
		case strings.HasSuffix(name, "_seconds"):
			m.kind = "histogram"
		default:
			m.kind = "gauge"
		}
		out = append(out, m)
	}
	require.Greater(t, len(out), 50)
	return out
}

var updateDocument = flag.Bool("update", false, "write docs/metrics.md anew from the registry")

// The names are part of the public surface: the table of the document is made from the registry, each name whole, so that a search
// finds it.
func TestMetricsDocument(t *testing.T) {
	const path, begin, end = "../docs/metrics.md", "<!-- table -->\n", "<!-- /table -->"
	var b strings.Builder
	b.WriteString("\n| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, m := range metricsOf(t) {
		require.NotEmpty(t, m.help, m.name)
		b.WriteString(strings.ReplaceAll(fmt.Sprintf("| `%s` | %s | %s | %s |\n", m.name, m.kind, m.labels, strings.ReplaceAll(m.help, "|", "\\|")), "|  |", "| |"))
	}
	b.WriteByte('\n')
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	head, rest, ok := strings.Cut(string(text), begin)
	require.True(t, ok)
	old, foot, ok := strings.Cut(rest, end)
	require.True(t, ok)
	if *updateDocument {
		require.NoError(t, os.WriteFile(path, []byte(head+begin+b.String()+end+foot), 0o644))
		return
	}
	require.Equal(t, b.String(), old, "docs/metrics.md: go test ./node -run MetricsDocument -update")
}

// What the libraries report arrives under our names, in seconds, and what we do not know is dropped.
func TestLibrariesAreBridged(t *testing.T) {
	b, err := processBridge()
	require.NoError(t, err)
	value := func(c prometheus.Metric) *dto.Metric {
		var m dto.Metric
		require.NoError(t, c.Write(&m))
		return &m
	}
	commits, wins := b.seconds["raft.commitTime"], b.counts["raft.state.leader"]
	before, won := value(commits).GetHistogram().GetSampleSum(), value(wins).GetCounter().GetValue()
	metrics.AddSample([]string{"raft", "commitTime"}, 1500)
	metrics.IncrCounter([]string{"raft", "state", "leader"}, 1)
	metrics.IncrCounterWithLabels([]string{"raft", "unknown"}, 1, []metrics.Label{{Name: "peer_id", Value: "x"}})
	metrics.SetGauge([]string{"memberlist", "health", "score"}, 3)
	require.GreaterOrEqual(t, value(commits).GetHistogram().GetSampleSum()-before, 1.5)
	require.GreaterOrEqual(t, value(wins).GetCounter().GetValue()-won, 1.0)
}
