package event

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var testDefaults = Defaults{Source: "/channels/test", Type: "penstock.event"}

// header makes headers of name, value pairs.
func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func counter() func() string {
	n := 0
	return func() string { n++; return "made-" + strconv.Itoa(n) }
}

func parse(t testing.TB, h http.Header, body []byte) ([]Event, error) {
	t.Helper()
	return ParseHTTP(h, bytes.NewReader(body), Limits{}, testDefaults, counter())
}

func requireRefused(t testing.TB, err error, kind ErrorKind, about ...any) *Error {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e, about...)
	require.Equal(t, kind, e.Kind, about...)
	return e
}

const structuredType = "application/cloudevents+json"

func TestBinaryModeKeepsEachByte(t *testing.T) {
	body := []byte("{\"b\": 1, \"a\":2,\r\n \"a\" : 40000000000000000000000000000000000000001}\n")
	events, err := parse(t, header(
		"Content-Type", "application/json; charset=utf-8", "ce-specversion", "1.0", "ce-id", "A%20%22b%25", "ce-source", "/s",
		"ce-type", "t", "ce-subject", "\"quoted \\\" text\"", "ce-time", "2018-04-05T17:31:00.123Z", "ce-partitionkey", "%E2%82%AC",
		"ce-dataschema", "http://x/y", "X-Other", "z"), body)
	require.NoError(t, err)
	require.Equal(t, []Event{{
		ID: `A "b%`, Source: "/s", Type: "t", Subject: `quoted " text`, Time: "2018-04-05T17:31:00.123Z",
		DataContentType: "application/json; charset=utf-8", DataSchema: "http://x/y",
		Extensions: []Extension{{Name: "partitionkey", Value: "€"}}, Data: body, DataKind: DataJSON,
	}}, events)
	require.Equal(t, "€", events[0].OrderKey())
}

func TestBinaryModeKinds(t *testing.T) {
	for _, c := range []struct {
		contentType string
		body        string
		kind        DataKind
	}{
		{"application/json", `[1]`, DataJSON},
		{"application/vnd.acme+json", `[1]`, DataJSON},
		{"application/json", ``, DataNone},
		{"text/plain", "grüße", DataText},
		{"text/plain; charset=iso-8859-1", "gr\xfc\xdfe", DataBinary},
		{"text/plain", "gr\xfc\xdfe", DataBinary},
		{"application/xml", "<a/>", DataText},
		{"application/x-ndjson", "1\n2\n", DataText},
		{"application/octet-stream", "abc", DataBinary},
		{"", "abc", DataBinary},
	} {
		h := header("ce-specversion", "1.0", "ce-id", "1", "ce-source", "s", "ce-type", "t")
		if c.contentType != "" {
			h.Set("Content-Type", c.contentType)
		}
		events, err := parse(t, h, []byte(c.body))
		require.NoError(t, err, c)
		require.Equal(t, c.kind, events[0].DataKind, c)
		require.Equal(t, c.body, string(events[0].Data), c)
		require.Equal(t, c.contentType, events[0].DataContentType)
	}
}

func TestStructuredModeSlicesTheDataOut(t *testing.T) {
	data := `{ "big":228930314431312345, "z":1,"a":1e400,"z":-0, "s":"\ud800 \u2028 ` + "\u2028" + `" }`
	events, err := parse(t, header("Content-Type", "Application/CloudEvents+JSON; charset=UTF-8"), []byte(
		`{"data":`+data+`,"specversion":"1.0","i\u0064":"1","source":"s","type":"t","n":-7,"b":true,"x":"v","subject":null,"dataschema":""}`))
	require.NoError(t, err)
	require.Equal(t, []Event{{ID: "1", Source: "s", Type: "t", Data: []byte(data), DataKind: DataJSON, Extensions: []Extension{
		{Name: "b", Value: "true", Kind: ExtensionBoolean}, {Name: "n", Value: "-7", Kind: ExtensionInteger}, {Name: "x", Value: "v"},
	}}}, events)
}

func TestStructuredDataKinds(t *testing.T) {
	for _, c := range []struct {
		members string
		kind    DataKind
		data    string
	}{
		{``, DataNone, ""},
		{`,"data":null`, DataJSON, "null"},
		{`,"data":"text"`, DataJSON, `"text"`},
		{`,"data":"a\nb","datacontenttype":"text/plain"`, DataText, "a\nb"},
		{`,"data":"","datacontenttype":"text/plain"`, DataText, ""},
		{`,"data":null,"datacontenttype":"text/plain"`, DataNone, ""},
		{`,"data_base64":"/wA="`, DataBinary, "\xff\x00"},
		{`,"data_base64":null`, DataNone, ""},
		{`,"data_base64":"eyB9","datacontenttype":"application/json"`, DataBinary, "{ }"},
	} {
		events, err := parse(t, header("Content-Type", structuredType), []byte(`{"specversion":"1.0","id":"1","source":"s","type":"t"`+c.members+`}`))
		require.NoError(t, err, c.members)
		require.Equal(t, c.kind, events[0].DataKind, c.members)
		require.Equal(t, c.data, string(events[0].Data), c.members)
		back, err := ParseStructured(events[0].AppendStructured(nil))
		require.NoError(t, err, c.members)
		require.Equal(t, events[0], back, c.members)
	}
}

func TestStructuredRefusals(t *testing.T) {
	const ok = `"specversion":"1.0","id":"1","source":"s","type":"t"`
	for _, c := range []struct{ body, field, reason string }{
		{`[]`, "", "a CloudEvent, a JSON object"},
		{`{` + ok + `}x`, "", "the end of the body"},
		{`{"id":"1","source":"s","type":"t"}`, "specversion", "is required"},
		{`{"specversion":"0.3","id":"1","source":"s","type":"t"}`, "specversion", "not supported"},
		{`{"specversion":"1.0","source":"s","type":"t"}`, "id", "is required"},
		{`{"specversion":"1.0","id":"","source":"s","type":"t"}`, "id", "not be empty"},
		{`{"specversion":"1.0","id":null,"source":"s","type":"t"}`, "id", "is required"},
		{`{"specversion":"1.0","id":"1","type":"t"}`, "source", "is required"},
		{`{"specversion":"1.0","id":"1","source":"s"}`, "type", "is required"},
		{`{"specversion":"1.0","id":1,"source":"s","type":"t"}`, "id", "must be a string"},
		{`{` + ok + `,"id":"1"}`, "id", "more than once"},
		{`{` + ok + `,"\u0069d":null}`, "id", "more than once"},
		{`{` + ok + `,"specversion":"1.0"}`, "specversion", "more than once"},
		{`{` + ok + `,"data":1,"data":1}`, "data", "more than once"},
		{`{` + ok + `,"x":"1","x":"1"}`, "x", "more than once"},
		{`{` + ok + `,"data":1,"data_base64":""}`, "data", "exclude each other"},
		{`{` + ok + `,"data_base64":"!"}`, "data_base64", "no base64"},
		{`{` + ok + `,"data_base64":7}`, "data_base64", "must be a string"},
		{`{` + ok + `,"data":{},"datacontenttype":"text/plain"}`, "data", "must be a string"},
		{`{` + ok + `,"data":"\ud800","datacontenttype":"text/plain"}`, "data", "lone surrogate"},
		{`{` + ok + `,"data":"x","datacontenttype":"text/plain;charset=latin1"}`, "data", "UTF-8"},
		{`{` + ok + `,"time":"yesterday"}`, "time", "RFC 3339"},
		{`{` + ok + `,"bad_name":"x"}`, "bad_name", "letters a to z"},
		{`{` + ok + `,"Upper":"x"}`, "Upper", "letters a to z"},
		{`{` + ok + `,"":"x"}`, "", "empty"},
		{`{` + ok + `,"x":1.5}`, "x", "no integer"},
		{`{` + ok + `,"x":{}}`, "x", "not an object"},
		{`{` + ok + `,"x":"a\u0000b"}`, "x", "control character"},
		{`{` + ok + `,"x":"a\ud800"}`, "x", "lone surrogate"},
		{`{` + ok + `,"subject":"a\nb"}`, "subject", "control character"},
		{"\xef\xbb\xbf{" + ok + "}", "", "byte order mark"},
	} {
		_, err := parse(t, header("Content-Type", structuredType), []byte(c.body))
		e := requireRefused(t, err, BadEvent, c.body)
		require.Equal(t, 0, e.Ordinal, c.body)
		require.Equal(t, c.field, e.Field, c.body)
		require.Contains(t, e.Reason, c.reason, c.body)
		require.Positive(t, e.Line, c.body)
	}
}

func TestBatchModeIsAllOrNothing(t *testing.T) {
	const one = `{"specversion":"1.0","id":"1","source":"s","type":"t"}`
	h := header("Content-Type", "application/cloudevents-batch+json")
	events, err := parse(t, h, []byte(" [ "+one+" ,\n"+one+"]\n"))
	require.NoError(t, err)
	require.Len(t, events, 2)

	events, err = parse(t, h, []byte("[]"))
	require.NoError(t, err)
	require.Empty(t, events)
	require.NotNil(t, events)

	events, err = parse(t, h, []byte("["+one+",\n  "+`{"specversion":"1.0","id":"2","source":"s","type":"t","time":"x"}]`))
	e := requireRefused(t, err, BadEvent)
	require.Nil(t, events)
	require.Equal(t, 1, e.Ordinal)
	require.Equal(t, 2, e.Line)
	require.Equal(t, 3, e.Column)
	require.Equal(t, int64(len(one)+5), e.Byte)

	for _, body := range []string{``, `{}`, `[`, `[` + one, `[` + one + `,]`, `[` + one + `]]`, `[1]`} {
		_, err = parse(t, h, []byte(body))
		require.Positive(t, requireRefused(t, err, BadEvent, body).Line, body)
	}
}

func TestNDJSONWrapsEachLine(t *testing.T) {
	h := header("Content-Type", "application/x-ndjson", "Penstock-Source", "/from/header", "Ce-Type", "my.type")
	events, err := parse(t, h, []byte("{\"a\":1}\r\n\n  [2] \nnull"))
	require.NoError(t, err)
	require.Len(t, events, 3)
	for i, want := range []string{`{"a":1}`, `[2]`, `null`} {
		require.Equal(t, Event{
			ID: "made-" + strconv.Itoa(i+1), ServerID: true, Source: "/from/header", Type: "my.type",
			DataContentType: "application/json", Data: []byte(want), DataKind: DataJSON,
		}, events[i])
	}
	_, err = parse(t, h, []byte("1\n\n{\"ä\":1,}\n3"))
	e := requireRefused(t, err, BadEvent)
	require.Equal(t, []any{1, 3, 8, int64(11)}, []any{e.Ordinal, e.Line, e.Column, e.Byte})
	events, err = parse(t, h, []byte("\n\n"))
	require.NoError(t, err)
	require.Empty(t, events)
}

func TestIdempotencyKeyGivesProducerIDs(t *testing.T) {
	for given, want := range map[string]string{`abc`: "abc", `"abc"`: "abc", `"a\"b"`: `a"b`} {
		events, err := parse(t, header("Content-Type", "application/x-ndjson", "Idempotency-Key", given), []byte("1\n2"))
		require.NoError(t, err)
		require.Equal(t, []string{want + "/0", want + "/1"}, []string{events[0].ID, events[1].ID})
		require.False(t, events[0].ServerID)
	}
	events, err := parse(t, header("Content-Type", structuredType, "Idempotency-Key", "k"),
		[]byte(`{"specversion":"1.0","id":"1","source":"s","type":"t"}`))
	require.NoError(t, err)
	require.Equal(t, "1", events[0].ID)
	for _, bad := range []string{"", `""`, "a\x01", strings.Repeat("k", 256)} {
		_, err := parse(t, header("Content-Type", "application/json", "Idempotency-Key", bad), []byte("1"))
		require.Error(t, err, bad)
	}
}

func TestContentTypeDecidesTheMode(t *testing.T) {
	for _, c := range []struct {
		h    http.Header
		kind ErrorKind
	}{
		{header(), UnsupportedType},
		{header("Content-Type", "text/plain"), UnsupportedType},
		{header("Content-Type", "application/x-www-form-urlencoded"), UnsupportedType},
		{header("Content-Type", "application/cloudevents+avro"), UnsupportedType},
		{header("Content-Type", "application/cloudevents-batch+avro"), UnsupportedType},
		{header("Content-Type", "application/cloudevents"), UnsupportedType},
		{header("Content-Type", "application/json; charset=utf-16"), UnsupportedType},
		{header("Content-Type", "application/json; ;"), UnsupportedType},
		{header("Content-Type", "application/json", "Content-Type", "application/json"), BadEvent},
		{header("Content-Type", "application/json", "ce-id", "1"), BadEvent},
		{header("Content-Type", "application/json", "ce-subject", "x"), BadEvent},
		{header("Content-Type", "application/json", "Penstock-Source", "a", "Penstock-Source", "b"), BadEvent},
		{header("Content-Type", "application/json", "Idempotency-Key", "a", "Idempotency-Key", "a"), BadEvent},
		{header("Content-Type", "application/json", "ce-source", "%C0%A0"), BadEvent},
		{header("ce-specversion", "1.0", "ce-id", "1", "ce-source", "s", "ce-type", "t", "ce-datacontenttype", "x/y"), BadEvent},
		{header("ce-specversion", "1.0", "ce-id", "1", "ce-id", "1", "ce-source", "s", "ce-type", "t"), BadEvent},
		{header("ce-specversion", "1.0", "ce-id", "%C0%A0", "ce-source", "s", "ce-type", "t"), BadEvent},
		{header("ce-specversion", "1.0", "ce-id", "a%0Ab", "ce-source", "s", "ce-type", "t"), BadEvent},
		{header("ce-specversion", "1.0", "ce-id", "1", "ce-source", "s", "ce-type", "t", "ce-data", "x"), BadEvent},
		{header("ce-specversion", "0.3", "ce-id", "1", "ce-source", "s", "ce-type", "t"), BadEvent},
		{header("ce-specversion", "1.0", "ce-id", "1", "ce-source", "s"), BadEvent},
	} {
		_, err := parse(t, c.h, []byte("1"))
		requireRefused(t, err, c.kind, "%v", c.h)
	}
}

func TestPercentSignsDecodeOnce(t *testing.T) {
	for in, want := range map[string]string{"100%": "100%", "%zz": "%zz", "%2541": "%41", "a%20b": "a b", `"a b"`: "a b", "%": "%", "%4": "%4"} {
		require.Equal(t, want, decodeHeader(in), in)
	}
}

// The extensions that show a position are the server's: a request's are dropped, a reader's are kept.
func TestOwnExtensionsAreDroppedFromRequests(t *testing.T) {
	shown := Event{ID: "1", Source: "s", Type: "t", Extensions: []Extension{{Name: "a", Value: "x"}}}
	line := shown.AppendStructured(nil, Extension{ExtensionIndex, "7", ExtensionInteger}, Extension{ExtensionOrdinal, "0", ExtensionInteger})
	require.Equal(t, `{"specversion":"1.0","id":"1","source":"s","type":"t","a":"x","penstockindex":7,"penstockordinal":0}`, string(line))
	read, err := ParseStructured(line)
	require.NoError(t, err)
	require.Len(t, read.Extensions, 3)
	require.Equal(t, 1, strings.Count(string(read.AppendStructured(nil, Extension{ExtensionIndex, "8", ExtensionInteger})), ExtensionIndex))
	sent, err := parse(t, header("Content-Type", structuredType), line)
	require.NoError(t, err)
	require.Equal(t, shown.Extensions, sent[0].Extensions)
}

func TestAttributesAreBounded(t *testing.T) {
	long := strings.Repeat("x", MaxAttributeBytes)
	body := func(members string) []byte {
		return []byte(`{"specversion":"1.0","id":"1","source":"s","type":"t",` + members + `}`)
	}
	h := header("Content-Type", structuredType)
	_, err := parse(t, h, body(`"subject":"`+long+`"`))
	require.NoError(t, err)
	_, err = parse(t, h, body(`"subject":"`+long+`x"`))
	require.Equal(t, int64(MaxAttributeBytes), requireRefused(t, err, TooLarge).Limit)
	_, err = parse(t, h, body(`"`+long+`":"x"`))
	requireRefused(t, err, BadEvent)
	var many []string
	for i := range MaxExtensions + 1 {
		many = append(many, `"e`+strconv.Itoa(i)+`":1`)
	}
	_, err = parse(t, h, body(strings.Join(many[1:], ",")))
	require.NoError(t, err)
	_, err = parse(t, h, body(strings.Join(many, ",")))
	requireRefused(t, err, TooLarge)
	_, err = parse(t, header("ce-specversion", "1.0", "ce-id", strings.Repeat("x", 20_000), "ce-source", "s", "ce-type", "t"), nil)
	requireRefused(t, err, TooLarge)
}

func TestTimesAreThoseOfRFC3339(t *testing.T) {
	for _, ok := range []string{"2018-04-05T17:31:00Z", "2018-04-05t17:31:00.5z", "2016-12-31T23:59:60Z", "2018-04-05T17:31:00.123456789123+05:30"} {
		require.True(t, validTime(ok), ok)
	}
	for _, bad := range []string{"2018-04-05", "2018-04-05 17:31:00Z", "2018-04-05T17:31:00", "2018-04-05T17:31:00,5Z", "2018-04-05T7:31:00Z", "2018-02-30T17:31:00Z", "2018-04-05T17:31:00+25:00"} {
		require.False(t, validTime(bad), bad)
	}
}

func TestConnectionErrorsAreNotTheProducersFault(t *testing.T) {
	cut := errors.New("connection reset")
	for _, encoding := range []string{"", "gzip", "zstd"} {
		h := header("Content-Type", "application/json", "Content-Encoding", encoding)
		_, err := ParseHTTP(h, io.MultiReader(strings.NewReader(""), errorReader{cut}), Limits{}, testDefaults, counter())
		require.ErrorIs(t, err, cut, encoding)
		var e *Error
		require.False(t, errors.As(err, &e), encoding)
	}
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }
