package node

import (
	"io"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

var fqName = regexp.MustCompile(`fqName: "([^"]+)"`)

// metricNames are the names of all that an open node's registry may show, with series or without.
func metricNames(t *testing.T) []string {
	t.Helper()
	cfg := single(t)
	n, err := open(cfg, Options{Logger: slog.New(slog.DiscardHandler), Stdout: io.Discard}.withDefaults(cfg))
	require.NoError(t, err)
	descs := make(chan *prometheus.Desc)
	go func() { n.registry.Describe(descs); close(descs) }()
	names := map[string]bool{}
	for d := range descs {
		m := fqName.FindStringSubmatch(d.String())
		require.NotNil(t, m, d.String())
		if strings.HasPrefix(m[1], "penstock_") {
			names[m[1]] = true
		}
	}
	require.NoError(t, n.close())
	require.Greater(t, len(names), 50)
	return slices.Sorted(maps.Keys(names))
}

// The names are part of the public surface: each stands in the document whole, so that a search finds it, and none stands
// there that no node shows.
func TestEveryMetricStandsInTheDocument(t *testing.T) {
	b, err := os.ReadFile("../docs/metrics.md")
	require.NoError(t, err)
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("`(penstock_[a-z_]+)`").FindAllStringSubmatch(string(b), -1) {
		documented[m[1]] = true
	}
	require.Equal(t, metricNames(t), slices.Sorted(maps.Keys(documented)))
}
