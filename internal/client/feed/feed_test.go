package feed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"penstock/event"
	"penstock/internal/client"
)

var ctx = context.Background()

// cluster is a fake: it accepts each id once, commits the offset with the events, and misbehaves as told.
type cluster struct {
	limit    int // bytes of one request
	seen     map[string]bool
	accepted []string // data, in order
	keys     []string
	offset   *event.SourceOffset
	requests int
	types    []string
	// before and after the commit of request n
	before, after func(n int) error
}

func (c *cluster) Offset(context.Context, string, string, string) (event.SourceOffset, bool, error) {
	if c.offset == nil {
		return event.SourceOffset{}, false, nil
	}
	return *c.offset, true, nil
}

func (c *cluster) Send(ctx context.Context, _ string, body []byte, contentType string, o client.SendOptions) (client.SendResult, error) {
	c.requests++
	c.types = append(c.types, contentType)
	if ctx.Err() != nil {
		return client.SendResult{}, &client.UnknownError{Err: ctx.Err()}
	}
	if c.limit > 0 && len(body) > c.limit {
		return client.SendResult{}, &client.Problem{Type: "urn:penstock:problem:too-large", Status: 413, Limit: int64(c.limit)}
	}
	if c.before != nil {
		if err := c.before(c.requests); err != nil {
			return client.SendResult{}, err
		}
	}
	var res client.SendResult
	for i, data := range split(body, contentType) {
		id := fmt.Sprintf("%s/%d", o.IdempotencyKey, i)
		if strings.HasPrefix(contentType, "application/cloudevents") {
			var head struct{ Source, ID string }
			_ = json.Unmarshal([]byte(data), &head)
			id = head.Source + head.ID
		}
		if c.seen == nil {
			c.seen = map[string]bool{}
		}
		if c.seen[id] {
			res.Duplicates++
			continue
		}
		c.seen[id] = true
		c.keys = append(c.keys, id)
		c.accepted = append(c.accepted, data)
		res.Accepted++
	}
	if o.Offset != nil {
		merged := *o.Offset
		if c.offset != nil {
			merged = c.offset.Merge(merged)
		}
		c.offset = &merged
	}
	if c.after != nil {
		if err := c.after(c.requests); err != nil {
			return client.SendResult{}, err
		}
	}
	return res, nil
}

func split(body []byte, contentType string) []string {
	switch contentType {
	case "application/x-ndjson":
		return strings.Split(strings.TrimSuffix(string(body), "\n"), "\n")
	case "application/cloudevents-batch+json":
		var raw []json.RawMessage
		_ = json.Unmarshal(body, &raw)
		var out []string
		for _, r := range raw {
			out = append(out, string(r))
		}
		return out
	}
	return []string{string(body)}
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func numbered(n int) (text string, want []string) {
	var b strings.Builder
	for i := range n {
		line := fmt.Sprintf(`{"n":%d,"pad":"%s"}`, i, strings.Repeat("x", i%37))
		want = append(want, line)
		b.WriteString(line + "\n")
	}
	return b.String(), want
}

func TestInputIsSplitUnderTheLimits(t *testing.T) {
	text, want := numbered(2500)
	for _, cfg := range []Config{{MaxEvents: 100}, {MaxBytes: 500}, {MaxBytes: 1}, {}} {
		c := &cluster{}
		f := New(cfg, c)
		require.NoError(t, f.File(ctx, file(t, "a.ndjson", text)))
		require.Equal(t, want, c.accepted)
		require.Equal(t, uint64(2500), f.Summary().Sent)
		require.Equal(t, uint64(2500), f.Summary().Accepted)
	}
}

func TestTooLargeRequestIsHalvedUntilItFits(t *testing.T) {
	text, want := numbered(300)
	c := &cluster{limit: 200}
	require.NoError(t, New(Config{Source: "s"}, c).File(ctx, file(t, "a.ndjson", text)))
	require.Equal(t, want, c.accepted)
	require.Equal(t, event.SourceOffset{Position: uint64(len(text)), Record: 300}, *c.offset)

	c = &cluster{limit: 10}
	err := New(Config{}, c).File(ctx, file(t, "a.ndjson", text))
	require.ErrorContains(t, err, "413 too-large", "one event over the limit is an error, never cut")
}

// TestB01LongLinesArriveWhole: the line scanner's 64 KiB is no limit here.
func TestB01LongLinesArriveWhole(t *testing.T) {
	for _, n := range []int{65_535, 65_536, 1 << 20, 1<<20 + 1, 5 << 20} {
		long := `"` + strings.Repeat("a", n-2) + `"`
		want := []string{"1", "2", long, "4", "5"}
		c := &cluster{}
		require.NoError(t, New(Config{}, c).File(ctx, file(t, "a.jsonl", strings.Join(want, "\n"))))
		require.Equal(t, want, c.accepted)
	}
}

func TestLinesKeepTheirBytes(t *testing.T) {
	c := &cluster{}
	f := New(Config{Source: "s"}, c)
	text := "\n {\"a\": 1.0, \"a\":  2} \r\n\n\t\n228930314431312345\n\"\u2028\"\nnull"
	require.NoError(t, f.Stream(ctx, "stdin", strings.NewReader(text)))
	require.Equal(t, []string{" {\"a\": 1.0, \"a\":  2} ", "228930314431312345", "\"\u2028\"", "null"}, c.accepted)
	require.Equal(t, event.SourceOffset{Position: uint64(len(text)), Record: 7}, *c.offset)
}

func TestWholeFilesAndCloudEventsPassThrough(t *testing.T) {
	ce := `{"specversion":"1.0","id":"1","source":"/x","type":"t","data":{"specversion":2}}`
	plain := `{"specversion":1,"id":"1","source":"/x"}`
	c := &cluster{}
	f := New(Config{}, c)
	for _, path := range []string{
		file(t, "pretty.json", "{\n  \"a\": 1\n}\n"), file(t, "ce.json", ce), file(t, "noext", "[1,2]"),
		file(t, "mixed.ndjson", ce+"\n"+strings.Replace(ce, `"1"`, `"2"`, 1)+"\n"+plain+"\n"+strings.Replace(ce, `"1"`, `"3"`, 1)+"\n"),
	} {
		require.NoError(t, f.File(ctx, path))
	}
	require.Equal(t, []string{
		"application/json", "application/cloudevents+json", "application/json",
		"application/cloudevents-batch+json", "application/x-ndjson", "application/cloudevents-batch+json",
	}, c.types)
	require.Equal(t, "{\n  \"a\": 1\n}\n", c.accepted[0], "byte for byte")
	require.Equal(t, plain, c.accepted[4], "the first CloudEvent of mixed.ndjson is a duplicate of ce.json")
	require.Equal(t, uint64(7), f.Summary().Sent)
}

func TestSameFileAgainIsDuplicateUnlessFresh(t *testing.T) {
	text, want := numbered(10)
	path := file(t, "a.ndjson", text)
	c := &cluster{}
	for range 2 {
		require.NoError(t, New(Config{}, c).File(ctx, path))
	}
	require.Equal(t, want, c.accepted)
	require.NoError(t, New(Config{}, c).File(ctx, file(t, "a.ndjson", text)))
	require.Len(t, c.accepted, 20, "another file with the same bytes is other events")
	require.NoError(t, New(Config{Fresh: true}, c).File(ctx, path))
	require.Len(t, c.accepted, 30)
	for range 2 {
		require.NoError(t, New(Config{}, c).Stream(ctx, "stdin", strings.NewReader("1\n")))
	}
	require.Len(t, c.accepted, 32, "standard input has no name to be known by")
}

func TestLostAnswersAreRepeatedUnderTheSameIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text, want := numbered(1000)
		c := &cluster{
			before: func(n int) error {
				switch n % 5 {
				case 1:
					return &client.Problem{Type: "urn:penstock:problem:overloaded", Status: 429, RetryAfter: time.Second}
				case 2:
					return &client.Problem{Type: "urn:penstock:problem:no-leader", Status: 503}
				}
				return nil
			},
			after: func(n int) error {
				if n%3 == 0 {
					return &client.UnknownError{Err: errors.New("connection reset")}
				}
				return nil
			},
		}
		f := New(Config{MaxEvents: 10}, c)
		require.NoError(t, f.Stream(ctx, "stdin", strings.NewReader(text)))
		require.Equal(t, want, c.accepted)
		s := f.Summary()
		require.Equal(t, uint64(1000), s.Sent)
		require.Equal(t, s.Sent, s.Accepted+s.Duplicates)
		require.Positive(t, s.Duplicates)
		require.Positive(t, s.Retries)
		require.Zero(t, s.Unknown, "every outcome became known")
	})
}

func TestGivenUpWithUnknownOutcomeSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := &client.Problem{Type: "urn:penstock:problem:no-leader", Status: 503}
		c := &cluster{before: func(n int) error {
			if n == 1 {
				return &client.UnknownError{Err: errors.New("reset")}
			}
			return down
		}}
		f := New(Config{RetryFor: 10 * time.Second}, c)
		err := f.Stream(ctx, "stdin", strings.NewReader("1\n2\n"))
		require.True(t, client.Unknown(err), "an earlier try may have been committed: %v", err)
		require.Equal(t, uint64(2), f.Summary().Unknown)

		c = &cluster{before: func(int) error { return down }}
		f = New(Config{RetryFor: 10 * time.Second}, c)
		err = f.Stream(ctx, "stdin", strings.NewReader("1\n2\n"))
		require.Error(t, err)
		require.False(t, client.Unknown(err))
		require.Zero(t, f.Summary().Unknown)
	})
}

func TestRefusedEventIsNamedByFileAndLine(t *testing.T) {
	ordinal := 2
	c := &cluster{before: func(int) error {
		return &client.Problem{Type: "urn:penstock:problem:bad-event", Status: 400, Ordinal: &ordinal, Detail: "unexpected end"}
	}}
	path := file(t, "a.ndjson", "1\n\n2\n\n{\n4\n")
	err := New(Config{}, c).File(ctx, path)
	require.ErrorContains(t, err, path+":5: 400 bad-event: unexpected end")
	require.Equal(t, 1, c.requests, "a refusal is not repeated")
}

// TestSourceKilledAtAnyPointResumesWithoutGapOrRepeat: before the commit, after it, and with the batch size changed.
func TestSourceKilledAtAnyPointResumesWithoutGapOrRepeat(t *testing.T) {
	text, want := numbered(500)
	path := file(t, "a.ndjson", text)
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := &cluster{}
		for runs := 0; ; runs++ {
			require.Less(t, runs, 100)
			killed, cancel := context.WithCancel(ctx)
			at := c.requests + 1 + r.IntN(8)
			die := func(n int) error {
				if n < at {
					return nil
				}
				cancel()
				return &client.UnknownError{Err: context.Canceled}
			}
			c.before, c.after = nil, nil
			if r.IntN(2) == 0 {
				c.before = die
			} else {
				c.after = die
			}
			err := New(Config{Source: "s", Partition: "p", Close: true, MaxEvents: 10 + r.IntN(10)}, c).File(killed, path)
			cancel()
			if err == nil {
				break
			}
		}
		require.Equal(t, want, c.accepted, "seed %d", seed)
		require.Equal(t, event.SourceOffset{Position: uint64(len(text)), Record: 500, Closed: true}, *c.offset)
	}
}

func TestResumeRefusesAnotherInput(t *testing.T) {
	c := &cluster{offset: &event.SourceOffset{Position: 7, Record: 2}}
	require.ErrorContains(t, New(Config{Source: "s"}, c).File(ctx, file(t, "a.ndjson", "1\n2\n")), "only 4 bytes")
	require.ErrorContains(t, New(Config{Source: "s"}, c).File(ctx, file(t, "a.ndjson", "123456789\n")), "no line ends there")
	require.ErrorContains(t, New(Config{Source: "s"}, c).Stream(ctx, "stdin", bytes.NewBufferString("1\n2\n")), "only 4 bytes")
	require.Empty(t, c.accepted)
}

func TestGrownFileGoesOnWhereItWas(t *testing.T) {
	c := &cluster{}
	path := file(t, "a.ndjson", "1\n2\n")
	send := func() { require.NoError(t, New(Config{Source: "s", Close: true}, c).File(ctx, path)) }
	send()
	send()
	require.Equal(t, 1, c.requests, "nothing new, nothing sent")
	require.NoError(t, os.WriteFile(path, []byte("1\n2\n3\n"), 0o600))
	send()
	require.Equal(t, []string{"1", "2", "3"}, c.accepted)
	require.Equal(t, event.SourceOffset{Position: 6, Record: 3, Closed: true}, *c.offset)

	c = &cluster{offset: &event.SourceOffset{Position: 4, Record: 2}}
	require.NoError(t, New(Config{Source: "s"}, c).Stream(ctx, "stdin", bytes.NewBufferString("1\n2\n3\n")))
	require.Equal(t, []string{"3"}, c.accepted, "a stream is read over to the offset")
}
