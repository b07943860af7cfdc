package event

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// The suite of JSON parser inputs: y_ must be accepted, n_ refused with a place, i_ either way (but without a panic, and
// by the rule that json.go states).
func TestJSONTestSuite(t *testing.T) {
	suite := files(t, corpus(t, "json-test-suite"), "*.json")
	for name, b := range suite {
		events, err := parse(t, header("Content-Type", "application/json"), b)
		switch name[0] {
		case 'y':
			require.NoError(t, err, name)
			require.Len(t, events, 1, name)
			require.Equal(t, string(b), string(events[0].Data), name)
		case 'n':
			e := requireRefused(t, err, BadEvent, name)
			require.Equal(t, 0, e.Ordinal, name)
			require.Positive(t, e.Line, name)
			require.Positive(t, e.Column, name)
			require.GreaterOrEqual(t, e.Byte, int64(0), name)
			require.LessOrEqual(t, e.Byte, int64(len(b)), name)
		case 'i':
			// UTF-8 and depth decide; numbers and lone surrogate escapes are kept as they are.
			require.Equal(t, utf8.Valid(b) && !strings.HasPrefix(string(b), "\ufeff"), err == nil, "%s: %v", name, err)
		}
	}
}

func TestJSONFaultsNameTheirByte(t *testing.T) {
	for _, c := range []struct {
		in     string
		at     int
		reason string
	}{
		{"", 0, "the text ends where a JSON value is expected"},
		{" ", 1, "the text ends where a JSON value is expected"},
		{`{"a":1,}`, 7, "a key in double quotes"},
		{`{"a" 1}`, 5, "':'"},
		{`{"a":1 "b":2}`, 7, "',' or '}'"},
		{`[1 2]`, 3, "',' or ']'"},
		{`[1,]`, 3, "a JSON value"},
		{`01`, 1, "leading zero"},
		{`-`, 1, "a digit"},
		{`1.`, 2, "a digit"},
		{`1e+`, 3, "a digit"},
		{`tru`, 3, "the rest of true"},
		{`nulL`, 3, "the rest of null"},
		{`"a`, 2, "ends inside the string"},
		{"\"a\tb\"", 2, "control character 0x09"},
		{"\"long enough for the fast path\x01\"", 30, "control character 0x01"},
		{"\"caf\xe9 noir\"", 4, "byte 0xE9 is not valid UTF-8"},
		{"\"\xc0\xaf\"", 1, "byte 0xC0 is not valid UTF-8"},
		{"\"\xed\xa0\x80\"", 1, "byte 0xED is not valid UTF-8"},
		{`"\x41"`, 2, "after a backslash"},
		{`"\u12G4"`, 5, "hexadecimal digit"},
		{"\xef\xbb\xbf{}", 0, "byte order mark"},
		{"\xff\xfe{\x00}\x00", 0, "UTF-16"},
		{`1 2`, 2, "the end of the text"},
		{"[1]\u2060", 3, "'\\u2060' where the end of the text is expected"},
		{strings.Repeat("[", 20), 8, "limit of 8 levels"},
		{strings.Repeat(`{"a":`, 20), 40, "limit of 8 levels"},
	} {
		err := checkJSON([]byte(c.in), 8)
		require.NotNil(t, err, "%q", c.in)
		require.Equal(t, c.at, err.at, "%q: %s", c.in, err.reason)
		require.Contains(t, err.reason, c.reason, "%q", c.in)
	}
}

func TestJSONDepthIsCountedExactly(t *testing.T) {
	require.Nil(t, checkJSON([]byte(strings.Repeat("[", 8)+strings.Repeat("]", 8)), 8))
	require.NotNil(t, checkJSON([]byte(strings.Repeat("[", 9)+strings.Repeat("]", 9)), 8))
}

// plainRun looks at eight bytes at a time; each byte must stop it, or not, at each place.
func TestPlainRunStopsAtEachByteInEachPlace(t *testing.T) {
	for length := range 20 {
		for at := range length {
			for c := range 256 {
				for _, fill := range []byte{'a', ' ', '!', '~', '[', '#', 0x7f} {
					b := []byte(strings.Repeat(string(fill), length))
					b[at] = byte(c)
					want := length
					if c < 0x20 || c >= 0x80 || c == '"' || c == '\\' {
						want = at
					}
					require.Equal(t, want, plainRun(b, 0), "%q", b)
				}
			}
		}
	}
}

func TestUnquoteAndQuoteAgreeWithTheStandardLibrary(t *testing.T) {
	for _, text := range []string{"", "plain", "a\"b\\c/d", "\b\f\n\r\t\x00\x1f", "é 😀 \u2028 \ufffd", "\u007f"} {
		quoted := appendQuoted(nil, text)
		var back string
		require.NoError(t, json.Unmarshal(quoted, &back))
		require.Equal(t, text, back)
		std, err := json.Marshal(text)
		require.NoError(t, err)
		for _, q := range [][]byte{quoted, std} {
			got, ok := unquote(q)
			require.True(t, ok)
			require.Equal(t, text, got)
		}
	}
	got, ok := unquote([]byte(`"\ud83d\ude00\u00e9\/"`))
	require.True(t, ok)
	require.Equal(t, "😀é/", got)
	for _, lone := range []string{`"\ud800"`, `"\udc00"`, `"\ud800\u0041"`, `"\ud800x"`, `"\ude00\ud83d"`} {
		_, ok := unquote([]byte(lone))
		require.False(t, ok, lone)
	}
}

func TestOneLineKeepsStringsAndTokens(t *testing.T) {
	in := "{ \"a b\\\\\" : [ 1 ,\r\n\t\"x  \\\" y\" ], \"a b\\\\\":1e400 }\n"
	require.Equal(t, `{"a b\\":[1,"x  \" y"],"a b\\":1e400}`, string(appendOneLine(nil, []byte(in))))
	require.Equal(t, `{ "a" : 1 }`, string(appendOneLine(nil, []byte(`{ "a" : 1 }`))), "one line already")
}

// FuzzJSON holds the scanner against encoding/json, which differs in two things: it accepts invalid UTF-8, and 10,000
// levels.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,-0.5e+7,"\u00e9\n",true,false,null]}`, "\xef\xbb\xbf1", `"\ud800"`, "[[[]]]", " 1 ", "\"\xff\"", `{"a":1,"a":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		err := checkJSON(b, 10_000)
		if want := json.Valid(b) && utf8.Valid(b); want != (err == nil) {
			t.Fatalf("%q: encoding/json says %v, the scanner says %+v", b, want, err)
		}
		if err != nil && (err.at < 0 || err.at > len(b)) {
			t.Fatalf("%q: fault at %d", b, err.at)
		}
		if err == nil {
			line := appendOneLine(nil, b)
			if bad := checkJSON(line, 10_000); bad != nil {
				t.Fatalf("%q became %q: %+v", b, line, bad)
			}
		}
	})
}
