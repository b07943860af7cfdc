// Package bench compares Penstock with its peers, on this machine, in one run: the log stores by Go benchmarks in this
// package, whole systems by the command compare below it.
//
// It is a module of its own, so that the peers stay out of the product's
// go.mod. What it measured last is in docs/benchmarks.md.
package bench
