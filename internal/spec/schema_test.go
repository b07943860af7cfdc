package spec

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestASchemaTellsGoodFromBad(t *testing.T) {
	s, err := CompileSchema(RawJSON(`{
		"type": "object", "required": ["id", "items"], "additionalProperties": false,
		"properties": {"id": {"type": "string", "minLength": 1}, "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1}},
		"$defs": {"item": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9007199254740993}}, "required": ["n"]}}
	}`))
	require.NoError(t, err)
	check := func(doc string) error {
		v, err := DecodeJSON([]byte(doc))
		require.NoError(t, err)
		return s.Check(v)
	}
	require.NoError(t, check(`{"id":"a","items":[{"n":9007199254740993},{"n":1.0,"more":true}]}`))
	for doc, want := range map[string]string{
		`{"id":"a","items":[{"n":9007199254740994}]}`: "at /items/0/n: maximum", // not the same float64
		`{"id":"","items":[{"n":1}]}`:                 "at /id: minLength",
		`[]`:                                          "at the top: got array, want object",
		`{"id":1,"items":[{},{},{},{}],"x":1}`:        "; and ",
	} {
		require.ErrorContains(t, check(doc), want, doc)
		require.NotContains(t, check(doc).Error(), "\n")
		require.Less(t, len(check(doc).Error()), 1000)
	}
}

func TestASchemaThatIsNoneOrCostsTooMuchIsRefused(t *testing.T) {
	var doubling strings.Builder
	doubling.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
	for i := range 40 {
		fmt.Fprintf(&doubling, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	doubling.WriteString(`"d40":true}}`)
	for name, c := range map[string]struct{ schema, want string }{
		"type":            {`{"type":"objekt"}`, "at /type: value must be one of"},
		"two problems":    {`{"type":"objekt","minLength":-1}`, "at /minLength"},
		"no schema":       {`7`, "at the top"},
		"remote":          {`{"$ref":"https://example.com/schema.json"}`, "leads out of the schema"},
		"remote file":     {`{"$ref":"file:///etc/passwd"}`, "leads out of the schema"},
		"remote meta":     {`{"$schema":"https://example.com/draft"}`, "leads out of the schema"},
		"missing":         {`{"$ref":"#/$defs/none"}`, "/$defs/none"},
		"pattern":         {`{"pattern":"(?=a)"}`, "at /pattern"},
		"circle":          {`{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`, "in a circle"},
		"circle in place": {`{"allOf":[{"not":{"$ref":"#"}}]}`, "in a circle"},
		"doubling":        {doubling.String(), "more than 10000 subschemas"},
		"doubling below":  {`{"properties":{"x":` + doubling.String() + `},"$defs":` + doubling.String()[len(`{"$ref":"#/$defs/d0","$defs":`):], "more than 10000 subschemas"},
		"deep":            {strings.Repeat(`{"not":`, 65) + "true" + strings.Repeat("}", 65), "more than 64"},
		"large":           {`{"title":"` + strings.Repeat("x", MaxSchemaBytes) + `"}`, "bytes, more than 65536"},
		"number":          {`{"maximum":1e100000000}`, "power of ten beyond"},
	} {
		_, err := CompileSchema(RawJSON(c.schema))
		require.ErrorContains(t, err, c.want, name)
		require.NotContains(t, err.Error(), "\n", name)
	}
	for _, fine := range []string{
		`true`, `{}`, `{"$schema":"http://json-schema.org/draft-07/schema#","format":"date"}`,
		`{"properties":{"next":{"$ref":"#"}},"additionalProperties":false}`, // a list
	} {
		_, err := CompileSchema(RawJSON(fine))
		require.NoError(t, err, fine)
	}
}

func TestNumbersThatCostTooMuchAreNotCompared(t *testing.T) {
	start := time.Now()
	for _, doc := range []string{`1e1001`, `[1E+99999999999999999999]`, `{"a":-1e-999999999}`, strings.Repeat("1", 2000)} {
		_, err := DecodeJSON([]byte(doc))
		require.ErrorContains(t, err, "digits or a power of ten", doc)
	}
	for _, doc := range []string{`1e1000`, `-0`, `0.1000`, `228930314431312345`} {
		_, err := DecodeJSON([]byte(doc))
		require.NoError(t, err, doc)
	}
	for _, doc := range []string{``, `{`, `1 2`, `{} x`} {
		_, err := DecodeJSON([]byte(doc))
		require.Error(t, err, doc)
	}
	require.Less(t, time.Since(start), 5*time.Second)
}

func TestAnIDIsDerivedFromItsFieldsAndNothingElse(t *testing.T) {
	derive := func(doc string, pointers ...string) (string, error) {
		v, err := DecodeJSON([]byte(doc))
		require.NoError(t, err)
		return DeriveID(v, pointers)
	}
	id := func(doc string, pointers ...string) string {
		s, err := derive(doc, pointers...)
		require.NoError(t, err, doc)
		require.Len(t, s, 32)
		return s
	}
	want := id(`{"order":{"id":"o1"},"version":3,"x":1}`, "/order/id", "/version")
	require.Equal(t, "4e560504f6af52e12d071cdbdc62db94", want, "for ever: ids outlive versions of Penstock")
	require.Equal(t, want, id(`{"x":2,"version":3,"order":{"more":[],"id":"\u006f1"}}`, "/order/id", "/version"), "other fields and escapes do not matter")
	for _, other := range []string{
		id(`{"order":{"id":"o1"},"version":4}`, "/order/id", "/version"),
		id(`{"order":{"id":"o1"},"version":"3"}`, "/order/id", "/version"),
		id(`{"order":{"id":"o1"},"version":3}`, "/version", "/order/id"),
		id(`{"order":{"id":"o13"},"version":true}`, "/order/id", "/version"),
	} {
		require.NotEqual(t, want, other)
	}
	require.NotEqual(t, id(`["ab","c"]`, "/0", "/1"), id(`["a","bc"]`, "/0", "/1"), "values are kept apart")
	require.Equal(t, id(`{"a/b":{"m~n":1}}`, "/a~1b/m~0n"), id(`[1]`, "/0"))
	for doc, pointer := range map[string]string{
		`{}`: "/a", `{"a":null}`: "/a", `{"a":{}}`: "/a", `[1]`: "/1", `[1,2]`: "/01", `{"a":1}`: "/a/b", `7`: "/a",
	} {
		_, err := derive(doc, pointer)
		require.ErrorContains(t, err, pointer+" is ", doc)
	}
}

func TestTheDifferenceOfTwoSpecsIsByField(t *testing.T) {
	a := parseOne(t, minimal)
	require.Empty(t, Diff(&a, &a))
	b := parseOne(t, minimal+"  schema: {type: object}\n  retention: {keep: 2h}\n")
	b.Emitters = append(b.Emitters, Emitter{Name: "new", Kind: KindStdout, Stdout: &Stdout{}})
	b.complete = false
	b.ApplyDefaults()
	var lines []string
	for _, c := range Diff(&a, &b) {
		lines = append(lines, c.String())
	}
	text := strings.Join(lines, "\n")
	require.Contains(t, text, `~ retention.keep: "1h" -> "2h"`)
	require.Contains(t, text, `+ schema: {"type":"object"}`)
	require.Contains(t, text, `+ emitters[new]: {`)
	require.Len(t, lines, 3, text)
	c := b
	c.Emitters = nil
	text = fmt.Sprint(Diff(&b, &c))
	require.Contains(t, text, "- emitters[new]: {")
	for i := range b.Emitters {
		e := b.Emitters[i]
		e.Retry.TTL *= 2
		c.Emitters = append(c.Emitters, e)
	}
	require.Contains(t, fmt.Sprint(Diff(&b, &c)), `~ emitters[new].retry.ttl: "30m" -> "1h"`)
	require.NotEmpty(t, Diff(nil, &b))
}
