package compose

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
)

// composeFile is as much of docker-compose.yml as is looked at.
type composeFile struct {
	Services map[string]struct {
		Image           string            `yaml:"image"`
		Profiles        []string          `yaml:"profiles"`
		Restart         string            `yaml:"restart"`
		StopGracePeriod string            `yaml:"stop_grace_period"`
		ReadOnly        bool              `yaml:"read_only"`
		CapDrop         []string          `yaml:"cap_drop"`
		Networks        []string          `yaml:"networks"`
		Environment     map[string]string `yaml:"environment"`
		Ports           []string          `yaml:"ports"`
		Volumes         []string          `yaml:"volumes"`
		Secrets         []string          `yaml:"secrets"`
		Healthcheck     struct {
			Test []string `yaml:"test"`
		} `yaml:"healthcheck"`
	} `yaml:"services"`
	Networks map[string]any `yaml:"networks"`
	Volumes  map[string]any `yaml:"volumes"`
}

func readYAML(t *testing.T, path string, v any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(b, v), path)
}

var nodes = []string{"n1", "n2", "n3"}

// TestComposeFileSaysWhatAnOperatorNeeds needs no engine: each node has its name, its two volumes, a port on loopback only, a
// health check by the binary, and longer to stop than its drain may take.
func TestComposeFileSaysWhatAnOperatorNeeds(t *testing.T) {
	var f composeFile
	readYAML(t, "docker-compose.yml", &f)
	var config struct {
		Drain   string
		Cluster struct{ Seeds []string }
	}
	readYAML(t, "deploy/compose/penstock.yaml", &config)
	drain, err := time.ParseDuration(config.Drain)
	require.NoError(t, err)

	mounted := map[string]string{}
	for _, name := range nodes {
		s, ok := f.Services[name]
		require.True(t, ok, name)
		require.Equal(t, name, s.Environment["PENSTOCK_NODE_ID"])
		require.Equal(t, name+":7071", s.Environment["PENSTOCK_NODE_ADVERTISE"])
		require.Contains(t, config.Cluster.Seeds, name+":7072")
		require.Empty(t, s.Profiles, "the nodes start without a profile")
		require.Equal(t, "unless-stopped", s.Restart)
		require.True(t, s.ReadOnly)
		require.Equal(t, []string{"ALL"}, s.CapDrop)
		require.Equal(t, []string{"penstock"}, s.Networks)
		require.Equal(t, []string{"tokens"}, s.Secrets)
		require.Subset(t, s.Healthcheck.Test, []string{"CMD", "/usr/local/bin/penstock", "health"}, "in exec form: there is no shell")
		grace, err := time.ParseDuration(s.StopGracePeriod)
		require.NoError(t, err)
		require.Greater(t, grace, drain, "Compose must not kill a node that drains")
		for _, dir := range []string{"/var/lib/penstock", "/var/lib/penstock-dlq"} {
			volume := volumeAt(s.Volumes, dir)
			require.Contains(t, f.Volumes, volume, "%s of %s is no named volume", dir, name)
			require.Empty(t, mounted[volume], "%s is shared with %s", volume, mounted[volume])
			mounted[volume] = name + dir
		}
	}
	for name, s := range f.Services {
		for _, p := range s.Ports {
			require.True(t, strings.HasPrefix(p, "127.0.0.1:"), "%s publishes %s beyond loopback", name, p)
		}
	}
	require.Equal(t, []string{"metrics"}, f.Services["prometheus"].Profiles, "Prometheus only starts when it is asked for")
}

func volumeAt(mounts []string, dir string) string {
	for _, m := range mounts {
		if source, target, _ := strings.Cut(m, ":"); target == dir {
			return source
		}
	}
	return ""
}

// TestTokensOfComposeAreMadeOnce: the table holds no token itself, a second run leaves the set as it is, and a failure leaves none.
func TestTokensOfComposeAreMadeOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	script := []string{filepath.Join(root, "deploy/compose/make-tokens.sh"), dir, penstock(t)}
	require.NoError(t, quiet(nil, script...))
	table, err := os.ReadFile(filepath.Join(dir, "tokens.yaml"))
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(string(table), "hash: sha256:"), "%s", table)
	for _, name := range []string{"admin", "producer", "viewer"} {
		token, err := os.ReadFile(filepath.Join(dir, name+".token"))
		require.NoError(t, err)
		require.NotContains(t, string(table), strings.TrimSpace(string(token)))
	}
	require.NoError(t, quiet(nil, script...))
	again, err := os.ReadFile(filepath.Join(dir, "tokens.yaml"))
	require.NoError(t, err)
	require.Equal(t, table, again)

	other := filepath.Join(t.TempDir(), "other")
	require.Error(t, quiet(nil, script[0], other, "/bin/false"))
	require.NoFileExists(t, filepath.Join(other, "tokens.yaml"))
}

// TestNodeConfigurationOfComposeIsAccepted asks the product itself, for each node with its environment.
func TestNodeConfigurationOfComposeIsAccepted(t *testing.T) {
	var f composeFile
	readYAML(t, "docker-compose.yml", &f)
	binary, secrets := penstock(t), filepath.Join(t.TempDir(), "secrets")
	require.NoError(t, quiet(nil, filepath.Join(root, "deploy/compose/make-tokens.sh"), secrets, binary))
	for _, name := range nodes {
		cmd := exec.Command(binary, "config", "check", filepath.Join(root, "deploy/compose/penstock.yaml"))
		cmd.Env = append(os.Environ(), "PENSTOCK_AUTH_TOKENS=${file:"+filepath.Join(secrets, "tokens.yaml")+"}") // where the host has it
		for k, v := range f.Services[name].Environment {
			if k == "PENSTOCK_NODE_ADVERTISE" {
				v = "127.0.0.1:7071" // the name resolves on the network of the project only
			}
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", name, out)
	}
}

// TestComposeAcceptsTheFile asks Compose itself, with every profile on. It needs no engine.
func TestComposeAcceptsTheFile(t *testing.T) {
	asked := 0
	for _, words := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if quiet(nil, append(words, "version")...) != nil {
			continue
		}
		asked++
		require.NoError(t, quiet(nil, append(words, "-f", filepath.Join(root, "docker-compose.yml"), "--profile", "metrics", "config", "-q")...))
	}
	if asked == 0 {
		t.Skip("LEFT OUT: no Compose here (Debian: docker-compose); the other tests have read the file")
	}
}

// TestPrometheusAcceptsItsConfiguration: the targets are the nodes, the rules are there, and promtool finds nothing wrong.
func TestPrometheusAcceptsItsConfiguration(t *testing.T) {
	var f struct {
		RuleFiles     []string `yaml:"rule_files"`
		ScrapeConfigs []struct {
			StaticConfigs []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	readYAML(t, "deploy/compose/prometheus.yml", &f)
	require.Len(t, f.RuleFiles, 1)
	require.FileExists(t, filepath.Join(root, "deploy/compose", f.RuleFiles[0]))
	require.Len(t, f.ScrapeConfigs, 1)
	for i, name := range nodes {
		require.Equal(t, fmt.Sprintf("%s:7070", name), f.ScrapeConfigs[0].StaticConfigs[0].Targets[i])
	}
	tool := os.Getenv("PROMTOOL")
	if local, _ := filepath.Abs(root + "/bin/promtool"); tool == "" {
		if _, err := os.Stat(local); err == nil {
			tool = local
		}
	}
	if tool == "" {
		t.Skip("no promtool; make test gets it")
	}
	// The rules have a test of their own, and the token is where containers have it.
	require.NoError(t, quiet(nil, tool, "check", "config", "--syntax-only", filepath.Join(root, "deploy/compose/prometheus.yml")))
}
