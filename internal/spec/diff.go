package spec

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Change is one field in which two specs of a channel differ. From is empty where a field, or an emitter, is new; To where it goes.
type Change struct {
	Path string `json:"path"`
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// String shows it on a line.
func (c Change) String() string {
	switch {
	case c.From == "":
		return fmt.Sprintf("+ %s: %s", c.Path, c.To)
	case c.To == "":
		return fmt.Sprintf("- %s: %s", c.Path, c.From)
	}
	return fmt.Sprintf("~ %s: %s -> %s", c.Path, c.From, c.To)
}

// Diff lists what changes from one spec to the next, by field; emitters are matched by name, as applying does. from is nil for a
// channel that is new. Values are JSON. The same specs give none.
func Diff(from, to *Channel) []Change {
	var all []Change
	diffValues(&all, "", valueOf(from), valueOf(to))
	return all
}

// valueOf is the canonical form, with the emitters as an object by name.
func valueOf(c *Channel) any {
	if c == nil {
		return nil
	}
	doc, err := DecodeJSON(c.Canonical())
	m, ok := doc.(map[string]any)
	if err != nil || !ok {
		return nil
	}
	byName := map[string]any{}
	list, _ := m["emitters"].([]any)
	for _, e := range list {
		if e, ok := e.(map[string]any); ok {
			name, _ := e["name"].(string)
			byName[name] = e
		}
	}
	m["emitters"] = byName
	return m
}

func diffValues(all *[]Change, path string, from, to any) {
	a, isA := from.(map[string]any)
	b, isB := to.(map[string]any)
	if path != "schema" && (isA || from == nil) && (isB || to == nil) && (isA || isB) && (path == "" || path == "emitters" || isA && isB) {
		keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
		slices.Sort(keys)
		for _, k := range slices.Compact(keys) {
			diffValues(all, joinPath(path, k), a[k], b[k])
		}
		return
	}
	x, y := shown(from), shown(to)
	if x != y {
		*all = append(*all, Change{Path: path, From: x, To: y})
	}
}

func joinPath(path, key string) string {
	switch path {
	case "":
		return key
	case "emitters":
		return "emitters[" + key + "]"
	}
	return path + "." + key
}

func shown(v any) string {
	if v == nil {
		return ""
	}
	b, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return cut(string(b), 200)
}
