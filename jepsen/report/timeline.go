package report

import (
	"fmt"
	"html"
	"slices"
	"strings"

	"penstock/jepsen/check"
	"penstock/jepsen/history"
)

const (
	width       = 1200.0
	left        = 140.0
	latencyTop  = 20.0
	latencyTall = 130.0
	rowTall     = 16.0
)

// timeline draws, over one axis of time: the latency of each write by outcome, the acknowledgement rate, who led, the
// intervals of the faults.
func timeline(in check.Input) string {
	end := int64(1)
	for _, op := range in.Ops {
		end = max(end, op.T)
	}
	for _, f := range in.Faults {
		end = max(end, f.T)
	}
	x := func(t int64) float64 { return left + (width-left-10)*float64(t)/float64(end) }
	var b strings.Builder
	y := latencyTop
	writes(&b, in.Ops, x, y)
	y += latencyTall + 20
	rate(&b, in.Ops, x, y, end)
	y += 60
	y = leaders(&b, in.Observations, x, y)
	y = faults(&b, in.Faults, x, y, end)
	var grid strings.Builder // goes behind the rest
	for s := int64(0); s <= end; s += max(1, end/10) {
		fmt.Fprintf(&grid, `<text x="%.0f" y="%.0f" fill="#666">%.0fs</text><line x1="%.0f" x2="%.0f" y1="%.0f" y2="%.0f" stroke="#eee"/>`, x(s), y+14, float64(s)/1e9, x(s), x(s), latencyTop, y)
	}
	return fmt.Sprintf(`<svg viewBox="0 0 %.0f %.0f" width="100%%" font-size="11" font-family="system-ui,sans-serif" role="img" aria-label="timeline of the run">%s</svg>`, width, y+24, grid.String()+b.String())
}

// writes: one dot per write attempt (thinned out evenly when there are very many), height is the latency up to 5 s, by square root.
func writes(b *strings.Builder, ops []history.Op, x func(int64) float64, top float64) {
	invoked := map[string]int64{}
	total := 0
	for _, op := range ops {
		if op.Type == history.Invoke && (op.F == history.Write || op.F == history.WriteOffset) {
			invoked[fmt.Sprint(op.Client, op.Seq)] = op.T
			total++
		}
	}
	colours := map[history.Type]string{history.OK: "#2b7a3d", history.Fail: "#d09000", history.Info: "#c0102a"}
	fmt.Fprintf(b, `<text x="4" y="%.0f">write latency</text><text x="4" y="%.0f" fill="#2b7a3d">● acknowledged</text><text x="4" y="%.0f" fill="#d09000">● not done</text><text x="4" y="%.0f" fill="#c0102a">● unknown</text>`, top+12, top+30, top+46, top+62)
	for _, tick := range []float64{0.01, 0.1, 1, 5} {
		fmt.Fprintf(b, `<text x="%.0f" y="%.0f" fill="#999" text-anchor="end">%gs</text>`, left-4, top+latencyTall-height(tick)+4, tick)
	}
	thin, n := max(1, total/6000), 0
	for _, op := range ops {
		colour, done := colours[op.Type]
		start, ok := invoked[fmt.Sprint(op.Client, op.Seq)]
		if !done || !ok {
			continue
		}
		if n++; op.Type == history.OK && n%thin != 0 {
			continue
		}
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="1.6" fill="%s" fill-opacity=".6"/>`, x(op.T), top+latencyTall-height(float64(op.T-start)/1e9), colour)
	}
}

// height spreads 1 ms to 5 s over the band, roughly by decade.
func height(seconds float64) float64 {
	steps := []float64{0, 0.01, 0.1, 1, 5}
	for i := 1; i < len(steps); i++ {
		if seconds <= steps[i] {
			return latencyTall / 4 * (float64(i-1) + (seconds-steps[i-1])/(steps[i]-steps[i-1]))
		}
	}
	return latencyTall
}

func rate(b *strings.Builder, ops []history.Op, x func(int64) float64, top float64, end int64) {
	buckets := make([]int, 240)
	for _, op := range ops {
		if op.Type == history.OK && (op.F == history.Write || op.F == history.WriteOffset) {
			buckets[min(len(buckets)-1, int(op.T*int64(len(buckets))/(end+1)))] += len(op.Acks)
		}
	}
	most := max(1, slices.Max(buckets))
	fmt.Fprintf(b, `<text x="4" y="%.0f">events acked</text><text x="4" y="%.0f" fill="#999">up to %.0f/s</text>`, top+12, top+28, float64(most)*float64(len(buckets))*1e9/float64(end))
	for i, n := range buckets {
		tall := 45 * float64(n) / float64(most)
		at := x(end * int64(i) / int64(len(buckets)))
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="#7aa6c9"/>`, at, top+45-tall, (width-left-10)/float64(len(buckets)), tall)
	}
}

// leaders: a row per node; grey is up, blue leads, white is silent.
func leaders(b *strings.Builder, observations []history.Observation, x func(int64) float64, top float64) float64 {
	byNode := map[string][]history.Observation{}
	for _, o := range observations {
		byNode[o.Node] = append(byNode[o.Node], o)
	}
	nodes := make([]string, 0, len(byNode))
	for n := range byNode {
		nodes = append(nodes, n)
	}
	slices.Sort(nodes)
	for _, n := range nodes {
		fmt.Fprintf(b, `<text x="4" y="%.0f">%s</text>`, top+12, html.EscapeString(n))
		list := byNode[n]
		for i := 0; i < len(list); {
			j := i + 1
			for j < len(list) && list[j].Up == list[i].Up && list[j].State == list[i].State && list[j].Term == list[i].Term {
				j++
			}
			colour := "#d5d5d5"
			if list[i].State == "leader" {
				colour = "#2f6fb3"
			}
			if list[i].Up {
				to := list[min(j, len(list)-1)].T
				fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="12" fill="%s"><title>%s %s term %d</title></rect>`, x(list[i].T), top+2, max(1, x(to)-x(list[i].T)), colour, html.EscapeString(n), html.EscapeString(list[i].State), list[i].Term)
			}
			i = j
		}
		top += rowTall
	}
	return top + 6
}

// faults: a row per kind, an interval per activation; dark when it was confirmed.
func faults(b *strings.Builder, list []history.Fault, x func(int64) float64, top float64, end int64) float64 {
	type span struct {
		from, to int64
		text     string
		ok, bad  bool
	}
	spans := map[string]map[int]*span{}
	var kinds []string
	for _, f := range list {
		if f.Phase == history.Note && f.ID == 0 {
			continue
		}
		if spans[f.Kind] == nil {
			spans[f.Kind] = map[int]*span{}
			kinds = append(kinds, f.Kind)
		}
		id, to := f.ID, end
		if id == 0 { // a moment of its own, e.g. a kill by chaos mode
			id, to = -1-len(spans[f.Kind]), f.T
		}
		s := spans[f.Kind][id]
		if s == nil {
			s = &span{from: f.T, to: to}
			spans[f.Kind][id] = s
		}
		s.text += fmt.Sprintf("%s %v %s; ", f.Phase, f.Targets, f.Detail)
		switch f.Phase {
		case history.Confirmed:
			s.ok = true
		case history.Violation:
			s.bad = true
		case history.End:
			s.to = f.T
		}
	}
	slices.Sort(kinds)
	for _, k := range kinds {
		fmt.Fprintf(b, `<text x="4" y="%.0f">%s</text>`, top+12, html.EscapeString(k))
		for _, s := range spans[k] {
			colour := "#e3c9c9"
			if s.ok {
				colour = "#a03a3a"
			}
			if s.bad {
				colour = "#ff0000"
			}
			fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="12" fill="%s" fill-opacity=".8"><title>%s</title></rect>`, x(s.from), top+2, max(2, x(s.to)-x(s.from)), colour, html.EscapeString(s.text))
		}
		top += rowTall
	}
	return top
}
