package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// file sets what a YAML file says. The syntax tree is walked rather than decoded, so that each value is known by line and
// column also when a later check refuses it, and a bare number stays the text the user wrote.
func (s *schema) file(name string, b []byte) error {
	f, err := parser.ParseBytes(b, 0)
	if err != nil {
		return syntaxError(name, err)
	}
	w := walker{schema: s, name: name}
	for i, doc := range f.Docs {
		if i > 0 && doc.Body != nil {
			return fmt.Errorf("%s: want one YAML document, not several", w.where(doc.Body))
		}
		w.top(doc.Body)
	}
	return errors.Join(w.errs...)
}

func syntaxError(name string, err error) error {
	var y yaml.Error
	if !errors.As(err, &y) || y.GetToken() == nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	p := y.GetToken().Position
	return fmt.Errorf("%s:%d:%d: no valid YAML: %s", name, p.Line, p.Column, strings.ReplaceAll(y.GetMessage(), "\n", " "))
}

// walker collects everything wrong with one file.
type walker struct {
	*schema
	name string
	errs []error
}

func (w *walker) where(n ast.Node) string {
	p := n.GetToken().Position
	return fmt.Sprintf("%s:%d:%d", w.name, p.Line, p.Column)
}

func (w *walker) fault(n ast.Node, key, value, allowed string) {
	w.errs = append(w.errs, &Fault{Where: w.where(n), Key: key, Value: value, Allowed: allowed})
}

// entries gives the pairs of a mapping; one pair alone is a node kind of its own in this parser.
func entries(n ast.Node) ([]*ast.MappingValueNode, bool) {
	switch m := n.(type) {
	case *ast.MappingNode:
		return m.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{m}, true
	}
	return nil, false
}

func (w *walker) top(body ast.Node) {
	if empty(body) {
		return
	}
	pairs, ok := entries(body)
	if !ok {
		w.errs = append(w.errs, fmt.Errorf("%s: want sections: %s", w.where(body), w.keysOf("")))
		return
	}
	for _, pair := range pairs {
		key := keyOf(pair)
		switch {
		case w.section(key):
			w.inside(key, pair)
		case w.known(key):
			w.value(key, pair)
		default:
			w.fault(pair.Key, key, text(pair.Value), "unknown key, want one of: "+w.keysOf(""))
		}
	}
}

func (w *walker) inside(section string, at *ast.MappingValueNode) {
	if empty(at.Value) {
		return
	}
	pairs, ok := entries(at.Value)
	if !ok {
		w.fault(at.Value, section, text(at.Value), "want keys under it: "+w.keysOf(section))
		return
	}
	for _, pair := range pairs {
		key := section + "." + keyOf(pair)
		switch {
		case reserved(key):
			w.fault(pair.Key, key, text(pair.Value), "not built yet, leave it out")
		case w.known(key):
			w.value(key, pair)
		default:
			w.fault(pair.Key, key, text(pair.Value), "unknown key, want one of: "+w.keysOf(section))
		}
	}
}

func (w *walker) known(key string) bool { _, ok := w.fields[key]; return ok }

func (w *walker) value(key string, pair *ast.MappingValueNode) {
	o := origin{where: w.where(pair.Value)}
	var err error
	switch v := pair.Value.(type) {
	case *ast.NullNode:
		w.fault(pair.Key, key, "", "has no value, leave it out for the default")
		return
	case *ast.SequenceNode:
		values := make([]string, 0, len(v.Values))
		for _, item := range v.Values {
			if !scalar(item) {
				w.fault(item, key, text(item), "want a list of plain values")
				return
			}
			values = append(values, text(item))
		}
		err = w.setList(key, o, values)
	default:
		if !scalar(v) {
			w.fault(v, key, text(v), "want a plain value")
			return
		}
		err = w.set(key, o, text(v))
	}
	if err != nil {
		w.errs = append(w.errs, err)
	}
}

func empty(n ast.Node) bool {
	if n == nil {
		return true
	}
	switch n.(type) {
	case *ast.NullNode, *ast.CommentGroupNode:
		return true
	}
	return false
}

func scalar(n ast.Node) bool {
	switch n.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.LiteralNode, *ast.InfinityNode, *ast.NanNode:
		return true
	}
	return false
}

func keyOf(pair *ast.MappingValueNode) string { return pair.Key.GetToken().Value }

// text is what the user wrote, unquoted.
func text(n ast.Node) string {
	switch v := n.(type) {
	case nil, *ast.NullNode:
		return ""
	case *ast.StringNode:
		return v.Value
	case *ast.LiteralNode:
		return strings.TrimRight(v.Value.Value, "\n")
	}
	if scalar(n) {
		return n.GetToken().Value
	}
	return strings.Join(strings.Fields(n.String()), " ")
}
