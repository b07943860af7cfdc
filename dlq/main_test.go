package dlq

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"penstock/event"
	"penstock/internal/vfs"
)

// TestMain keeps the random volumes few unless the command line says how many: go test ./dlq -run Random -rapid.checks=2000.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		_ = flag.Set("rapid.checks", "20") // of rapid, which is always linked in
	}
	goleak.VerifyTestMain(m)
}

const dir = "/dlq"

var at = time.Date(2026, 1, 2, 3, 4, 5, 600700800, time.UTC)

// record is a full record; n makes it one of its own.
func record(n int) Record {
	return Record{
		ID: fmt.Sprintf("%032x", n), State: Dead, At: at.Add(time.Duration(n) * time.Second),
		Channel: "orders", Emitter: "billing", ChannelIndex: 5, EmitterIndex: 2,
		Seq: uint64(n), Position: event.Position{Index: 100 + uint64(n), Ordinal: 3}, CompactionID: "c0ffee",
		Owner: "n1", Epoch: 7, Class: "transient", Status: 503,
		Cause: "retry.ttl 30m0s used up after 12 attempts", Reason: "503 Service Unavailable",
		RedeliveryCount: 1, Limits: Limits{TTL: 30 * time.Minute, MaxAttempts: 0, MaxRetries: 5},
		AttemptCount: 12, FirstFailedAt: at.Add(-time.Hour), LastFailedAt: at,
		Attempts: []Attempt{
			{At: at.Add(-time.Hour), Class: "transient", Status: 503, Error: "503 Service Unavailable", Response: []byte("try <later> & again")},
			{At: at, Class: "transient", Error: "connection refused", Response: []byte{0xff, 0}},
		},
		Event: event.Event{
			ID: fmt.Sprintf("e%d", n), Source: "/shop", Type: "order.created", Subject: "käse\u2028", Time: "2026-01-02T03:04:05Z",
			DataContentType: "application/json", DataSchema: "https://example.com/s",
			Extensions: []event.Extension{{Name: "partitionkey", Value: "k"}, {Name: "sequence", Value: "12", Kind: event.ExtensionInteger}},
			DataKind:   event.DataJSON, Data: []byte(fmt.Sprintf(`{"n":%d,"big":228930314431312345,"a":1,"a":2}`, n)),
		},
	}
}

func records(from, to int) (out []Record) {
	for n := from; n <= to; n++ {
		out = append(out, record(n))
	}
	return out
}

func open(t *testing.T, fsys vfs.FS, change ...func(*Config)) *Volume {
	t.Helper()
	cfg := Config{NodeID: "n1", FS: fsys}
	for _, c := range change {
		c(&cfg)
	}
	v, err := Open(dir, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	return v
}

func all(t *testing.T, v *Volume) (out []Record) {
	t.Helper()
	require.NoError(t, v.Records(func(r Record) error {
		out = append(out, r)
		return nil
	}))
	return out
}

func ids(records []Record) (out []string) {
	for _, r := range records {
		out = append(out, strings.TrimLeft(r.ID, "0"))
	}
	return out
}

func names(t *testing.T, fsys vfs.FS) (out []string) {
	t.Helper()
	entries, err := fsys.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if e.Name() != lockName && e.Name() != identityName {
			out = append(out, e.Name())
		}
	}
	return out
}

func read(t *testing.T, fsys vfs.FS, name string) string {
	t.Helper()
	b, err := vfs.ReadFile(fsys, dir+"/"+name)
	require.NoError(t, err)
	return string(b)
}

func put(t *testing.T, fsys vfs.FS, name, content string) {
	t.Helper()
	require.NoError(t, fsys.MkdirAll(dir, dirMode))
	require.NoError(t, vfs.WriteFileAtomic(fsys, dir+"/"+name, []byte(content), 0o600))
}

func lineOf(t *testing.T, r Record) string {
	t.Helper()
	b, err := r.AppendLine(nil)
	require.NoError(t, err)
	return string(b)
}
