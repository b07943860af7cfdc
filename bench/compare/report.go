package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
)

// of gives the median of one number of a row; 0 when the row was not measured.
func of(rows map[key][]measured, system, row string, number func(measured) float64) float64 {
	var values []float64
	for _, m := range rows[key{system, row}] {
		values = append(values, number(m))
	}
	if len(values) == 0 {
		return 0
	}
	return median(values)
}

func ingestTables(o options, rows map[key][]measured, disk map[string][]float64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Median of %d rounds of %g s each; %d cores shared by servers and client; %s. CPU is user and system time of all three servers, or of\n"+
		"the client, for 100 000 events. Written is what went to the device (three copies are 3.0) for each byte of payload. Peak is the largest\n"+
		"resident set of one server.\n\n", o.rounds, o.seconds, runtime.NumCPU(), runtime.Version())
	b.WriteString("| system | under way | events/s | MB/s | p50 ms | p99 ms | server CPU s | client CPU s | written | peak MiB |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, s := range systems(o) {
		for _, r := range s.rows() {
			get := func(number func(measured) float64) float64 { return of(rows, s.name(), r.name, number) }
			fmt.Fprintf(&b, "| %s | %s | %.0f | %.1f | %.2f | %.2f | %.2f | %.2f | %.1f | %.0f |\n", s.name(), r.name,
				get(func(m measured) float64 { return m.rate }), get(func(m measured) float64 { return m.megabytes }),
				get(func(m measured) float64 { return m.p50 }), get(func(m measured) float64 { return m.p99 }),
				get(func(m measured) float64 { return m.serverCPU }), get(func(m measured) float64 { return m.clientCPU }),
				get(func(m measured) float64 { return m.amplification }), get(func(m measured) float64 { return m.peak }))
		}
	}
	b.WriteString("\nThe disk: writes with `fdatasync` a second, overwriting files that are there.\n\n|")
	names := make([]string, 0, len(disk))
	for n := range disk {
		names = append(names, n)
	}
	slices.Sort(names)
	b.WriteString(" " + strings.Join(names, " | ") + " |\n|" + strings.Repeat("---:|", len(names)) + "\n|")
	for _, n := range names {
		fmt.Fprintf(&b, " %.0f |", median(disk[n]))
	}
	b.WriteString("\n\n" + claims(rows))
	return b.String()
}

// claim is a ratio that is to be held.
type claim struct {
	what  string
	value float64
	most  bool // the bound is an upper one
	bound float64
}

func claims(rows map[key][]measured) string {
	const ours, always, lazy = "Penstock", "NATS JetStream R3, sync_interval: always", "NATS JetStream R3, default sync (not durable)"
	const inJSON, inRandom, thousand = "10 requests of 100 events, json", "10 requests of 100 events, random", "1000 messages"
	rate := func(system, row string) float64 {
		return of(rows, system, row, func(m measured) float64 { return m.rate })
	}
	p50 := func(system, row string) float64 {
		return of(rows, system, row, func(m measured) float64 { return m.p50 })
	}
	cpu := func(system, row string) float64 {
		return of(rows, system, row, func(m measured) float64 { return m.serverCPU })
	}
	list := []claim{
		{"rate, 10 × 100 json ÷ NATS `always` with 1000", rate(ours, inJSON) / rate(always, thousand), false, 3},
		{"rate, 10 × 100 json ÷ NATS default with 1000", rate(ours, inJSON) / rate(lazy, thousand), false, 1},
		{"rate, 10 × 100 random ÷ NATS `always` with 1000", rate(ours, inRandom) / rate(always, thousand), false, 2},
		{"p50, one request ÷ NATS `always` with 1", p50(ours, "1 request of 1 event") / p50(always, "1 message"), true, 0.7},
		{"server CPU per event, 10 × 100 json ÷ NATS `always` with 1000", cpu(ours, inJSON) / cpu(always, thousand), true, 0.5},
		{"server CPU per event, 10 × 100 random ÷ NATS `always` with 1000", cpu(ours, inRandom) / cpu(always, thousand), true, 0.5},
	}
	return claimTable(list)
}

func claimTable(list []claim) string {
	var b strings.Builder
	b.WriteString("| ratio | measured | wanted | |\n|---|---:|---:|---|\n")
	for _, c := range list {
		sign, holds := "≥", c.value >= c.bound
		if c.most {
			sign, holds = "≤", c.value <= c.bound
		}
		verdict := "holds"
		if !holds {
			verdict = "**falls short**"
		}
		fmt.Fprintf(&b, "| %s | %.2f | %s %g | %s |\n", c.what, c.value, sign, c.bound, verdict)
	}
	return b.String()
}
