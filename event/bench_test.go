package event

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// webhookLines makes n lines of about 1 KiB that look like webhooks: many keys, some text, few escapes.
func webhookLines(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, `{"action":"opened","number":%d,"repository":{"id":%d,"node_id":"R_kgDO%x","full_name":"acme/site-%d","private":false,`+
			`"html_url":"https://git.example/acme/site-%d","description":"The site, in \"plain\" text","fork":false,"stargazers_count":%d},`+
			`"sender":{"login":"user-%d","id":%d,"type":"User","site_admin":false,"avatar_url":"https://avatars.example/u/%d?v=4"},`+
			`"pull_request":{"id":%d,"state":"open","locked":false,"title":"Make it quick — and right","body":"%s","created_at":"2024-05-06T07:08:09Z",`+
			`"labels":[{"id":1,"name":"bug","color":"ff0000"},{"id":2,"name":"help wanted","color":"00ff00"}],"milestone":null,"draft":false,"commits":%d}}`+"\n",
			i, 1e8+i*7919, i*104729, i, i, i%977, i%31, 1e6+i*31, 1e6+i*31, 2e9+i*13, strings.Repeat("Lorem ipsum dolor sit amet, ", 10)+strconv.Itoa(i*i), i%9)
	}
	return b.Bytes()
}

func BenchmarkParseHTTPNDJSON(b *testing.B) {
	for _, encoding := range []string{"", "gzip", "zstd"} {
		b.Run("encoding="+encoding, func(b *testing.B) {
			plain := webhookLines(1000)
			body := plain
			switch encoding {
			case "gzip":
				body = gzipped(b, body)
			case "zstd":
				body = zstded(b, body)
			}
			h := header("Content-Type", "application/x-ndjson", "Content-Encoding", encoding, "Content-Length", strconv.Itoa(len(body)))
			b.SetBytes(int64(len(plain)))
			b.ReportAllocs()
			for b.Loop() {
				events, err := ParseHTTP(h, bytes.NewReader(body), Limits{}, testDefaults, func() string { return "id" })
				if err != nil || len(events) != 1000 {
					b.Fatal(len(events), err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/event")
		})
	}
}

func BenchmarkParseHTTPBatchMode(b *testing.B) {
	events, err := parse(b, header("Content-Type", "application/x-ndjson"), webhookLines(1000))
	require.NoError(b, err)
	body := AppendBatchJSON(nil, events)
	h := header("Content-Type", "application/cloudevents-batch+json", "Content-Length", strconv.Itoa(len(body)))
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseHTTP(h, bytes.NewReader(body), Limits{}, testDefaults, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/event")
}

func BenchmarkBatch(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		events, err := parse(b, header("Content-Type", "application/x-ndjson", "Idempotency-Key", "k"), webhookLines(n))
		require.NoError(b, err)
		var encoded []byte
		b.Run(fmt.Sprintf("encode/events=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if encoded, err = EncodeBatch(encoded[:0], BatchHeader{ChannelIndex: 7}, testKey, events, nil); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(int64(len(webhookLines(n))))
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/event")
			b.ReportMetric(float64(len(encoded))/float64(n), "stored-B/event")
		})
		b.Run(fmt.Sprintf("structure/events=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := DecodeBatch(encoded); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("events/events=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				batch, err := DecodeBatch(encoded)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := batch.Events(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/event")
		})
	}
}
