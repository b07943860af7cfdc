// Package rules_test holds the alert rules of deploy/prometheus to what the code exports, to their runbook and to their tests. It
// runs promtool where there is one: on the path, in PROMTOOL, or in bin (make bin/promtool).
package rules_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root  = "../.."
	rules = root + "/deploy/prometheus"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
}

func alerts(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, m := range regexp.MustCompile(`(?m)- alert: (\w+)`).FindAllStringSubmatch(read(t, rules+"/alerts.yml"), -1) {
		names = append(names, m[1])
	}
	require.NotEmpty(t, names)
	return names
}

func TestRulesPassPromtool(t *testing.T) {
	tool := os.Getenv("PROMTOOL")
	if tool == "" {
		tool, _ = exec.LookPath("promtool")
	}
	if local, _ := filepath.Abs(root + "/bin/promtool"); tool == "" {
		if _, err := os.Stat(local); err == nil {
			tool = local
		}
	}
	if tool == "" {
		t.Skip("no promtool; make test gets it")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		cmd := exec.Command(tool, args...)
		cmd.Dir = rules
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

func TestEachAlertHasATestARunbookEntryAndARealMetric(t *testing.T) {
	tests, runbook, text := read(t, rules+"/alerts_test.yml"), read(t, root+"/docs/operations.md"), read(t, rules+"/alerts.yml")
	for _, name := range alerts(t) {
		require.True(t, strings.Contains(tests, name+" fires"), name)
		require.True(t, strings.Contains(tests, name+" is quiet"), name)
		require.True(t, strings.Contains(runbook, "### "+name+"\n"), "no runbook entry of %s", name)
		require.True(t, strings.Contains(text, "docs/operations.md#"+strings.ToLower(name)), name)
	}
	// The document is made from the registry of a node (TestMetricsDocument).
	documented := read(t, root+"/docs/metrics.md")
	for _, metric := range regexp.MustCompile(`penstock_\w+`).FindAllString(text, -1) {
		require.Contains(t, documented, "| `"+metric+"` |", "no part exports %s", metric)
	}
}

// TestL17DeadLetterQueueWithoutDepthAlert: both queues have alerts of depth, age and rate, apart from each other (L15).
func TestL17DeadLetterQueueWithoutDepthAlert(t *testing.T) {
	for _, name := range []string{
		"PenstockDeadLetterDepth", "PenstockDeadLetterAge", "PenstockDeadLetterRate", "PenstockPoisonDepth", "PenstockPoisonAge", "PenstockPoisonRate",
	} {
		require.Contains(t, alerts(t), name)
	}
}
