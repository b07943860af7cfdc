package event

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Our own small corpus: y_ is accepted and kept in each mode, n_ is refused with its place.
func TestOwnCorpus(t *testing.T) {
	for name, b := range files(t, filepath.Join("testdata", "corpus"), "*.json") {
		events, err := parse(t, header("Content-Type", "application/json"), b)
		if name[0] == 'n' {
			require.Positive(t, requireRefused(t, err, BadEvent, name).Line, name)
			continue
		}
		require.NoError(t, err, name)
		requireKept(t, b, &events[0], name)
	}
}

// requireKept says that the data survives storage, binary mode and structured mode: to the byte, but for the white space
// between tokens that a value of several lines loses in a structured event.
func requireKept(t *testing.T, data []byte, e *Event, about string) {
	t.Helper()
	require.Equal(t, string(data), string(e.Data), about)
	encoded, err := EncodeBatch(nil, BatchHeader{}, HashKey{}, []Event{*e}, nil)
	require.NoError(t, err, about)
	batch, err := DecodeBatch(encoded)
	require.NoError(t, err, about)
	stored, err := batch.Events()
	require.NoError(t, err, about)
	require.Equal(t, *e, stored[0], about)
	binary, err := ParseHTTP(e.BinaryHeaders(), bytes.NewReader(e.Data), Limits{}, Defaults{}, nil)
	require.NoError(t, err, about)
	require.Equal(t, string(data), string(binary[0].Data), about)
	structured, err := ParseStructured(e.AppendStructured(nil))
	require.NoError(t, err, about)
	want := string(appendOneLine(nil, data))
	require.Equal(t, strings.TrimSpace(want), string(structured.Data), about)
	list, err := ParseHTTP(header("Content-Type", "application/cloudevents-batch+json"), bytes.NewReader(AppendBatchJSON(nil, []Event{*e, *e})),
		Limits{}, Defaults{}, nil)
	require.NoError(t, err, about)
	require.Len(t, list, 2, about)
	require.Equal(t, string(structured.Data), string(list[1].Data), about)
}

// Case B03: numbers are never decoded, so they cannot change.
func TestB03NumbersAreKeptAsWritten(t *testing.T) {
	for _, n := range []string{
		"228930314431312345", "9007199254740993", "-0", "1e400", "0.1000", "1234567890123456789012345678901234567890", "-1.5E-0007",
	} {
		data := `{"v":` + n + `}`
		for contentType, body := range map[string]string{
			"application/json": data, "application/x-ndjson": data + "\n",
			structuredType: `{"specversion":"1.0","id":"1","source":"s","type":"t","data":` + data + `}`,
		} {
			events, err := parse(t, header("Content-Type", contentType), []byte(body))
			require.NoError(t, err, n)
			requireKept(t, []byte(data), &events[0], n)
		}
	}
}

// Case B05: a byte that is not UTF-8 is refused with its place, never dropped with what follows it; in data that is no
// JSON it is kept. Its neighbours share its fate: a request is all or nothing.
func TestB05InvalidUTF8IsRefusedWithItsPlace(t *testing.T) {
	for name, c := range map[string]struct {
		value string
		ok    bool
	}{
		"Latin-1":               {"caf\xe1 and more", false},
		"overlong":              {"\xc0\xaf and more", false},
		"encoded surrogate":     {"\xed\xa0\x80 and more", false},
		"truncated":             {"\xf0\x9f\x98", false},
		"beyond Unicode":        {"\xf4\x90\x80\x80 and more", false},
		"lone surrogate escape": {`\ud83d and more`, true},
		"emoji":                 {"😀 and more", true},
	} {
		for _, with := range []struct{ before, after string }{{"", ""}, {`{"n":1}` + "\n", "\n" + `{"n":3}`}} {
			line := `{"v":"` + c.value + `"}`
			body := with.before + line + with.after
			events, err := parse(t, header("Content-Type", "application/x-ndjson"), []byte(body))
			if c.ok {
				require.NoError(t, err, name)
				at := strings.Count(with.before, "\n")
				requireKept(t, []byte(line), &events[at], name)
				continue
			}
			e := requireRefused(t, err, BadEvent, name)
			require.Nil(t, events)
			require.Equal(t, strings.Count(with.before, "\n"), e.Ordinal, name)
			require.Equal(t, strings.Count(with.before, "\n")+1, e.Line, name)
			bad := strings.IndexFunc(body, func(r rune) bool { return r == '\uFFFD' })
			require.Equal(t, int64(bad), e.Byte, name)
			require.Contains(t, e.Reason, "not valid UTF-8", name)
		}
	}
	events, err := parse(t, header("Content-Type", "text/plain", "ce-specversion", "1.0", "ce-id", "1", "ce-source", "s", "ce-type", "t"),
		[]byte("caf\xe1 and more"))
	require.NoError(t, err)
	back, err := ParseStructured(events[0].AppendStructured(nil))
	require.NoError(t, err)
	require.Equal(t, "caf\xe1 and more", string(back.Data))
}

// Case B11, the part that is decided here: the same producer id twice in one batch has the same dedup key, and its content
// hash tells a repeat from a conflict.
func TestB11RepeatsInOneBatchShareTheirKey(t *testing.T) {
	make := func(id, data string) Event {
		return Event{ID: id, Source: "s", Type: "t", Data: []byte(data), DataKind: DataJSON}
	}
	events := []Event{make("K1", "1"), make("K2", "2"), make("K1", "1"), make("K3", "3"), make("K2", "other")}
	encoded, err := EncodeBatch(nil, BatchHeader{ChannelIndex: 9}, HashKey{1}, events, nil)
	require.NoError(t, err)
	b, err := DecodeBatch(encoded)
	require.NoError(t, err)
	key := func(i int) [16]byte { return b.Envelope(i).DedupKey }
	content := func(i int) uint64 { return b.Envelope(i).ContentHash }
	require.Equal(t, key(0), key(2))
	require.Equal(t, content(0), content(2), "a repeat")
	require.Equal(t, key(1), key(4))
	require.NotEqual(t, content(1), content(4), "a conflict")
	require.NotEqual(t, key(0), key(1))
	require.NotEqual(t, key(0), key(3))
}

// Case S16: one rule in each mode. A byte order mark before JSON is refused, a repeated key of the envelope or a repeated
// header is refused, a repeated key of the data is kept.
func TestS16ByteOrderMarksAndRepeatedKeys(t *testing.T) {
	const bom = "\xef\xbb\xbf"
	const one = `{"specversion":"1.0","id":"1","source":"s","type":"t","data":1}`
	for contentType, body := range map[string]string{
		"application/json": "1", "application/x-ndjson": "1\n2\n", structuredType: one, "application/cloudevents-batch+json": "[" + one + "]",
	} {
		_, err := parse(t, header("Content-Type", contentType), []byte(bom+body))
		e := requireRefused(t, err, BadEvent, contentType)
		require.Equal(t, []any{1, 1, int64(0)}, []any{e.Line, e.Column, e.Byte}, contentType)
		require.Contains(t, e.Reason, "byte order mark", contentType)
	}
	attributes := []string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "s", "ce-type", "t"}
	_, err := parse(t, header(append(attributes, "Content-Type", "application/json")...), []byte(bom+"1"))
	require.Contains(t, requireRefused(t, err, BadEvent).Reason, "byte order mark")
	events, err := parse(t, header(append(attributes, "Content-Type", "text/plain")...), []byte(bom+"1"))
	require.NoError(t, err)
	require.Equal(t, bom+"1", string(events[0].Data), "in data that is no JSON it is data")

	repeated := `{"k":1,"k":2,"\u006b":3}`
	for contentType, body := range map[string]string{
		"application/json": repeated, "application/x-ndjson": repeated, structuredType: strings.Replace(one, `"data":1`, `"data":`+repeated, 1),
	} {
		events, err := parse(t, header("Content-Type", contentType), []byte(body))
		require.NoError(t, err, contentType)
		requireKept(t, []byte(repeated), &events[0], contentType)
	}
	for _, key := range []string{"id", "source", "type", "specversion", "data", "\\u0069d"} {
		_, err := parse(t, header("Content-Type", structuredType), []byte(strings.Replace(one, "{", `{"`+key+`":"1",`, 1)))
		require.Contains(t, requireRefused(t, err, BadEvent, key).Reason, "more than once", key)
	}
	for _, h := range [][]string{{"Idempotency-Key", "a", "Idempotency-Key", "a"}, {"Penstock-Type", "a", "Penstock-Type", "b"}} {
		_, err := parse(t, header(append(h, "Content-Type", "application/json")...), []byte("1"))
		require.Contains(t, requireRefused(t, err, BadEvent).Reason, "more than once")
	}
}
