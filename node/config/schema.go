package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// origin is where a value was said, and the text of it.
type origin struct{ where, text string }

// Fault is one wrong setting: one line that says where, which, what was said, and what is allowed.
type Fault struct {
	Where   string // file:line:column, $VARIABLE, flag; empty for a default
	Key     string
	Value   string
	Allowed string
}

// Error is one line.
func (f *Fault) Error() string {
	line := fmt.Sprintf("%s: %q: %s", f.Key, f.Value, f.Allowed)
	if f.Where != "" {
		line = f.Where + ": " + line
	}
	return strings.ReplaceAll(line, "\n", " ")
}

// fault is a Fault at the place where key was said.
func (c *Config) fault(key, value, allowed string) error {
	o, said := c.origins[key]
	if said && o.text != "" {
		value = o.text
	}
	return &Fault{Where: o.where, Key: key, Value: value, Allowed: allowed}
}

// schema is the settings of one Config by key ("node.data_dir", "drain").
type schema struct {
	config  *Config
	fields  map[string]reflect.Value
	order   []string
	reloads map[string]bool // keys that SIGHUP changes
}

// schemaOf reads the keys off the yaml tags, so that a field of Config is a key of the file, a variable and a flag.
func schemaOf(c *Config) *schema {
	s := &schema{config: c, fields: map[string]reflect.Value{}, reloads: map[string]bool{}}
	s.add("", reflect.ValueOf(c).Elem())
	return s
}

func (s *schema) add(prefix string, v reflect.Value) {
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag.Get("yaml")
		if tag == "" {
			continue
		}
		if v.Field(i).Kind() == reflect.Struct {
			s.add(prefix+tag+".", v.Field(i))
			continue
		}
		s.fields[prefix+tag] = v.Field(i)
		s.order = append(s.order, prefix+tag)
		if v.Type().Field(i).Tag.Get("reload") != "" {
			s.reloads[prefix+tag] = true
		}
	}
}

// section tells whether name has keys under it.
func (s *schema) section(name string) bool {
	return slices.ContainsFunc(s.order, func(key string) bool { return strings.HasPrefix(key, name+".") })
}

// keysOf lists what may stand in a section ("" is the top), in the order of the struct.
func (s *schema) keysOf(section string) string {
	if section != "" && s.section(section) {
		section += "."
	} else {
		section = ""
	}
	var keys []string
	for _, key := range s.order {
		rest, ok := strings.CutPrefix(key, section)
		if !ok {
			continue
		}
		first, _, _ := strings.Cut(rest, ".")
		if !slices.Contains(keys, first) {
			keys = append(keys, first)
		}
	}
	return strings.Join(keys, ", ")
}

// reserved sections are parsed so that they can be refused by name; what they will do is a later issue.
func reserved(key string) bool {
	return strings.HasPrefix(key, "tls.") || key == "auth.issuer" || key == "auth.audience"
}

// set gives one scalar (or, for a list, comma-separated) setting its value.
func (s *schema) set(key string, o origin, text string) error {
	if s.fields[key].Kind() == reflect.Slice {
		return s.setList(key, o, splitList(text))
	}
	o.text = text
	if reserved(key) {
		return &Fault{Where: o.where, Key: key, Value: text, Allowed: "not built yet, leave it out"}
	}
	if err := assign(s.fields[key], text); err != nil {
		return &Fault{Where: o.where, Key: key, Value: text, Allowed: err.Error()}
	}
	s.config.origins[key] = o
	return nil
}

// setList gives a list setting its values.
func (s *schema) setList(key string, o origin, values []string) error {
	if s.fields[key].Kind() != reflect.Slice {
		return &Fault{Where: o.where, Key: key, Value: strings.Join(values, ", "), Allowed: "want one value, not a list"}
	}
	o.text = strings.Join(values, ", ")
	s.fields[key].Set(reflect.ValueOf(values))
	s.config.origins[key] = o
	return nil
}

func splitList(text string) []string {
	var out []string
	for v := range strings.SplitSeq(text, ",") {
		if v = strings.TrimSpace(v); v != "" {
			out = append(out, v)
		}
	}
	return out
}

// assign parses text into v by its type. Durations and sizes parse themselves and refuse a value without a unit.
func assign(v reflect.Value, text string) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return errors.New("want true or false")
		}
		v.SetBool(b)
	case reflect.Int:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return errors.New("want a whole number")
		}
		v.SetInt(n)
	default:
		return fmt.Errorf("no setting has the type %s", v.Type())
	}
	return nil
}
