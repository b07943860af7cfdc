package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// maxDocument bounds a document that declares channels.
const maxDocument = 1 << 20

// ParseYAML reads a document with a list of channels under the key channels, and applies the defaults. An unknown or
// repeated key, a value of the wrong type and a value without its unit are errors with line and column. It does not
// Validate.
func ParseYAML(b []byte) ([]Channel, error) {
	if len(b) > maxDocument {
		return nil, fmt.Errorf("parse channels: %d bytes, at most %d", len(b), maxDocument)
	}
	var doc struct {
		Channels []Channel `yaml:"channels"`
	}
	d := yaml.NewDecoder(bytes.NewReader(b), yaml.Strict())
	if err := d.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("parse channels: %w", placed(err))
	}
	if err := d.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("parse channels: more than one YAML document; put all channels into one list")
	}
	if len(doc.Channels) == 0 {
		return nil, errors.New("parse channels: no channels; want a list under the key channels")
	}
	seen := map[string]bool{}
	for i := range doc.Channels {
		c := &doc.Channels[i]
		if seen[c.Name] {
			return nil, fmt.Errorf("parse channels: the channel %q is declared twice", c.Name)
		}
		seen[c.Name] = true
		c.ApplyDefaults()
	}
	return doc.Channels, nil
}

// placed turns an error of the YAML library into LINE:COLUMN: MESSAGE, on one line.
func placed(err error) error {
	var e yaml.Error
	if !errors.As(err, &e) || e.GetToken() == nil {
		return err
	}
	p := e.GetToken().Position
	return fmt.Errorf("%d:%d: %s", p.Line, p.Column, e.GetMessage())
}

// ParseJSON reads one channel, and applies the defaults. An unknown or repeated key is an error. It does not Validate.
func ParseJSON(b []byte) (Channel, error) {
	var c Channel
	if len(b) > maxDocument {
		return c, fmt.Errorf("parse channel: %d bytes, at most %d", len(b), maxDocument)
	}
	if err := checkKeys(b); err != nil {
		return c, fmt.Errorf("parse channel: %w", err)
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("parse channel: %w", err)
	}
	c.ApplyDefaults()
	return c, nil
}

// UnmarshalJSON decodes over the defaults, and refuses unknown keys.
func (c *Channel) UnmarshalJSON(b []byte) error {
	type plain Channel
	*c = presetChannel()
	return strictJSON(b, (*plain)(c))
}

// UnmarshalJSON decodes over the defaults of the kind, and refuses unknown keys.
func (e *Emitter) UnmarshalJSON(b []byte) error {
	type plain Emitter
	var k struct{ Kind string }
	if err := json.Unmarshal(b, &k); err != nil {
		return err
	}
	*e = presetEmitter(k.Kind)
	return strictJSON(b, (*plain)(e))
}

// UnmarshalJSON lets max_keys be written as "10M".
func (d *Dedup) UnmarshalJSON(b []byte) error {
	return d.over(func(p *plainDedup) error { return strictJSON(b, p) })
}

// UnmarshalYAML decodes over the defaults.
func (c *Channel) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Channel
	*c = presetChannel()
	return unmarshal((*plain)(c))
}

// UnmarshalYAML decodes over the defaults of the kind.
func (e *Emitter) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Emitter
	var all map[string]any
	if err := unmarshal(&all); err != nil {
		return err
	}
	kind, _ := all["kind"].(string)
	*e = presetEmitter(kind)
	return unmarshal((*plain)(e))
}

// UnmarshalYAML lets max_keys be written as 10M.
func (d *Dedup) UnmarshalYAML(unmarshal func(any) error) error {
	return d.over(func(p *plainDedup) error { return unmarshal(p) })
}

type plainDedup struct {
	Window  Duration `json:"window" yaml:"window"`
	MaxKeys count    `json:"max_keys" yaml:"max_keys"`
	OnFull  string   `json:"on_full" yaml:"on_full"`
}

func (d *Dedup) over(decode func(*plainDedup) error) error {
	p := plainDedup{Window: d.Window, MaxKeys: count(d.MaxKeys), OnFull: d.OnFull}
	if err := decode(&p); err != nil {
		return err
	}
	*d = Dedup{Window: p.Window, MaxKeys: int(p.MaxKeys), OnFull: p.OnFull}
	return nil
}

func strictJSON(b []byte, dst any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode(dst)
}

// checkKeys refuses a repeated key, which encoding/json would let win in silence, and an absurd depth.
func checkKeys(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return checkKeysOf(d, 0)
}

func checkKeysOf(d *json.Decoder, depth int) error {
	if depth > 100 {
		return errors.New("nested deeper than 100 levels")
	}
	t, err := d.Token()
	if err != nil {
		return err
	}
	open, ok := t.(json.Delim)
	if !ok {
		return nil
	}
	seen := map[string]bool{}
	for d.More() {
		if open == '{' {
			key, err := d.Token()
			if err != nil {
				return err
			}
			if name, _ := key.(string); seen[name] {
				return fmt.Errorf("the key %q is given twice (byte %d)", name, d.InputOffset())
			} else {
				seen[name] = true
			}
		}
		if err := checkKeysOf(d, depth+1); err != nil {
			return err
		}
	}
	_, err = d.Token() // the closing one
	return err
}

// RawJSON is a JSON text that is carried along. In YAML it may be written as YAML.
type RawJSON []byte

// MarshalJSON gives the text.
func (r RawJSON) MarshalJSON() ([]byte, error) {
	if len(r) == 0 {
		return []byte("null"), nil
	}
	return r, nil
}

// UnmarshalJSON keeps the text, compacted.
func (r *RawJSON) UnmarshalJSON(b []byte) error {
	*r = nil
	if string(b) == "null" {
		return nil
	}
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		return err
	}
	*r = out.Bytes()
	return nil
}

// UnmarshalYAML keeps the node as JSON.
func (r *RawJSON) UnmarshalYAML(n ast.Node) error {
	*r = nil
	if n.Type() == ast.NullType {
		return nil
	}
	b, err := yaml.YAMLToJSON([]byte(n.String()))
	if err != nil {
		return &yaml.SyntaxError{Message: "is no JSON: " + err.Error(), Token: n.GetToken()}
	}
	return r.UnmarshalJSON(b)
}

// Canonical gives the channel as JSON, with all defaults. The same spec gives the same bytes on every node, and ParseJSON
// gives the same channel back.
func (c *Channel) Canonical() []byte {
	full := c.clone()
	full.ApplyDefaults()
	b, err := json.Marshal(&full)
	if err != nil { // no field can fail but a schema that is no JSON, which no parser lets through
		panic(fmt.Sprintf("spec: marshal channel %q: %v", c.Name, err))
	}
	return b
}
