package main

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"penstock/internal/spec"
)

// yamlBlock is a block of YAML in a document.
var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

func TestEveryExampleOfAChannelIsAccepted(t *testing.T) {
	code, out, errs := cli(t, nil, "", "channel", "example")
	require.Zero(t, code, errs)
	texts := []string{out, uncomment(out)}
	doc, err := os.ReadFile("../../docs/channels.md")
	require.NoError(t, err)
	blocks := yamlBlock.FindAllStringSubmatch(string(doc), -1)
	require.GreaterOrEqual(t, len(blocks), 2)
	for _, b := range blocks {
		texts = append(texts, b[1])
	}
	for _, text := range texts {
		channels, err := spec.ParseYAML([]byte(text))
		require.NoError(t, err, text)
		for _, c := range channels {
			require.NoError(t, c.Validate(), text)
		}
	}
}

// uncomment takes the sign off each key that is commented out, which leaves the default where it was.
func uncomment(example string) string {
	return regexp.MustCompile(`(?m)^( +)# ( *[a-z_]+:)`).ReplaceAllString(example, "$1$2")
}

// What stands behind a key that is commented out is said to be its default.
func TestTheExampleOfAChannelNamesTheDefaults(t *testing.T) {
	plain, err := spec.ParseYAML([]byte(channelExample))
	require.NoError(t, err)
	text := uncomment(channelExample)
	require.Contains(t, text, "    dedup:\n      window: 10m")
	text = regexp.MustCompile(`(?m)^ *classes: .*\n`).ReplaceAllString(text, "") // has no default to show
	said, err := spec.ParseYAML([]byte(text))
	require.NoError(t, err)
	require.Equal(t, string(plain[0].Canonical()), string(said[0].Canonical()))
}

func TestEveryFieldOfAChannelIsExplained(t *testing.T) {
	b, err := os.ReadFile("../../docs/channels.md")
	require.NoError(t, err)
	src, err := os.ReadFile("../../internal/spec/spec.go")
	require.NoError(t, err)
	fields := regexp.MustCompile(`yaml:"([a-z_]+)"`).FindAllStringSubmatch(string(src), -1)
	require.Greater(t, len(fields), 30)
	for _, f := range fields {
		require.True(t, regexp.MustCompile("`([a-z_]+\\.)*"+f[1]+"(\\.[a-z_]+)*`").Match(b), "docs/channels.md says nothing of %s", f[1])
	}
}

func TestARefusalToDropDeliveriesNamesDiscard(t *testing.T) {
	f := newFake(t, nil)
	f.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write([]byte(`{"type":"urn:penstock:problem:conflict","detail":"emitter o has 1 pending, 0 dead and 0 poison deliveries"}`))
	})
	for _, args := range []string{"channel delete orders", "channel apply -f -"} {
		code, _, errs := cli(t, f, channelExample, strings.Fields(args)...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, errs, "(--discard drops them)", args)
	}
}

func TestChannelShowNamesTheIndexAnIndex(t *testing.T) {
	f := newFake(t, map[string]string{"GET /v1/channels/c": `{"name":"c","index":7,"version":2,"accepted":5,"spec":{"name":"c"}}`})
	code, out, errs := cli(t, f, "", "channel", "show", "c")
	require.Zero(t, code, errs)
	require.Regexp(t, `CHANNEL +INDEX +VERSION +ACCEPTED\nc +7 +2 +5\n`, out)
}
