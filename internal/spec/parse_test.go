package spec

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const minimal = "channels:\n- name: a\n  semantics: at-least-once\n  order: none\n"

func parseOne(t *testing.T, doc string) Channel {
	t.Helper()
	list, err := ParseYAML([]byte(doc))
	require.NoError(t, err)
	require.Len(t, list, 1)
	return list[0]
}

func TestMinimalChannelGetsTheDocumentedDefaults(t *testing.T) {
	c := parseOne(t, minimal+`  emitters:
  - {name: w, kind: webhook, webhook: {url: "https://x.example/in"}}
  - {name: f, kind: file}
  - {name: s, kind: stdout}
`)
	require.NoError(t, c.Validate())
	require.Equal(t, "/channels/a", c.Source)
	require.Equal(t, "penstock.event", c.Type)
	require.JSONEq(t, `{"window":"10m","max_keys":10000000,"on_full":"refuse"}`, marshal(t, c.Dedup))
	require.JSONEq(t, `{"keep":"1h","max_unresolved":"10GiB","on_unresolved":"refuse"}`, marshal(t, c.Retention))
	w, f, s := c.Emitters[0], c.Emitters[1], c.Emitters[2]
	require.JSONEq(t, `{"ttl":"30m","max_attempts":0,"backoff":{"min":"1s","max":"5m","jitter":0.2}}`, marshal(t, w.Retry))
	require.Equal(t, w.Retry, f.Retry)
	require.JSONEq(t, `{"events":1,"bytes":"0B","linger":"0s"}`, marshal(t, w.Compaction))
	require.JSONEq(t, `{"events":10000,"bytes":"8MiB","linger":"1s"}`, marshal(t, f.Compaction))
	require.Equal(t, []string{"event-id", "compaction-id", "none"}, []string{w.IdempotentBy, f.IdempotentBy, s.IdempotentBy})
	require.Equal(t, "out", f.File.Directory)
	require.Equal(t, "15s", w.Webhook.Timeout.String())
	require.Equal(t, 16, w.Concurrency)
	require.NotNil(t, s.Stdout)
	require.Nil(t, s.Webhook)
}

func TestDesignExampleIsRead(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "orders.yaml"))
	require.NoError(t, err)
	c := parseOne(t, string(b))
	require.NoError(t, c.Validate())
	golden, err := os.ReadFile(filepath.Join("testdata", "orders.canonical.json"))
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(golden)), string(c.Canonical()))
}

// A zero that the user wrote is a limit taken away, and no field to fill.
func TestExplicitZerosAreKept(t *testing.T) {
	doc := minimal + `  retention: {keep: 0s}
  emitters:
  - {name: f, kind: file, retry: {ttl: 0s, max_attempts: 3}, compaction: {linger: 0s}, dead_letter: {max_retries: 0}}
`
	c := parseOne(t, doc)
	c.ApplyDefaults()
	require.NoError(t, c.Validate())
	require.Zero(t, c.Retention.Keep)
	e := c.Emitters[0]
	require.Zero(t, e.Retry.TTL)
	require.Zero(t, e.Compaction.Linger)
	require.Equal(t, 10_000, e.Compaction.Events)
	require.Zero(t, e.DeadLetter.MaxRetries)
	require.Equal(t, "1s", e.Retry.Backoff.Min.String())

	again, err := ParseJSON(c.Canonical())
	require.NoError(t, err)
	require.Equal(t, c, again)
}

func TestChannelMadeInGoGetsTheSameDefaults(t *testing.T) {
	made := Channel{Name: "a", Semantics: AtLeastOnce, Order: OrderNone, Emitters: []Emitter{
		{Name: "f", Kind: KindFile}, {Name: "w", Kind: KindWebhook, Webhook: &Webhook{URL: "http://x/"}}, {Name: "s", Kind: KindStdout},
	}}
	before := made.Emitters[1].Webhook.Timeout
	canonical := made.Canonical()
	require.Equal(t, before, made.Emitters[1].Webhook.Timeout, "Canonical changed its channel")
	made.ApplyDefaults()
	read := parseOne(t, minimal+"  emitters:\n  - {name: f, kind: file}\n  - {name: w, kind: webhook, webhook: {url: http://x/}}\n  - {name: s, kind: stdout}\n")
	require.Equal(t, read, made)
	require.Equal(t, string(read.Canonical()), string(canonical))
}

func TestMistakesAreNamedByLineAndColumn(t *testing.T) {
	for _, c := range []struct{ doc, want string }{
		{minimal + "  semantic: x\n", `5:3: unknown field "semantic"`},
		{minimal + "  name: b\n", `5:3`},
		{"chanels: []\n", `1:1: unknown field "chanels"`},
		{minimal + "  retention: {keep: 30}\n", `5:21: duration "30" has no unit`},
		{minimal + "  retention:\n    keep: 5seconds\n", `6:11: duration "5seconds"`},
		{minimal + "  retention:\n    keep: -1s\n", `6:11: duration "-1s" is negative`},
		{minimal + "  retention: {max_unresolved: 100}\n", `5:31: size "100" has no unit`},
		{minimal + "  retention: {max_unresolved: 1gb}\n", `5:31: size "1gb"`},
		{minimal + "  dedup: {max_keys: many}\n", `5:21: count "many"`},
		{minimal + "  dedup: {windows: 1s}\n", `5:11: unknown field "windows"`},
		{minimal + "  emitters:\n  - name: x\n    kind: webhook\n    retry:\n      backoff: {minimum: 1s}\n", `9:17: unknown field "minimum"`},
		{minimal + "  emitters:\n  - name: x\n    kind: webhook\n    webhook: {url: http://x, timout: 1s}\n", `8:30: unknown field "timout"`},
		{minimal + "  emitters: yes\n", `5:13`},
		{minimal + "  emitters:\n  - name: x\n    kind: file\n    compaction: {events: lots}\n", `8:26`},
		{"channels:\n- name: [a\n", `2:`},
		{"", "no channels"},
		{"channels: []\n", "no channels"},
		{minimal + "---\n" + minimal, "more than one YAML document"},
		{minimal + "- {name: a, semantics: at-least-once, order: none}\n", `"a" is declared twice`},
	} {
		_, err := ParseYAML([]byte(c.doc))
		require.ErrorContains(t, err, c.want, c.doc)
		require.NotContains(t, err.Error(), "\n", "one line")
	}
}

func TestJSONIsAsStrict(t *testing.T) {
	for _, c := range []struct{ doc, want string }{
		{`{"name":"a","nam":"b"}`, `unknown field "nam"`},
		{`{"name":"a","emitters":[{"name":"x","kin":"file"}]}`, `unknown field "kin"`},
		{`{"name":"a","dedup":{"windows":"1s"}}`, `unknown field "windows"`},
		{`{"name":"a","name":"b"}`, `"name" is given twice`},
		{`{"emitters":[{"name":"a","name":"b"}]}`, `"name" is given twice`},
		{`{"dedup":{"window":30}}`, `"30" has no unit`},
		{`{"dedup":{"window":"30"}}`, `"30" has no unit`},
		{`{"dedup":{"window":true}}`, `want a string`},
		{`{"retention":{"max_unresolved":1e9}}`, `want a whole number`},
		{`{"dedup":{"max_keys":-1}}`, `want a whole number`},
		{`{"name":"a"} x`, `invalid character`},
		{`[]`, `cannot unmarshal array`},
		{`{"emitters":[1]}`, `cannot unmarshal number`},
		{``, `EOF`},
		{strings.Repeat(`{"schema":`, 200), `nested deeper`},
	} {
		_, err := ParseJSON([]byte(c.doc))
		require.ErrorContains(t, err, c.want, c.doc)
	}
	_, err := ParseJSON(make([]byte, maxDocument+1))
	require.Error(t, err)
}

func TestNumbersMayBeShortAndIndexesBare(t *testing.T) {
	c := parseOne(t, minimal+"  dedup: {max_keys: 500k}\n  emitters:\n  - {name: f, kind: file, start: 42}\n")
	require.Equal(t, 500_000, c.Dedup.MaxKeys)
	require.Equal(t, "42", c.Emitters[0].Start)
	require.NoError(t, c.Validate())
}

func TestSchemaIsKeptAsJSON(t *testing.T) {
	c := parseOne(t, minimal+"  schema:\n    type: object\n    required: [a]\n")
	require.JSONEq(t, `{"type":"object","required":["a"]}`, string(c.Schema))
	require.NoError(t, c.Validate())
	again, err := ParseJSON(c.Canonical())
	require.NoError(t, err)
	require.Equal(t, c, again)
}

func TestUnitsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := Duration(rapid.Int64Min(0).Draw(t, "d"))
		d2, err := ParseDuration(d.String())
		require.NoError(t, err)
		require.Equal(t, d, d2)
		s := Size(rapid.Int64Min(0).Draw(t, "s"))
		s2, err := ParseSize(s.String())
		require.NoError(t, err)
		require.Equal(t, s, s2)
	})
	for in, want := range map[string]string{"10m0s": "10m", "1h": "1h", "1h0m0s": "1h", "90m": "1h30m", "0": "0s", "1.5s": "1.5s", "10s": "10s", "70s": "1m10s"} {
		d, err := ParseDuration(in)
		require.NoError(t, err)
		require.Equal(t, want, d.String())
	}
	for in, want := range map[string]string{"1024KiB": "1MiB", "1000B": "1kB", "0": "0B", "1KB": "1kB", "10 GiB": "10GiB", "1025B": "1025B"} {
		s, err := ParseSize(in)
		require.NoError(t, err)
		require.Equal(t, want, s.String())
	}
	for _, bad := range []string{"", "B", "1", "1.5MiB", "-1B", "9999999999999GiB", "1 M"} {
		_, err := ParseSize(bad)
		require.Error(t, err, bad)
	}
}

// Case B49: a bare number, an unknown unit and a negative duration are refused with the rule.
func TestB49DurationsNeedAUnit(t *testing.T) {
	for in, want := range map[string]string{"30": "has no unit", "5seconds": "h, m, s, ms", "-1s": "is negative", "": "want numbers", "-30": "has no unit"} {
		_, err := ParseDuration(in)
		require.ErrorContains(t, err, want, in)
	}
	d, err := ParseDuration("0")
	require.NoError(t, err)
	require.Zero(t, d)
}

func marshal(t *testing.T, v any) string {
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return string(b)
}
