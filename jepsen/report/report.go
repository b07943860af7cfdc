// Package report writes one run as one HTML file that needs nothing else: the verdict, each check, and a timeline of
// operations, latency, leaders and faults as SVG. It judges nothing.
package report

import (
	"encoding/json"
	"fmt"
	"html/template"
	"os"
	"slices"
	"strings"

	"penstock/jepsen/check"
	"penstock/jepsen/history"
)

// Run is what is reported.
type Run struct {
	Title   string
	Options any
	Input   check.Input
	Verdict check.Verdict
}

// Write writes the report.
func Write(path string, r Run) error {
	options, err := json.MarshalIndent(r.Options, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	data := map[string]any{
		"Title": r.Title, "Verdict": r.Verdict, "Options": string(options), "Timeline": template.HTML(timeline(r.Input)),
		"Faults": r.Input.Faults, "Liveness": r.Input.Final.Liveness, "Latency": latencies(r.Input.Ops), "Failovers": failovers(r.Input),
	}
	if err := page.Execute(f, data); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"s":    func(ns int64) string { return fmt.Sprintf("%.2f", float64(ns)/1e9) },
	"join": func(s []string) string { return strings.Join(s, ", ") },
	"nums": func(m map[string]int64) string {
		keys := make([]string, 0, len(m))
		for k := range m {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for i, k := range keys {
			keys[i] = fmt.Sprintf("%s: %d", k, m[k])
		}
		return strings.Join(keys, " · ")
	},
}).Parse(`<!doctype html><html lang="en"><meta charset="utf-8"><title>jepsen: {{.Verdict.Verdict}} {{.Title}}</title>
<style>body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1240px;color:#222}h1{font-size:1.3em}h2{font-size:1.05em;margin-top:1.8em}
table{border-collapse:collapse}td,th{border-bottom:1px solid #ddd;padding:.2em .7em;text-align:left;vertical-align:top}
.PASS{color:#186a2b}.FAIL{color:#b3001b}.UNKNOWN,.INVALID{color:#8a5a00}pre{background:#f6f6f6;padding:.7em;overflow:auto}small{color:#666}</style>
<h1><span class="{{.Verdict.Verdict}}">{{.Verdict.Verdict}}</span> {{.Title}}</h1>
{{range .Verdict.Why}}<p class="FAIL">{{.}}</p>{{end}}
{{.Timeline}}
<h2>Checks</h2><table><tr><th>check<th>outcome<th>numbers, violations</tr>
{{range .Verdict.Checks}}<tr><td>{{.Name}}<td class="{{.Status}}">{{.Status}}{{if .Total}} ({{.Total}}){{end}}<td><small>{{nums .Numbers}}</small>{{with .Why}}<br>{{.}}{{end}}{{range .Violations}}<br>{{.}}{{end}}</tr>{{end}}</table>
<h2>After the heal</h2><table><tr><th>what<th>took, s<th>bound, s<th></tr>{{range .Liveness}}<tr><td>{{.Name}}<td>{{s .Took}}<td>{{s .Bound}}<td class="{{if .OK}}PASS{{else}}FAIL{{end}}">{{if .OK}}ok{{else}}{{.Note}}{{end}}</tr>{{end}}</table>
<h2>Latency</h2><p>{{.Latency}}</p><p>{{.Failovers}}</p>
<h2>Faults</h2><table><tr><th>s<th>kind<th>phase<th>targets<th>detail</tr>{{range .Faults}}<tr><td>{{s .T}}<td>{{.Kind}}<td class="{{if eq .Phase "violation"}}FAIL{{end}}">{{.Phase}}<td>{{join .Targets}}<td>{{.Detail}}</tr>{{end}}</table>
<h2>Options</h2><pre>{{.Options}}</pre></html>`))

// latencies says how long acknowledged writes took.
func latencies(ops []history.Op) string {
	invoked := map[string]int64{}
	var took []int64
	for _, op := range ops {
		if op.F != history.Write && op.F != history.WriteOffset {
			continue
		}
		key := fmt.Sprint(op.Client, op.Seq)
		if op.Type == history.Invoke {
			invoked[key] = op.T
		} else if op.Type == history.OK {
			took = append(took, op.T-invoked[key])
		}
	}
	if len(took) == 0 {
		return "no write was acknowledged"
	}
	slices.Sort(took)
	q := func(p float64) float64 { return float64(took[min(len(took)-1, int(p*float64(len(took))))]) / 1e6 }
	return fmt.Sprintf("%d acknowledged requests: median %.1f ms, p99 %.1f ms, slowest %.0f ms", len(took), q(.5), q(.99), q(1))
}

// failovers says how long after each kill or power cut the next acknowledgement came.
func failovers(in check.Input) string {
	var acks []int64
	for _, op := range in.Ops {
		if op.Type == history.OK && (op.F == history.Write || op.F == history.WriteOffset) {
			acks = append(acks, op.T)
		}
	}
	slices.Sort(acks)
	var gaps []int64
	for _, f := range in.Faults {
		if f.Phase != history.Confirmed || !slices.Contains([]string{"kill", "kill-all", "power", "power-all", "chaos"}, f.Kind) {
			continue
		}
		if i, _ := slices.BinarySearch(acks, f.T); i < len(acks) {
			gaps = append(gaps, acks[i]-f.T)
		}
	}
	if len(gaps) == 0 {
		return ""
	}
	slices.Sort(gaps)
	return fmt.Sprintf("%d crashes: next acknowledgement after a median of %.0f ms, at most %.0f ms", len(gaps), float64(gaps[len(gaps)/2])/1e6, float64(gaps[len(gaps)-1])/1e6)
}
