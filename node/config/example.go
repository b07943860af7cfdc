package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

const exampleHead = `# One node of a cluster of three. Every key may also be said by a variable, PENSTOCK_SECTION_KEY
# (PENSTOCK_NODE_DATA_DIR, PENSTOCK_CLUSTER_SEEDS=a:7072,b:7072), and by a flag (--set node.data_dir=...);
# flags win over variables, variables over this file. Durations and sizes need a unit.
# SIGHUP reads the file and the variables anew: what is marked (r) changes at once, the rest with a restart.
`

// commentColumn is where the comments of the example begin, where the line leaves room.
const commentColumn = 36

// Example is a commented configuration of one node of three, made from the schema; it passes Load.
func Example() string {
	c := Default()
	var b strings.Builder
	b.WriteString(exampleHead)
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		switch key := f.Tag.Get("yaml"); {
		case key == "":
		case f.Type.Kind() != reflect.Struct:
			b.WriteByte('\n')
			exampleLine(&b, "", f, v.Field(i))
		default:
			exampleSection(&b, key, f.Tag.Get("doc"), v.Field(i))
		}
	}
	return b.String()
}

// exampleSection is commented out as a whole when every key in it is.
func exampleSection(b *strings.Builder, key, doc string, v reflect.Value) {
	mark := "# "
	for i := range v.NumField() {
		if !strings.HasPrefix(v.Type().Field(i).Tag.Get("sample"), "# ") {
			mark = ""
		}
	}
	fmt.Fprintf(b, "\n%s\n", commented(mark+key+":", doc))
	for i := range v.NumField() {
		exampleLine(b, "  ", v.Type().Field(i), v.Field(i))
	}
}

func exampleLine(b *strings.Builder, indent string, f reflect.StructField, v reflect.Value) {
	value, mark := exampleValue(v), ""
	if sample := f.Tag.Get("sample"); sample != "" {
		text, off := strings.CutPrefix(sample, "# ")
		value = text
		if off {
			mark = "# "
		}
		if v.Kind() == reflect.Slice {
			value = "[" + quotedList(text) + "]"
		}
	}
	doc := f.Tag.Get("doc")
	if f.Tag.Get("reload") != "" {
		doc += " (r)"
	}
	fmt.Fprintf(b, "%s\n", commented(indent+mark+f.Tag.Get("yaml")+": "+value, doc))
}

func commented(line, doc string) string {
	if pad := commentColumn - len(line); pad > 0 {
		line += strings.Repeat(" ", pad)
	} else {
		line += "  "
	}
	return line + "# " + doc
}

// exampleValue is a default as YAML writes it.
func exampleValue(v reflect.Value) string {
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		if b, err := m.MarshalText(); err == nil {
			return string(b)
		}
	}
	if s := v.String(); v.Kind() == reflect.String && s == "" {
		return `""`
	}
	return fmt.Sprint(v.Interface())
}

func quotedList(text string) string {
	items := splitList(text)
	for i, s := range items {
		items[i] = strconv.Quote(s)
	}
	return strings.Join(items, ", ")
}
