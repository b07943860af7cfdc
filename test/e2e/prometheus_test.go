package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/internal/client"
)

// prometheus is Debian's: on the path, in PROMETHEUS, or in bin (make bin/prometheus).
func prometheus(t *testing.T) string {
	if p := os.Getenv("PROMETHEUS"); p != "" {
		return p
	}
	if p, err := exec.LookPath("prometheus"); err == nil {
		return p
	}
	local, err := filepath.Abs("../../bin/prometheus")
	require.NoError(t, err)
	if _, err := os.Stat(local); err != nil {
		t.Skip("no prometheus; make test gets it")
	}
	return local
}

// TestAPrometheusScrapesEachDocumentedMetric: a real Prometheus, with a viewer's token, finds each metric of docs/metrics.md on a node that
// has delivered, buried and replayed, with the type that the document says.
func TestAPrometheusScrapesEachDocumentedMetric(t *testing.T) {
	t.Parallel()
	binary := prometheus(t)
	g, k := startGuarded(t, options{nodes: 1, single: true}, oneOfEach)
	p, c, ctx := g.nodes[0], g.client(), context.Background()
	refused := webhookEmitter("hook", "http://127.0.0.1:1/", `"retry":{"max_attempts":1}`)
	_, err := c.PutChannel(ctx, "orders", channelSpec("orders", "", fileEmitter("files", "out", ""), refused), client.PutOptions{})
	require.NoError(t, err)
	_, err = c.Send(ctx, "orders", batch("w", 0, 1), batchType, client.SendOptions{})
	require.NoError(t, err)
	var letters []client.DeadLetter
	eventually(t, 20*time.Second, "a dead letter", func() error {
		letters, err = c.DeadLetters(ctx, client.DeadLetterFilter{})
		if err == nil && len(letters) == 0 {
			err = fmt.Errorf("none yet")
		}
		return err
	})
	_, err = c.Replay(ctx, client.ActRequest{IDs: []string{letters[0].ID}})
	require.NoError(t, err)

	dir, addr := t.TempDir(), freeAddr(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte(k.tokens["viewer"]), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), fmt.Appendf(nil,
		"global: {scrape_interval: 1s}\nscrape_configs:\n  - job_name: penstock\n    authorization: {credentials_file: %s/token}\n    static_configs: [{targets: [%q]}]\n",
		dir, p.http), 0o600))
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	defer log.Close()
	cmd := exec.Command(binary, "--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", addr)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })

	text, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	documented := regexp.MustCompile("(?m)^\\| `(penstock_\\w+)` \\| (\\w+) \\|").FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(documented), 50)
	eventually(t, 60*time.Second, "every metric of the document is scraped with its type", func() error {
		found, err := scraped(addr)
		if err != nil {
			return err
		}
		var missing []string
		for _, m := range documented {
			if found[m[1]] != m[2] {
				missing = append(missing, fmt.Sprintf("%s is %q, documented %q", m[1], found[m[1]], m[2]))
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("%s", strings.Join(missing, "\n"))
		}
		return nil
	})
}

// scraped are the types of the metrics that a Prometheus has of its targets.
func scraped(addr string) (map[string]string, error) {
	resp, err := (&http.Client{Timeout: 10 * time.Second}).Get("http://" + addr + "/api/v1/targets/metadata?limit=10000")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Data []struct{ Metric, Type string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, m := range answer.Data {
		out[m.Metric] = m.Type
	}
	return out, nil
}
