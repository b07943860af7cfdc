// Package check judges the stored evidence of one run: the clients' histories, the destinations' own logs, what the nodes
// showed at the end, their logs and dead-letter files.
//
// It promises that it reads nothing but its Input, so that a stored run can be judged again, that what it cannot decide is
// UNKNOWN and never PASS, and that a run in which too little happened is INVALID. The checks are independent of each other.
package check

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"penstock/jepsen/client"
	"penstock/jepsen/destination"
	"penstock/jepsen/history"
	"penstock/jepsen/oracle"
)

// Status is the outcome of one check, and of the whole.
type Status string

// The outcomes.
const (
	Pass    Status = "PASS"
	Fail    Status = "FAIL"
	Unknown Status = "UNKNOWN"  // could not be decided, e.g. a time-out
	Invalid Status = "INVALID"  // of the whole only: too little happened to say anything
	LeftOut Status = "LEFT OUT" // of one check only: what it reads is out of reach
)

// maxViolations bounds what is kept of one check; Total counts all.
const maxViolations = 25

// Result is the outcome of one check.
type Result struct {
	Name       string           `json:"name"`
	Status     Status           `json:"status"`
	Violations []string         `json:"violations,omitempty"`
	Total      int              `json:"total_violations,omitempty"`
	Why        string           `json:"why,omitempty"` // of UNKNOWN
	Numbers    map[string]int64 `json:"numbers,omitempty"`
}

func newResult(name string) *Result {
	return &Result{Name: name, Status: Pass, Numbers: map[string]int64{}}
}

func (r *Result) fail(format string, args ...any) {
	r.Status = Fail
	r.Total++
	if len(r.Violations) < maxViolations {
		r.Violations = append(r.Violations, fmt.Sprintf(format, args...))
	}
}

func (r *Result) leaveOut(why string) *Result {
	r.Status, r.Why = LeftOut, why
	return r
}

// outOfReach: what lies on the nodes' disks cannot be looked at on a cluster of the user's.
const outOfReach = "the nodes' disks are out of reach"

func (r *Result) unknown(format string, args ...any) {
	if r.Status == Pass {
		r.Status, r.Why = Unknown, fmt.Sprintf(format, args...)
	}
}

// Expect is what a run must have done to count.
type Expect struct {
	MinAcks      int      `json:"min_acks"`      // acknowledged events
	MinFaults    int      `json:"min_faults"`    // confirmed activations
	Kinds        []string `json:"kinds"`         // each must have been confirmed at least once
	Scenarios    int      `json:"scenarios"`     // planned activations
	Channels     []string `json:"channels"`      // those with writers
	MinFinalRead int      `json:"min_final"`     // nodes that must have been read whole at the end
	Reachable    bool     `json:"own_cluster"`   // a cluster of the user's: no volumes, logs or files to look at
	WindowNanos  int64    `json:"dedup_window"`  // of the channels
	Trimmed      bool     `json:"trimmed"`       // resolved events may be gone: what readers saw before counts as well
	Quiet        bool     `json:"deliveries_in"` // all deliveries were resolved at the end
}

// FileOut is one file of a file emitter on one node.
type FileOut struct {
	Node    string   `json:"node"`
	Emitter string   `json:"emitter"`
	Name    string   `json:"name"`
	Sum     string   `json:"sum"`
	Events  []string `json:"events"` // source + " " + id
}

// DeadRecord is one line of a node's dead-letter volume.
type DeadRecord struct {
	Node    string `json:"node"`
	File    string `json:"file"`
	ID      string `json:"id"`
	Event   string `json:"event"` // source + " " + id
	Emitter string `json:"emitter"`
	Torn    bool   `json:"torn,omitempty"` // a last line without its end
}

// Final is what was collected after the heal.
type Final struct {
	Ledgers     map[string]map[string]client.Ledger `json:"ledgers"` // node -> channel
	DeadLetters map[string][]client.DeadLetter      `json:"dead_letters"`
	Truncated   map[string]bool                     `json:"truncated,omitempty"` // channels with more dead letters than are listed
	Files       []FileOut                           `json:"files"`
	DeadRecords []DeadRecord                        `json:"dead_records"`
	Liveness    []Liveness                          `json:"liveness"`
}

// Liveness is one thing that had to happen within a bound after the heal.
type Liveness struct {
	Name  string `json:"name"`
	Took  int64  `json:"took"` // ns
	Bound int64  `json:"bound"`
	OK    bool   `json:"ok"`
	Note  string `json:"note,omitempty"`
}

// Input is the evidence of one run.
type Input struct {
	Expect       Expect
	Emitters     []EmitterInfo
	Ops          []history.Op
	Faults       []history.Fault
	Observations []history.Observation
	Attempts     []destination.Attempt
	Final        Final
	Logs         map[string]*oracle.Log // by node; nil when they could not be read
}

// EmitterInfo is one emitter of the workload.
type EmitterInfo struct {
	Channel, Name, Kind string
	Ordered             bool
}

// Verdict is the judgement of one run.
type Verdict struct {
	Verdict Status   `json:"verdict"`
	Why     []string `json:"why,omitempty"`
	Checks  []Result `json:"checks"`
}

// Judge runs every check. A violation outweighs a lack of evidence: what was seen to be wrong stays wrong.
func Judge(in Input) Verdict {
	known := gather(in.Ops)
	if known.horizon = oracle.Horizon(in.Logs); in.Expect.Trimmed {
		known.horizon = math.MaxUint64 // it moves with the log
	}
	known.trimmed = known.horizon > 0
	checks := []func(Input, *facts) *Result{
		checkSet, checkPositions, checkDivergence, checkWriterOrder, checkOffsets, checkLinearizable,
		checkDeliveries, checkKeyOrder, checkIDs, checkFencing, checkLedger, checkDeadLetters, checkFiles, checkLogs, checkStateHashes,
		checkLeaders, checkReactions, checkLiveness, checkVacuity,
	}
	v := Verdict{Verdict: Pass}
	for _, c := range checks {
		r := c(in, known)
		v.Checks = append(v.Checks, *r)
		if r.Status != Pass && r.Status != LeftOut {
			why := r.Why
			if len(r.Violations) > 0 {
				why = r.Violations[0]
			}
			v.Why = append(v.Why, fmt.Sprintf("%s %s: %s", r.Name, r.Status, why))
		}
		v.Verdict = worse(v.Verdict, r)
	}
	return v
}

// worse: FAIL over INVALID over UNKNOWN over PASS. The vacuity check alone makes INVALID.
func worse(v Status, r *Result) Status {
	s := r.Status
	if r.Name == vacuityName && s == Fail {
		s = Invalid
	}
	rank := []Status{LeftOut, Pass, Unknown, Invalid, Fail}
	return slices.MaxFunc([]Status{v, s}, func(a, b Status) int { return cmp.Compare(slices.Index(rank, a), slices.Index(rank, b)) })
}
