package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// print writes v as JSON, or what table writes.
func (a *app) print(v any, table func(w io.Writer)) error {
	if a.output == "json" {
		e := json.NewEncoder(a.stdout)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(v)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	table(w)
	return w.Flush()
}

// row writes one line of a table.
func row(w io.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		s := strings.NewReplacer("\t", " ", "\n", " ").Replace(fmt.Sprint(c))
		if s == "" {
			s = "-"
		}
		fmt.Fprint(w, s)
	}
	fmt.Fprintln(w)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// talk writes one line to standard error.
func (a *app) talk(format string, v ...any) { fmt.Fprintf(a.stderr, format+"\n", v...) }
