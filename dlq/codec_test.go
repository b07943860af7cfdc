package dlq

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"penstock/event"
)

const fixture = "testdata/format/v1/records.jsonl"

func fixtureRecords() []Record {
	binary, text, none, spread, poison := record(2), record(3), record(4), record(5), record(6)
	binary.Event.DataKind, binary.Event.Data = event.DataBinary, []byte{0, 1, 0xff}
	text.Event.DataKind, text.Event.Data = event.DataText, []byte("text\nof two lines")
	none.Event.DataKind, none.Event.Data = event.DataNone, nil
	none.Attempts, none.FirstFailedAt, none.LastFailedAt, none.AttemptCount = nil, time.Time{}, time.Time{}, 0
	spread.Event.Data = []byte("{\n  \"a\": 1\r\n}\n")
	poison.State, poison.Class, poison.Status = Poison, "poison", 0
	poison.Event.ServerID = true
	return []Record{record(1), binary, text, none, spread, poison}
}

func TestFixtureOfVersion1DecodesForEver(t *testing.T) {
	var want []byte
	for _, r := range fixtureRecords() {
		want = append(want, lineOf(t, r)...)
	}
	if os.Getenv("PENSTOCK_WRITE_FIXTURES") == "yes" {
		require.NoError(t, os.WriteFile(fixture, want, 0o644))
	}
	got, err := os.ReadFile(fixture)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "the format changed: that needs a new version")
	for i, line := range bytes.SplitAfter(bytes.TrimSuffix(got, []byte("\n")), []byte("\n")) {
		r, err := ParseLine(line)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(fixtureRecords()[i], r))
		require.True(t, json.Valid(line), "any JSON tool can read it")
	}
}

// TestL17DeadLetterWithoutReasonAndAuditData: the record has the fields of the contract (L14, K7).
func TestL17DeadLetterWithoutReasonAndAuditData(t *testing.T) {
	var m map[string]any
	require.NoError(t, json.Unmarshal([]byte(lineOf(t, record(1))), &m))
	for _, field := range []string{
		"v", "id", "state", "deadLetteredAt", "channel", "emitter", "position", "compactionId", "owner", "epoch",
		"class", "status", "cause", "reason", "redeliveryCount", "limits", "attemptCount", "attempts", "event", "data", "crc",
	} {
		require.Contains(t, m, field)
	}
	poison := record(1)
	poison.State = Poison
	m = nil
	require.NoError(t, json.Unmarshal([]byte(lineOf(t, poison)), &m))
	require.Contains(t, m, "poisonedAt")
	require.NotContains(t, m, "deadLetteredAt")
}

func TestDataComesBackByteForByte(t *testing.T) { // B03
	rapid.Check(t, func(t *rapid.T) {
		r := record(1)
		r.Event.DataKind = event.DataKind(rapid.IntRange(0, 3).Draw(t, "kind"))
		switch r.Event.DataKind {
		case event.DataNone:
			r.Event.Data = nil
		case event.DataJSON:
			r.Event.Data = []byte(rapid.SampledFrom([]string{
				`{}`, `null`, ` 1`, "1 ", "\t[1]", "[1,\n2]", `{"a":1e400,"b":-0}`, `"\u2028</script>"`, "\"\u2028\"", `"\ud83d"`,
				`{"crc":"00000000"}`, `"\""`, "[1,2]\r", "truefalse", "\"\xff\"", "",
			}).Draw(t, "json"))
		default:
			r.Event.Data = rapid.SliceOf(rapid.Byte()).Draw(t, "data")
		}
		b, err := r.AppendLine([]byte("before "))
		require.NoError(t, err)
		b = bytes.TrimPrefix(b, []byte("before "))
		require.Equal(t, 1, bytes.Count(b, []byte("\n")), "one line")
		got, err := ParseLine(b)
		require.NoError(t, err)
		require.True(t, bytes.Equal(r.Event.Data, got.Event.Data), "%q %q", r.Event.Data, got.Event.Data)
		require.Equal(t, r.Event.DataKind, got.Event.DataKind)
	})
}

func TestAnyChangedBitAndAnyCutIsNoticed(t *testing.T) {
	line := []byte(lineOf(t, record(1)))
	body := line[:len(line)-1]
	for i := range body {
		for bit := range 8 {
			bad := bytes.Clone(body)
			bad[i] ^= 1 << bit
			if bytes.EqualFold(bad, body) && i >= len(body)-crcSize {
				continue // the case of a hexadecimal digit
			}
			_, err := ParseLine(bad)
			require.Error(t, err, "byte %d bit %d", i, bit)
		}
		_, err := ParseLine(body[:i])
		require.Error(t, err, "cut at %d", i)
	}
	_, err := ParseLine(append(bytes.Clone(body), body...))
	require.Error(t, err, "two records merged into one line")
}

func TestNewerVersionIsToldFromDamage(t *testing.T) {
	_, err := ParseLine([]byte(newerLine(t)))
	require.ErrorIs(t, err, ErrTooNew)
}

// newerLine is a line as a later version might write it.
func newerLine(t *testing.T) string {
	t.Helper()
	line := lineOf(t, record(1))
	body := strings.Replace(line[:len(line)-1-crcSize], `{"v":1,`, `{"v":2,"more":[],`, 1)
	return string(appendCRC([]byte(body), 0)) + "\n"
}

// reparse holds a line of any content with a right checksum to: refused, or written again as the same record.
func reparse(t require.TestingT, body []byte) {
	r, err := ParseLine(appendCRC(bytes.Clone(body), 0))
	if err != nil {
		return
	}
	again, err := r.AppendLine(nil)
	if err != nil {
		return // a time whose year has five digits once it is in UTC
	}
	back, err := ParseLine(again)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(r, back, cmpopts.EquateEmpty()))
}

func TestWhatIsReadIsWrittenAgainAsTheSame(t *testing.T) {
	var bodies [][]byte
	for _, r := range fixtureRecords() {
		bodies = append(bodies, []byte(lineOf(t, r)))
	}
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.SampledFrom(bodies).Draw(t, "line")
		body := bytes.Clone(line[:len(line)-1-crcSize])
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			at := rapid.IntRange(0, len(body)-1).Draw(t, "at")
			part := rapid.SampledFrom([]string{"", `"`, "{", "}", "null", "0", "-1", `\u0000`, "\xff", "\n", ",", `"data":1`}).Draw(t, "part")
			body = slices.Concat(body[:at], []byte(part), body[min(len(body), at+rapid.IntRange(0, 12).Draw(t, "cut")):])
			if len(body) == 0 {
				return
			}
		}
		reparse(t, body)
	})
}

// FuzzParseLine feeds what is behind the checksum, which would keep a fuzzer out.
func FuzzParseLine(f *testing.F) {
	for _, r := range fixtureRecords() {
		b, err := r.AppendLine(nil)
		require.NoError(f, err)
		f.Add(b[:len(b)-1-crcSize])
	}
	f.Add([]byte(`{"v":1`))
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _ = ParseLine(body)
		reparse(t, body)
	})
}
