package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// Bounds of a schema, which docs/limits.md lists.
const (
	MaxSchemaBytes = 64 << 10
	// maxSchemaDepth is how deep a schema may be nested.
	maxSchemaDepth = 64
	// maxSchemaVisits is how many subschemas may be looked at for one value: allOf and $ref multiply.
	maxSchemaVisits = 10_000
	// maxProblems and maxProblemBytes bound what is said of one event that does not satisfy its schema.
	maxProblems     = 3
	maxProblemBytes = 512
	// maxDigits and maxExponent bound the numbers that are compared with a schema: beyond them exact arithmetic costs too much.
	maxDigits   = 1000
	maxExponent = 1000
)

// Schema is a compiled JSON Schema. Any goroutine may use it.
type Schema struct{ compiled *jsonschema.Schema }

// CompileSchema compiles a JSON Schema: draft 2020-12 unless $schema names another one. It refuses what leads out of the
// document, and what costs too much; the error says all that is wrong.
func CompileSchema(raw RawJSON) (*Schema, error) {
	if len(raw) > MaxSchemaBytes {
		return nil, fmt.Errorf("%d bytes, more than %d", len(raw), MaxSchemaBytes)
	}
	doc, err := DecodeJSON(raw)
	if err != nil {
		return nil, err
	}
	if d := depthOf(doc); d > maxSchemaDepth {
		return nil, fmt.Errorf("nested %d levels deep, more than %d", d, maxSchemaDepth)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	const name = "urn:penstock:schema"
	if err := c.AddResource(name, doc); err != nil {
		return nil, err
	}
	s, err := c.Compile(name)
	if err != nil {
		return nil, compileError(err)
	}
	n, err := (&visits{counts: map[*jsonschema.Schema]int{}}).of(s)
	if err != nil {
		return nil, err
	}
	if n > maxSchemaVisits {
		return nil, fmt.Errorf("allOf, anyOf, oneOf, not, if and $ref lead to more than %d subschemas for one value", maxSchemaVisits)
	}
	return &Schema{s}, nil
}

// noLoader refuses every document that is not built in: a spec means the same on every node, whatever the network says.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("%.128q leads out of the schema; put it under $defs", url)
}

func compileError(err error) error {
	var invalid *jsonschema.SchemaValidationError
	var all *jsonschema.ValidationError
	if errors.As(err, &invalid) && errors.As(invalid.Err, &all) {
		return errors.New(problemsOf(all))
	}
	return errors.New(cut(strings.Join(strings.Fields(err.Error()), " "), maxProblemBytes))
}

// Check says what is wrong with a value that DecodeJSON gave, nil when nothing is.
func (s *Schema) Check(doc any) error {
	err := s.compiled.Validate(doc)
	var all *jsonschema.ValidationError
	if errors.As(err, &all) {
		return errors.New(problemsOf(all))
	}
	return err
}

var english = message.NewPrinter(language.English)

// problemsOf are the first problems at the bottom of the tree, on one line.
func problemsOf(e *jsonschema.ValidationError) string {
	var all []string
	more := 0
	var walk func(*jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		if len(e.Causes) > 0 {
			for _, c := range e.Causes {
				walk(c)
			}
			return
		}
		if len(all) == maxProblems {
			more++
			return
		}
		at := "/" + strings.Join(e.InstanceLocation, "/")
		all = append(all, cut(fmt.Sprintf("at %s: %s", strings.TrimSuffix(at, "/"), e.ErrorKind.LocalizedString(english)), maxProblemBytes/maxProblems))
	}
	walk(e)
	text := strings.ReplaceAll(strings.Join(all, "; "), "at :", "at the top:")
	if more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// cut shortens to n bytes without cutting a rune in two.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	n -= len("...")
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

// DecodeJSON reads one JSON text for a schema and for DeriveID: numbers as they are written, and none that would cost too much to
// compare.
func DecodeJSON(b []byte) (any, error) {
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.UseNumber()
	var doc any
	if err := d.Decode(&doc); err != nil {
		return nil, errors.New("is no JSON")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("is more than one JSON text")
	}
	return doc, checkNumbers(doc)
}

func checkNumbers(doc any) error {
	switch v := doc.(type) {
	case json.Number:
		mantissa, exponent, _ := strings.Cut(strings.ToLower(string(v)), "e")
		n, err := strconv.Atoi(strings.TrimPrefix(exponent, "+"))
		if len(mantissa) > maxDigits || (exponent != "" && (err != nil || n > maxExponent || n < -maxExponent)) {
			return fmt.Errorf("the number %s has more than %d digits or a power of ten beyond %d", cut(string(v), 40), maxDigits, maxExponent)
		}
	case []any:
		for _, x := range v {
			if err := checkNumbers(x); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, x := range v {
			if err := checkNumbers(x); err != nil {
				return err
			}
		}
	}
	return nil
}

func depthOf(doc any) int {
	deepest := 0
	switch v := doc.(type) {
	case []any:
		for _, x := range v {
			deepest = max(deepest, depthOf(x))
		}
	case map[string]any:
		for _, x := range v {
			deepest = max(deepest, depthOf(x))
		}
	default:
		return 0
	}
	return deepest + 1
}

// visits counts the subschemas that are looked at for one value, following what applies to the same value.
type visits struct {
	counts map[*jsonschema.Schema]int // -1 while it is being counted
}

func (v *visits) of(s *jsonschema.Schema) (int, error) {
	if s == nil {
		return 0, nil
	}
	switch n, seen := v.counts[s]; {
	case seen && n < 0:
		return 0, errors.New("$ref leads in a circle without a step into the data")
	case seen:
		return n, nil
	}
	v.counts[s] = -1
	sum := 1
	for _, next := range inPlace(s) {
		n, err := v.of(next)
		if err != nil {
			return 0, err
		}
		sum = min(sum+n, maxSchemaVisits+1)
	}
	v.counts[s] = sum
	for _, next := range below(s) {
		if _, seen := v.counts[next]; seen || next == nil {
			continue
		}
		n, err := v.of(next)
		if err != nil {
			return 0, err
		}
		sum = max(sum, n)
	}
	return sum, nil
}

// inPlace are the subschemas that apply to the same value.
func inPlace(s *jsonschema.Schema) []*jsonschema.Schema {
	all := []*jsonschema.Schema{s.Ref, s.RecursiveRef, s.Not, s.If, s.Then, s.Else}
	if s.DynamicRef != nil {
		all = append(all, s.DynamicRef.Ref)
	}
	all = append(append(append(all, s.AllOf...), s.AnyOf...), s.OneOf...)
	for _, d := range s.DependentSchemas {
		all = append(all, d)
	}
	for _, d := range s.Dependencies {
		if d, ok := d.(*jsonschema.Schema); ok {
			all = append(all, d)
		}
	}
	return all
}

// below are those that apply to what the value holds.
func below(s *jsonschema.Schema) []*jsonschema.Schema {
	all := append([]*jsonschema.Schema{
		s.PropertyNames, s.UnevaluatedProperties, s.Contains, s.Items2020, s.UnevaluatedItems, s.ContentSchema,
	}, s.PrefixItems...)
	for _, p := range s.Properties {
		all = append(all, p)
	}
	for _, p := range s.PatternProperties {
		all = append(all, p)
	}
	for _, x := range []any{s.AdditionalProperties, s.Items, s.AdditionalItems} {
		switch x := x.(type) {
		case *jsonschema.Schema:
			all = append(all, x)
		case []*jsonschema.Schema:
			all = append(all, x...)
		}
	}
	return all
}
