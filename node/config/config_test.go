package config

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const good = `node:
  id: n1
  data_dir: /tmp/penstock-config-test
cluster:
  seeds: ["127.0.0.1:7072", "127.0.0.1:7082", "127.0.0.1:7092"]
`

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "n.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestLoadGivesDefaults(t *testing.T) {
	c, err := Load(write(t, good), nil, nil)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:7070", c.Node.HTTP)
	require.Equal(t, "127.0.0.1:7071", c.RaftAdvertise())
	require.Equal(t, "127.0.0.1:7072", c.GossipAdvertise())
	require.Equal(t, "127.0.0.1:7070", c.HTTPAdvertise())
	require.Equal(t, 30*time.Second, c.DrainTimeout())
	require.Equal(t, 10*time.Second, c.RequestTimeout())
	require.Equal(t, "/tmp/penstock-config-test/dlq", c.DeadLetterDirectory())
	require.False(t, c.Single())
	require.Empty(t, c.Warnings())
}

func TestExampleLoads(t *testing.T) {
	c, err := Load(write(t, Example()), nil, nil)
	require.NoError(t, err)
	def := Default()
	c.origins = nil
	def.Node.ID, def.Node.DataDir, def.Cluster.Name = "n1", "/var/lib/penstock", "prod"
	def.Cluster.Seeds = []string{"127.0.0.1:7072", "127.0.0.1:7082", "127.0.0.1:7092"}
	require.Equal(t, def, c, "the example states the defaults")
}

func TestExampleNamesEveryKey(t *testing.T) {
	var c Config
	for _, key := range schemaOf(&c).order {
		name := key[strings.LastIndex(key, ".")+1:]
		require.Contains(t, Example(), name+":", key)
	}
}

func TestVariablesOverFileAndFlagsOverVariables(t *testing.T) {
	env := []string{
		"PENSTOCK_NODE_HTTP=127.0.0.1:1", "PENSTOCK_NODE_RAFT=127.0.0.1:2", "PENSTOCK_DRAIN=5s",
		"PENSTOCK_CLUSTER_SEEDS=a.example:1, b.example:2,c.example:3", "PENSTOCK_ADDR=elsewhere:1", "PENSTOCK_NODESDIR=/x", "PENSTOCK_TOKEN=x", "PENSTOCK_DEAD_LETTER_MAX_FILES=7",
		"PENSTOCK_NODE_SERVICE_HOST=10.0.0.1", "PENSTOCK_NODE_PORT_7070_TCP_ADDR=10.0.0.1", "PENSTOCK_NODE_DEBUG=", "PATH=/bin",
	}
	c, err := Load(write(t, good+"drain: 7s\n"), env, map[string]string{"node.http": "127.0.0.1:9"})
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:9", c.Node.HTTP)
	require.Equal(t, "127.0.0.1:2", c.Node.Raft)
	require.Equal(t, 5*time.Second, c.DrainTimeout())
	require.Equal(t, []string{"a.example:1", "b.example:2", "c.example:3"}, c.Cluster.Seeds)
	require.Equal(t, 7, c.DeadLetter.MaxFiles)
	require.Equal(t, "127.0.0.1:7073", c.Node.Debug, "an empty variable is no setting")

	require.Equal(t, "$PENSTOCK_NODESDIR: is no setting and means nothing", c.Warnings()[0])

	_, err = Load(write(t, good), []string{"PENSTOCK_NODE_DATADIR=/x"}, nil)
	require.ErrorContains(t, err, "$PENSTOCK_NODE_DATADIR")
	require.ErrorContains(t, err, "data_dir")
	_, err = Load(write(t, good), []string{"PENSTOCK_DRAIN=30"}, nil)
	require.ErrorContains(t, err, `$PENSTOCK_DRAIN: drain: "30"`)
	_, err = Load("", nil, map[string]string{"node.idd": "x"})
	require.ErrorContains(t, err, "node.idd")
}

// TestB49BadSettingsAreNamed: each bad setting fails at once with one line that says where, which key, the value and what is
// allowed, and nothing was created.
func TestB49BadSettingsAreNamed(t *testing.T) {
	at := func(line string) string { return strings.Replace(good, "  id: n1\n", "  id: n1\n"+line, 1) }
	in := func(section, line string) string { return good + section + ":\n  " + line + "\n" }
	timers := func(line string) string { return good + "  " + line + "\n" }
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"advertise 0.0.0.0":       {at("  advertise: 0.0.0.0:7071\n"), []string{"n.yaml:3:14: ", "node.advertise", "0.0.0.0:7071", "dial"}},
		"advertise [::]":          {at("  advertise: \"[::]:7071\"\n"), []string{"node.advertise", "[::]:7071"}},
		"advertise without host":  {at("  advertise: \":7071\"\n"), []string{"node.advertise", ":7071"}},
		"advertise empty":         {at("  advertise: \"\"\n"), []string{"node.advertise", "host:port"}},
		"advertise null":          {at("  advertise:\n"), []string{"node.advertise", "no value"}},
		"advertise without port":  {at("  advertise: n1.example\n"), []string{"node.advertise", "n1.example", "host:port"}},
		"advertise port 0":        {at("  advertise: n1.example:0\n"), []string{"node.advertise", "1 to 65535"}},
		"advertise unresolvable":  {at("  advertise: no-such-host.invalid:7071\n"), []string{"n.yaml:3:14: ", "node.advertise", "no-such-host.invalid:7071", "resolves"}},
		"advertise missing":       {at("  raft: 0.0.0.0:7071\n  insecure_plaintext: true\n"), []string{"node.advertise", "must be set", "0.0.0.0:7071"}},
		"http open":               {at("  http: 0.0.0.0:7070\n"), []string{"n.yaml:3:9: ", "node.http", "insecure_plaintext"}},
		"raft open":               {at("  raft: n1.example:7071\n"), []string{"node.raft", "insecure_plaintext"}},
		"http same as raft":       {at("  http: 127.0.0.1:7071\n"), []string{"node.raft", "address of its own", "node.http"}},
		"http bad port":           {at("  http: 127.0.0.1:70700\n"), []string{"node.http", "65535"}},
		"debug open":              {at("  debug: 0.0.0.0:7073\n"), []string{"node.debug", "loopback"}},
		"drain without unit":      {good + "drain: 30\n", []string{"n.yaml:6:8: ", "drain", `"30"`, "unit"}},
		"drain of words":          {good + "drain: 5seconds\n", []string{"n.yaml:6:8: ", "drain", "5seconds"}},
		"drain negative":          {good + "drain: -1s\n", []string{"n.yaml:6:8: ", "drain", "-1s"}},
		"drain zero":              {good + "drain: 0\n", []string{"n.yaml:6:8: ", "drain", "1s to 1h"}},
		"heartbeat zero":          {timers("heartbeat: 0"), []string{"n.yaml:6:14: ", "cluster.heartbeat", "50ms to 1m"}},
		"heartbeat without unit":  {timers("heartbeat: 30"), []string{"cluster.heartbeat", "30", "unit"}},
		"heartbeat negative":      {timers("heartbeat: -1s"), []string{"cluster.heartbeat", "-1s"}},
		"heartbeat 30s lease 1s":  {timers("heartbeat: 30s\n  election: 30s\n  lease: 1s"), []string{"n.yaml:8:10: ", "cluster.lease", "1s", "15s to 30s"}},
		"lease over heartbeat":    {timers("lease: 500ms"), []string{"cluster.lease", "500ms", "200ms to 400ms"}},
		"election < heartbeat":    {timers("heartbeat: 1s\n  election: 500ms\n  lease: 1s"), []string{"cluster.election", "500ms", "1s"}},
		"unknown key":             {at("  datadir: /x\n"), []string{"n.yaml:3:3: ", "node.datadir", "/x", "unknown key", "data_dir"}},
		"unknown section":         {good + "nodes: {id: n2}\n", []string{"n.yaml:6:1: ", "nodes", "unknown key", "dead_letter"}},
		"duplicate key":           {at("  id: n2\n"), []string{"n.yaml:3:3: ", "id"}},
		"s3":                      {in("wal", "storage: s3"), []string{"n.yaml:7:12: ", "wal.storage", "s3", "not built yet"}},
		"other storage":           {in("wal", "storage: tape"), []string{"wal.storage", "tape", "clustered or disk"}},
		"size without unit":       {in("wal", "max_bytes: 50"), []string{"wal.max_bytes", "50", "unit"}},
		"size too small":          {in("wal", "max_bytes: 1MiB"), []string{"wal.max_bytes", "1MiB", "256MiB"}},
		"disk with seeds":         {in("wal", "storage: disk"), []string{"cluster.seeds", "disk"}},
		"tls":                     {in("tls", "cert: x.pem"), []string{"n.yaml:7:3: ", "tls.cert", "not built yet"}},
		"auth":                    {in("auth", "issuer: https://x"), []string{"n.yaml:7:3: ", "auth.issuer", "not built yet"}},
		"a token in the file":     {in("auth", "tokens: pst_0123456789"), []string{"n.yaml:7:11: ", "auth.tokens", "${file:"}},
		"open metrics, no tokens": {in("auth", "open_metrics: true"), []string{"auth.open_metrics", "means nothing"}},
		"log level":               {in("log", "level: loud"), []string{"log.level", "loud", "debug"}},
		"more per address":        {in("limits", "connections: 100"), []string{"limits.connections_per_address", "1024", "1 to 100"}},
		"header bytes":            {in("limits", "header_bytes: 64MiB"), []string{"limits.header_bytes", "64MiB", "1MiB"}},
		"overflow":                {in("dead_letter", "overflow: drop"), []string{"dead_letter.overflow", "drop", "block"}},
		"count with a unit":       {in("dead_letter", "max_files: 5s"), []string{"dead_letter.max_files", "5s", "whole number"}},
		"bool":                    {at("  insecure_plaintext: maybe\n"), []string{"node.insecure_plaintext", "maybe", "true or false"}},
		"id":                      {strings.Replace(good, "n1", "Node 1", 1), []string{"n.yaml:2:7: ", "node.id", "Node 1"}},
		"no id":                   {strings.Replace(good, "  id: n1\n", "", 1), []string{"node.id"}},
		"no data dir":             {strings.Replace(good, "  data_dir: /tmp/penstock-config-test\n", "", 1), []string{"node.data_dir", "must be set"}},
		"no seeds":                {strings.Split(good, "cluster:")[0], []string{"cluster.seeds", "must be set"}},
		"seed 0.0.0.0":            {strings.Replace(good, "127.0.0.1:7082", "0.0.0.0:7082", 1), []string{"n.yaml:5:10: ", "cluster.seeds", "0.0.0.0:7082"}},
		"seed twice":              {strings.Replace(good, "127.0.0.1:7082", "127.0.0.1:7072", 1), []string{"cluster.seeds", "once"}},
		"list for a value":        {at("  http: [a, b]\n"), []string{"node.http", "not a list"}},
		"mapping for a value":     {at("  http: {a: b}\n"), []string{"node.http", "plain value"}},
		"value for a section":     {"node: n1\n", []string{"node", "n1", "keys under it"}},
		"no mapping":              {"- a\n", []string{"n.yaml:1:", "sections"}},
		"no YAML":                 {"node: [\n", []string{"n.yaml:1:"}},
		"two documents":           {good + "---\nnode: {id: n2}\n", []string{"one YAML document"}},
		"event larger than body":  {in("limits", "event_bytes: 8MiB"), []string{"limits.event_bytes", "8MiB", "4MiB"}},
		"dead letters in the dir": {in("dead_letter", "directory: /tmp/penstock-config-test/"), []string{"dead_letter.directory"}},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, err := Load(write(t, c.text), nil, nil)
			require.Error(t, err)
			require.Less(t, time.Since(start), 3*time.Second)
			line := ""
			for l := range strings.SplitSeq(err.Error(), "\n") {
				if strings.Contains(l, c.want[min(1, len(c.want)-1)]) {
					line = l
				}
			}
			for _, w := range c.want {
				require.Contains(t, line, w, err.Error())
			}
			require.NoDirExists(t, "/tmp/penstock-config-test")
		})
	}
}

func TestB49LegalButSeldomMeantIsAWarning(t *testing.T) {
	c, err := Load(write(t, strings.Replace(good, `, "127.0.0.1:7092"`, "", 1)), nil, nil)
	require.NoError(t, err)
	require.Len(t, c.Warnings(), 1)
	require.Contains(t, c.Warnings()[0], "2 members")

	open := strings.Replace(good, "  id: n1\n", "  id: n1\n  http: 0.0.0.0:7070\n  insecure_plaintext: true\n", 1)
	c, err = Load(write(t, open), nil, nil)
	require.NoError(t, err)
	require.Contains(t, strings.Join(c.Warnings(), "\n"), "node.insecure_plaintext")
	require.Equal(t, "127.0.0.1:7070", c.HTTPAdvertise(), "the advertised host stands in for all interfaces")
}

func TestClusterOfOneNeedsNoSeedsAndNoPeers(t *testing.T) {
	c, err := Load("", nil, map[string]string{"node.id": "n1", "node.data_dir": "/d", "wal.storage": "disk"})
	require.NoError(t, err)
	require.True(t, c.Single())
	require.Empty(t, c.Warnings())
	_, err = Load("", nil, map[string]string{"node.id": "n1", "node.data_dir": "/d", "wal.storage": "disk", "node.gossip": "0.0.0.0:7072"})
	require.ErrorContains(t, err, "insecure_plaintext", "it listens too")
}

type resolver func(host string) error

func (r resolver) LookupHost(_ context.Context, host string) ([]string, error) { return nil, r(host) }

func TestOnlyAdvertisedNamesAreResolved(t *testing.T) {
	c := Default()
	c.Node.Advertise, c.Node.AdvertiseHTTP, c.Cluster.Seeds = "n1.example:1", "10.0.0.1:2", []string{"n2.example:1"}
	var asked []string
	require.NoError(t, c.CheckNames(context.Background(), resolver(func(h string) error { asked = append(asked, h); return nil })))
	require.Equal(t, []string{"n1.example"}, asked)
	err := c.CheckNames(context.Background(), resolver(func(string) error { return &net.DNSError{Err: "no such host"} }))
	var f *Fault
	require.True(t, errors.As(err, &f))
	require.Equal(t, "node.advertise", f.Key)
}

func TestReloadTakesOverWhatItCan(t *testing.T) {
	old, err := Load(write(t, good), nil, nil)
	require.NoError(t, err)
	next, err := Load(write(t, good+"limits: {depth: 64}\nlog: {level: debug, format: text}\ndrain: 5s\nauth: {tokens: \"${file:/x}\"}\n"), nil, nil)
	require.NoError(t, err)
	now, restart := old.Changes(&next)
	require.Equal(t, []Change{{"limits.depth", "512", "64"}, {"log.level", "info", "debug"}, {"auth.tokens", "", "${file:/x}"}}, now)
	require.Equal(t, []Change{{"drain", "30s", "5s"}, {"log.format", "json", "text"}}, restart)
	got := old.Reloaded(&next)
	require.Equal(t, 64, got.Limits.Depth)
	require.Equal(t, 30*time.Second, got.DrainTimeout())
	require.Equal(t, 512, old.Limits.Depth, "what a request began with stays what it was")
	_, restart = got.Changes(&next)
	require.Len(t, restart, 2)
}
